"""``https://HOST/PATH.gguf[#sha256=…&max=…]``: GGUF files by URL."""

import hashlib
import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from ggfw.descriptors import ModelSource
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

#: Largest file accepted where the reference says nothing.
MOST = 64 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ +-]*")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_BLOCK = 1 << 20


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to anything else."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise urllib.error.URLError("it redirects from https to something else")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class UrlSource:
    """Fetches one file.

    Args:
        folder: files go to ``folder/HOST/PATH``.
    """

    scheme = "https"

    def __init__(self, folder):
        self.folder = Path(folder)

    def resolve(self, rest, progress=None):
        """Fetch ``//HOST/PATH.gguf[#sha256=…&max=…]``, or what is missing of it.

        Raises:
            InvalidRequest: no URL of a GGUF file, an option that is unknown or malformed, http without checksum.
            SourceError: it cannot be fetched, is too large, or has another checksum.
        """
        from ggfw.errors import SourceError
        from ggfw.model_source import PARTIAL, file_sha256

        url, parts, wanted, most = self._parse(rest)
        target = self.folder.joinpath(*parts)
        if target.is_file():
            if wanted and file_sha256(target, progress) != wanted:
                raise SourceError(
                    f"{target} has another checksum than the reference; remove the file to fetch it anew"
                )
            return [target]
        partial = self.folder / PARTIAL / hashlib.sha256(url.encode()).hexdigest()[:32]
        partial.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._fetch(url, partial, most, target.name, progress)
        except (OSError, ValueError) as exc:  # URLError, timeouts and a full disk are OSErrors
            raise SourceError(
                f"{url} could not be fetched ({getattr(exc, 'reason', exc)}); try again, it goes on"
            ) from exc
        if wanted and file_sha256(partial, progress) != wanted:
            partial.unlink()
            raise SourceError(
                f"{url} has another checksum than the reference; it was removed, compare both with care"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial, target)
        try:
            partial.parent.rmdir()
        except OSError:  # other downloads are under way
            pass
        return [target]

    def _parse(self, rest):
        """(URL, folders and file name, checksum, most bytes) of a reference."""
        from ggfw.errors import InvalidRequest

        def refuse(why):
            raise InvalidRequest(f"{self.scheme}:{rest} cannot be used: {why}", "model")

        url, _, options = rest.partition("#")
        if any(c.isspace() or ord(c) < 32 for c in rest) or not url.startswith("//"):
            refuse("expected //HOST/PATH.gguf")
        try:
            split = urlsplit(f"{self.scheme}:{url}")
            host, _ = split.hostname, split.port
        except ValueError:
            refuse("it is no URL")
        folders = [unquote(part) for part in split.path.split("/")[1:]]
        if not host or split.username or not folders or not all(_PART.fullmatch(part) for part in folders):
            refuse("expected //HOST/PATH.gguf, without password, and with ordinary names in the path")
        if not folders[-1].lower().endswith(".gguf"):
            refuse("the name of the file does not end in .gguf")
        given = parse_qs(options, keep_blank_values=True, strict_parsing=False)
        if unknown := given.keys() - {"sha256", "max"}:
            refuse(f"the option {min(unknown)} is unknown; sha256 and max are known")
        wanted = given.get("sha256", [""])[-1].lower()
        if "sha256" in given and not re.fullmatch("[0-9a-f]{64}", wanted):
            refuse("sha256 must have 64 hexadecimal digits")
        if self.scheme == "http" and not wanted and host not in _LOCAL:
            refuse("http does not protect what it carries; give #sha256=, or use https")
        size = re.fullmatch("([0-9]{1,12})([KMG]?)", given.get("max", [str(MOST)])[-1].upper())
        if size is None:
            refuse("max must be a number of bytes, with K, M or G behind it")
        place = re.sub(r"[^A-Za-z0-9.-]", "_", host)
        return f"{self.scheme}:{url}", [place, *folders], wanted, int(size[1]) * _UNITS[size[2]]

    def _fetch(self, url, partial, most, name, progress):
        """Write the body of ``url`` to ``partial``, behind what is there already."""
        from ggfw.errors import SourceError

        have = partial.stat().st_size if partial.exists() else 0
        request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
        opener = urllib.request.build_opener(_Redirects)
        try:
            answer = opener.open(request, timeout=60)
        except urllib.error.HTTPError as exc:
            if (
                exc.code == 416 and have
            ):  # nothing is missing, or the file has changed: the checksum will tell
                return
            raise
        with answer:
            if answer.status != 206:
                have = 0
            length = answer.headers.get("Content-Length")
            total = have + int(length) if length is not None else None
            with partial.open("r+b" if have else "wb") as out:
                out.seek(have)
                while block := answer.read(_BLOCK):
                    have += len(block)
                    if have > most or (total or 0) > most:
                        out.close()
                        partial.unlink()
                        raise SourceError(f"{url} is larger than {most} bytes; raise #max= if that is right")
                    out.write(block)
                    if progress is not None:
                        progress(f"fetching {name}", have, total)
        if total is not None and have != total:
            raise OSError(f"the connection ended after {have} of {total} bytes")


class PlainUrlSource(UrlSource):
    """The same for ``http:``."""

    scheme = "http"


def sample():
    """A server of one file on this machine; gives the reference to it."""
    from contextlib import contextmanager
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    content = b"GGUF" + bytes(range(256)) * 1000

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    @contextmanager
    def serving():
        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            digest = hashlib.sha256(content).hexdigest()
            yield f"http://127.0.0.1:{server.server_port}/some/tiny.gguf#sha256={digest}&max=1M"
            server.shutdown()

    return serving()


@hookimpl
def ggfw_register_model_sources():
    return [
        ModelSource(name="https", load=UrlSource, summary="https://HOST/PATH.gguf, a GGUF file by URL"),
        ModelSource(name="http", load=PlainUrlSource, sample=sample, summary="the same, with a checksum"),
    ]

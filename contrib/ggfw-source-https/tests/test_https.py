"""The source against a server of its own: whole, interrupted, too large, damaged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from ggfw_source_https import PlainUrlSource, UrlSource, ggfw_register_model_sources

from ggfw.errors import InvalidRequest, SourceError
from ggfw.testing import check_model_source

CONTENT = b"GGUF" + bytes(range(256)) * 20000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    ranges: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            ranges.append(asked)
            begin = int(asked[6:-1]) if asked else 0
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(len(CONTENT) - begin))
            self.end_headers()
            end = len(CONTENT) // 2 if "cut" in self.path and not asked else None
            self.wfile.write(CONTENT[begin:end])

        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield f"//127.0.0.1:{made.server_port}", ranges
        made.shutdown()


def test_conforms() -> None:
    for source in ggfw_register_model_sources():
        check_model_source(source)


def test_an_interrupted_download_goes_on(server: tuple[str, list[str]], tmp_path: Path) -> None:
    at, ranges = server
    reference = f"{at}/cut.gguf#sha256={DIGEST}"
    with pytest.raises(SourceError, match="goes on"):
        PlainUrlSource(tmp_path).resolve(reference)
    assert not list(tmp_path.rglob("*.gguf"))
    (path,) = PlainUrlSource(tmp_path).resolve(reference)
    assert path.read_bytes() == CONTENT and ranges == ["", f"bytes={len(CONTENT) // 2}-"]
    PlainUrlSource(tmp_path).resolve(reference)
    assert len(ranges) == 2, "a file that is there is not fetched"


@pytest.mark.parametrize(("option", "why"), [("max=1M", "larger"), (f"sha256={'0' * 64}", "checksum")])
def test_nothing_is_left_of_what_is_refused(
    server: tuple[str, list[str]], tmp_path: Path, option: str, why: str
) -> None:
    with pytest.raises(SourceError, match=why):
        PlainUrlSource(tmp_path).resolve(f"{server[0]}/a.gguf#{option}")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "rest",
    [
        "//h/../a.gguf",
        "//h/%2e%2e/a.gguf",
        "//h/a%2fb.gguf",
        "//h/a.bin",
        "//u:p@h/a.gguf",
        "//h/a.gguf#x=1",
        "//h",
    ],
)
def test_malformed_references(tmp_path: Path, rest: str) -> None:
    with pytest.raises(InvalidRequest):
        UrlSource(tmp_path).resolve(rest)


def test_plain_http_needs_a_checksum(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="sha256"):
        PlainUrlSource(tmp_path).resolve("//example.com/a.gguf")

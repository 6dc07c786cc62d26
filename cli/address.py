"""Addresses of servers: ``HOST``, ``HOST:PORT``, a URL, or ``unix:///PATH``, as ``GGFW_HOST`` may hold them."""

from __future__ import annotations

from urllib.parse import urlsplit

from ggfw.errors import InvalidRequest
from ggfw.records import dataclass

__all__ = ["Address"]

#: Ports of URLs that name none.
_PORTS = {"http": 80, "https": 443}
_FORMS = "HOST, HOST:PORT, http://HOST:PORT or unix:///PATH"


@dataclass(frozen=True)
class Address:
    """Where a server is, or is to be.

    Args:
        scheme: ``http``, ``https`` or ``unix``.
        host: name or number, without brackets.
        port: None where the text names none.
        path: of the socket, or what stands in front of all paths of the server.
    """

    scheme: str
    host: str = ""
    port: int | None = None
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address.

        Raises:
            InvalidRequest: it is none; one sentence.
        """
        given = text.strip()
        if given.startswith("unix:"):
            path = given.removeprefix("unix:")
            path = path.removeprefix("//") if path.startswith("//") else path
            if not path.startswith("/"):
                raise _wrong(text, "a Unix socket needs an absolute path")
            return cls("unix", path=path)
        scheme, separator, rest = given.partition("://")
        if not separator:
            scheme, rest = "", given
        elif scheme.lower() not in _PORTS:
            raise _wrong(text, f"there is no scheme {scheme!r} here")
        if not separator and rest.count(":") > 1 and not rest.startswith("["):  # an address of IPv6 alone
            rest = f"[{rest}]"
        try:
            parts = urlsplit(f"//{rest}")
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise _wrong(text, str(error)) from None
        if parts.query or parts.fragment or parts.username is not None:
            raise _wrong(text, "it has more than an address has")
        if any(letter.isspace() for letter in rest) or (not host and (scheme or port is None)):
            raise _wrong(text, "it names no host")
        if port is None and scheme:
            port = _PORTS[scheme.lower()]
        return cls(scheme.lower() or "http", host or "127.0.0.1", port, parts.path.rstrip("/"))

    def url(self, default_port: int) -> str:
        """The URL that a client asks; an address that means all of a machine's own is this machine."""
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        host = f"[{host}]" if ":" in host else host
        port = default_port if self.port is None else self.port
        shown = "" if port == _PORTS[self.scheme] else f":{port}"
        return f"{self.scheme}://{host}{shown}{self.path}"


def _wrong(text: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{text!r:.200} is no address of a server ({why}); expected {_FORMS}", "host")

"""HTTP over a Unix socket; in a module of its own, since only those who use one need it."""

from __future__ import annotations

import socket
from http.client import HTTPConnection

__all__ = ["UnixConnection"]


class UnixConnection(HTTPConnection):
    """A connection to the server that listens on a path."""

    def __init__(self, path: str, timeout: float | None = None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)

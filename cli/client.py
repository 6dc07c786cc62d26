"""A running server, as the verbs see it: where it is, and asking it.

The server is that of ``GGFW_HOST`` (``host``, ``host:port``, a URL or ``unix:///path``), else whatever ggfw answers at
127.0.0.1 on ``GGFW_PORT`` (default 8080). ``--local`` (``GGFW_LOCAL=1``) leaves it out. ``GGFW_API_KEY`` is its key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ggfw.cli.address import Address
from ggfw.cli.settings import setting
from ggfw.errors import GgfwError

if TYPE_CHECKING:
    from http.client import HTTPResponse

__all__ = ["Server", "ServerError", "facts", "find_server", "local_option"]

#: Seconds that a server which nobody named may take to say that it is there.
PATIENCE = 0.5

local_option = setting("--local", is_flag=True, help="Take no notice of a running server.")


class ServerError(GgfwError):
    """A server refused a request, or is out of reach."""


class Server:
    """One server.

    Args:
        url: its address; http://127.0.0.1:8080 or unix:///run/ggfw.sock for example.
        key: API key, or None.
        named: whether the user named it; else it was found on the default port.
    """

    def __init__(self, url: str, key: str | None = None, *, named: bool = True) -> None:
        self._at = Address.parse(url)
        self.url = url.rstrip("/")
        self.named = named
        self._key = key

    def ask(
        self, method: str, path: str, body: Any = None, *, timeout: float | None = 600.0
    ) -> dict[str, Any]:
        """Send a request; returns the JSON object of the answer, empty where there is none.

        Raises:
            ServerError: the server refused it, or is out of reach; the sentence is the server's own.
        """
        with self.open(method, path, body, timeout=timeout) as answer:
            data = answer.read()
        if not data.strip():
            return {}
        try:
            found = json.loads(data)
        except ValueError:
            raise ServerError(f"{self.url}{path} answered with something that is no JSON") from None
        return found if isinstance(found, dict) else {"answer": found}

    @contextmanager
    def open(
        self, method: str, path: str, body: Any = None, *, timeout: float | None = 600.0
    ) -> Iterator[HTTPResponse]:
        """Send a request and give the response, to be read while it comes; it is closed at the end."""
        # 15 ms that a start without a server need not spend
        from http.client import HTTPConnection, HTTPException, HTTPSConnection

        at, prefix = self._at, self._at.path
        if at.scheme == "unix":
            from ggfw.cli.unix_client import UnixConnection

            connection: HTTPConnection = UnixConnection(at.path, timeout)
            prefix = ""
        else:
            make = HTTPSConnection if at.scheme == "https" else HTTPConnection
            connection = make(at.host, at.port, timeout=timeout)
        headers = {"Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            try:
                connection.request(method, prefix + path, data, headers)
                answer = connection.getresponse()
            except (OSError, HTTPException) as exc:
                raise ServerError(
                    f"the server at {self.url} does not answer ({exc or type(exc).__name__}); {_way_out()}"
                ) from exc
            if answer.status >= 400:
                raise ServerError(f"{self.url}: {_reason(answer)}")
            yield answer
        finally:
            connection.close()

    def models(self) -> list[dict[str, Any]]:
        """The models it knows, as Ollama's ``/api/tags`` lists them."""
        return list(self.ask("GET", "/api/tags").get("models") or [])

    def knows(self, name: str) -> str | None:
        """The server's own name of a model, or None; case and ``:latest`` do not count.

        A name that its list lacks is asked for: what a model was called when the server was started is another name.
        """
        from urllib.parse import quote

        wanted = name.lower().removesuffix(":latest")
        names = [str(row["name"]).removesuffix(":latest") for row in self.models()]
        own = next((own for own in names if own.lower() == wanted), None)
        if own is not None or len(name) > 200 or len(name.split()) != 1:
            return own
        try:
            found = self.ask("GET", f"/v1/models/{quote(name, safe='')}").get("id")
        except ServerError:
            return None
        return found if found in names else None


def facts(model: dict[str, Any]) -> dict[str, Any]:
    """What a server's lists say of a model, under the names that the verbs use; see :meth:`Server.models`."""
    details = model.get("details") or {}
    return {
        "size_bytes": model.get("size") or 0,
        "architecture": details.get("family") or "",
        "quant": details.get("quantization_level") or "",
    }


def _way_out() -> str:
    """What to do when no server answers; some verbs can do without one."""
    import click

    context = click.get_current_context(silent=True)
    names = {param.name for param in context.command.params} if context is not None else set()
    return "start it with `ggfw serve`" + (", or work without one with --local" if "local" in names else "")


def _reason(answer: HTTPResponse) -> str:
    """The sentence in an error's body, in whichever family's shape."""
    text = answer.read(65536).decode("utf-8", "replace")
    try:
        found = json.loads(text)
        error = found.get("error", found)
        said = error if isinstance(error, str) else error.get("message")
    except (ValueError, AttributeError):
        said = None
    hint = " (GGFW_API_KEY holds the key)" if answer.status == 401 else ""
    return f"{said or f'{answer.status} {answer.reason}'}{hint}"


def find_server(local: bool) -> Server | None:
    """Return the server that the verbs are to use, or None.

    Args:
        local: the user wants none.

    Raises:
        InvalidRequest: ``GGFW_HOST`` is no address.
        ServerError: the server of ``GGFW_HOST`` does not answer.
    """
    if local:
        return None
    host, key = os.environ.get("GGFW_HOST", "").strip(), os.environ.get("GGFW_API_KEY")
    port = os.environ.get("GGFW_PORT", "").strip() or "8080"
    if host:
        server = Server(_url(host, port), key)
        server.ask("GET", "/api/version", timeout=10.0)
        return server
    if not port.isdigit() or port == "0" or not _listens(int(port)):
        return None
    server = Server(f"http://127.0.0.1:{port}", key, named=False)
    try:
        return server if "ggfw" in server.ask("GET", "/api/version", timeout=PATIENCE) else None
    except ServerError:
        return None


def _listens(port: int) -> bool:
    """Whether anything listens on this port of this machine."""
    import socket

    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
    except (OSError, OverflowError):
        return False
    return True


def _url(host: str, port: str) -> str:
    return Address.parse(host).url(int(port) if port.isdigit() else 8080)

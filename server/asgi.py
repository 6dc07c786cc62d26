"""Our application under another framework: an ASGI callable that can be mounted, for instance in a FastAPI application.

What Sanic's own ASGI side leaves to the server that runs it is done here: it is started by the first request where the
host passes on no lifespan events (mounted applications get none), the part of the path that the host has taken is left
out, bodies have their bound, and a client that leaves ends its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from sanic import Sanic
from sanic.asgi import ASGIApp
from sanic.exceptions import PayloadTooLarge

__all__ = ["Asgi"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Asgi:
    """An ASGI 3 application.

    Args:
        app: what :func:`ggfw.server.create_app` gave. The host's logging is not touched.
    """

    def __init__(self, app: Sanic) -> None:
        self.app = app
        self._starting = asyncio.Lock()
        self._started = self._prepared = False

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request, or the events of the host's start and end."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self.start()
            await self._request(scope, receive, send)
        else:
            raise RuntimeError(f"this application speaks HTTP, not {scope['type']}")

    async def start(self) -> None:
        """Get ready; called by the first request where nobody does before."""
        async with self._starting:
            if self._started:
                return
            if not self._prepared:  # routes are put in order once; a host may start and end again and again
                self.app.asgi = True
                await self.app._startup()
                self._prepared = True
            await self.app._server_event("init", "before")
            await self.app._server_event("init", "after")
            self._started = True

    async def stop(self) -> None:
        """End what :meth:`start` began; a host without lifespan events calls it at its end."""
        if self._started:
            self._started = False
            await self.app._server_event("shutdown", "before")
            await self.app._server_event("shutdown", "after")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            kind = (await receive())["type"]
            work = self.start if kind == "lifespan.startup" else self.stop
            try:
                await work()
            except Exception as error:
                await send({"type": f"{kind}.failed", "message": str(error)})
                return
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return

    async def _request(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") or quote(scope["path"]).encode()
        taken = quote(scope.get("root_path", "").rstrip("/")).encode()
        if taken and (raw == taken or raw.startswith(taken + b"/")):
            raw = raw[len(taken) :] or b"/"
        body = _Body(receive, int(self.app.config.REQUEST_MAX_SIZE), b"/api/blobs/" in raw)

        async def pass_on(message: Message) -> None:
            if message["type"] == "http.response.start":  # names in lower case, as the protocol wants them
                headers = [(name.lower(), value) for name, value in message["headers"]]
                message = {**message, "headers": headers}
            await send(message)

        async def answer() -> None:
            await (await ASGIApp.create(self.app, {**scope, "raw_path": raw}, body.next, pass_on))()

        work = asyncio.ensure_future(answer())
        watch = asyncio.ensure_future(body.pump())
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():  # the client has gone
                work.cancel()
            await work
        except asyncio.CancelledError:
            work.cancel()
            if not body.gone:
                raise
        finally:
            watch.cancel()


class _Body:
    """A request's body, read ahead by a little so that a client that leaves is noticed.

    Args:
        receive: the server's.
        limit: bytes that it may have.
        endless: whether it has no bound (files).
    """

    def __init__(self, receive: Receive, limit: int, endless: bool) -> None:
        self._receive, self._limit, self._endless = receive, limit, endless
        self._messages: asyncio.Queue[Message] = asyncio.Queue(2)
        self._n = 0
        self.gone = False

    async def pump(self) -> None:
        """Take the server's messages until the client has gone."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                return
            await self._messages.put(message)

    async def next(self) -> Message:
        """The next piece.

        Raises:
            PayloadTooLarge: there is more than there may be.
        """
        message = await self._messages.get()
        self._n += len(message.get("body", b""))
        if self._n > self._limit and not self._endless:
            raise PayloadTooLarge("the body is larger than this server takes")
        return message

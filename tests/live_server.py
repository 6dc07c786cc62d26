"""An application on a real socket, in a thread of the test process."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

from sanic import Sanic


class LiveServer:
    """Context manager: ``app`` answers at ``url`` while it is entered."""

    def __init__(self, app: Sanic) -> None:
        self.app = app
        self._sock = socket.socket()
        self._sock.bind(("127.0.0.1", 0))
        self.port = self._sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LiveServer:
        self._thread.start()
        assert self._ready.wait(20), "the server did not start"
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *error: object) -> None:
        self.app.config.GRACEFUL_SHUTDOWN_TIMEOUT = 0.2  # what a test has left open is not worth waiting for
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server: Any = await self.app.create_server(sock=self._sock, return_asyncio_server=True)
        await server.startup()
        await server.before_start()
        await server.start_serving()
        await server.after_start()
        self._ready.set()
        await self._stop.wait()
        await server.before_stop()
        server.close()
        for connection in list(server.connections):
            connection.abort()
        await server.after_stop()
        await asyncio.sleep(0.05)  # handlers of aborted connections run to their end

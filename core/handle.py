"""A handle on a submitted request: its events, its result, and the way to cancel it. Safe in any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

from ggfw.chat.deltas import Delta, coalesce
from ggfw.result import Result


class Handle:
    """What :meth:`ggfw.engine.Engine.submit` returns.

    Iterate (``for`` or ``async for``) to get the deltas as they come; whatever has piled up since the last one was
    taken arrives joined, so a slow reader costs the engine nothing. Iteration ends with the generation and raises its
    error. :meth:`result` waits for the end; so does ``await handle``. Deltas go to one reader only.

    Args:
        id: of the request.
        on_cancel: called after :meth:`cancel`, to wake the engine.
    """

    def __init__(self, id: str, on_cancel: Callable[[], None]) -> None:
        self.id = id
        self._on_cancel = on_cancel
        self._changed = threading.Condition(threading.Lock())
        self._pending: list[Delta] = []
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._done = False
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._canceled = False

    # -- for the caller -------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether the request has ended, well or not."""
        return self._done

    @property
    def canceled(self) -> bool:
        """Whether :meth:`cancel` was called before the end."""
        return self._canceled

    def cancel(self) -> None:
        """Ask the engine to stop this request within one step; no effect when it has ended."""
        if not self._done and not self._canceled:
            self._canceled = True
            self._on_cancel()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end.

        Args:
            timeout: seconds to wait at most; the request itself goes on.

        Raises:
            TimeoutError: it has not ended yet.
            GenerationError: it failed, was canceled or its deadline passed (``partial`` holds the result so far).
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._done, timeout):
                raise TimeoutError(f"request {self.id} has not finished within {timeout:g} s")
        return self._outcome()

    def __iter__(self) -> Iterator[Delta]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._done)
                taken, done = self._take()
            yield from taken
            if done:
                self._outcome()
                return

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while True:
            with self._changed:
                waiter = None if self._pending or self._done else self._wait()
                taken, done = self._take()
            if waiter is not None:
                await waiter
                continue
            for delta in taken:
                yield delta
            if done:
                self._outcome()
                return

    def __await__(self) -> Generator[Any, None, Result]:
        while True:
            with self._changed:
                waiter = None if self._done else self._wait()
            if waiter is None:
                return self._outcome()
            yield from waiter.__await__()

    # -- for the engine's thread ----------------------------------------------------------------------------------

    def _push(self, deltas: list[Delta]) -> None:
        with self._changed:
            self._pending.extend(deltas)
            self._wake()

    def _finish(self, result: Result | None, error: BaseException | None) -> None:
        with self._changed:
            if self._done:
                return
            self._result, self._error, self._done = result, error, True
            self._wake()

    # -- both; the lock is held -----------------------------------------------------------------------------------

    def _take(self) -> tuple[list[Delta], bool]:
        taken, self._pending = self._pending, []
        return (coalesce(taken) if len(taken) > 1 else taken), self._done

    def _wait(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.append((loop, future))
        return future

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for loop, future in waiters:
                try:
                    loop.call_soon_threadsafe(_release, future)
                except RuntimeError:  # that event loop is closed: its reader is gone
                    continue

    def _outcome(self) -> Result:
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

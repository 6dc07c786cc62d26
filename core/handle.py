"""A handle on a submitted request: its events, its result, and the way to cancel it. Safe in any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from ggfw.chat.deltas import Delta, coalesce
from ggfw.request import check_timeout
from ggfw.result import Result

if TYPE_CHECKING:
    import asyncio

    Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]

#: Seconds between two wakings of a reader in an event loop. They take of the processors what steps would have had (a
#: twentieth of eight streams of a small model, were each token to wake its reader), and an eye sees nothing of it.
PAUSE = 0.02


class Handle:
    """What :meth:`ggfw.engine.Engine.submit` returns.

    Iterate (``for`` or ``async for``) to get the deltas as they come; whatever has piled up since the last one was
    taken arrives joined, so a slow reader costs the engine nothing. ``async for`` is woken for the first delta at once,
    and then every ``PAUSE`` at most. Iteration ends with the generation and raises its error. :meth:`result` waits for
    the end; so does ``await handle``. Deltas go to one reader only.

    Args:
        id: of the request.
        on_cancel: called after :meth:`cancel`, to wake the engine.
    """

    def __init__(self, id: str, on_cancel: Callable[[], None]) -> None:
        self.id = id
        self._on_cancel = on_cancel
        self._lock = threading.Lock()
        self._pending: list[Delta] = []
        # Who waits for deltas and who for the end are kept apart: waiting for the result must not wake for each token.
        self._readable = threading.Condition(self._lock)
        self._n_readers = 0
        self._ended = threading.Event()
        self._async_readers: list[Waiter] = []
        self._async_enders: list[Waiter] = []
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
            InvalidRequest: ``timeout`` is no number of seconds.
            TimeoutError: it has not ended yet.
            GenerationError: it failed, was canceled or its deadline passed (``partial`` holds the result so far).
        """
        timeout = check_timeout(timeout)
        if not self._ended.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            raise TimeoutError(f"request {self.id} has not finished within {timeout:g} s")
        return self._outcome()

    def __iter__(self) -> Iterator[Delta]:
        while True:
            with self._lock:
                self._n_readers += 1
                while not (self._pending or self._done):
                    self._readable.wait()
                self._n_readers -= 1
                taken, done = self._take()
            yield from taken
            if done:
                self._outcome()
                return

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while True:
            with self._lock:
                waiter = None if self._pending or self._done else _waiter(self._async_readers)
                taken, done = self._take()
            if waiter is not None:
                await waiter[1]
                continue
            due = time.monotonic() + PAUSE
            for delta in taken:
                yield delta
            if done:
                self._outcome()
                return
            await self._rest(due - time.monotonic())

    async def _rest(self, seconds: float) -> None:
        """Wait so long, or until the end."""
        with self._lock:
            if self._done or seconds <= 0:
                return
            waiter = _waiter(self._async_enders)
        loop, future = waiter
        timer = loop.call_later(seconds, _release, future)
        try:
            await future
        finally:
            timer.cancel()
            self._forget(waiter)

    def _forget(self, waiter: Waiter) -> None:
        """Nobody waits there any more: not all are woken by the end."""
        with self._lock:
            if waiter in self._async_enders:
                self._async_enders.remove(waiter)

    def __await__(self) -> Generator[Any, None, Result]:
        while True:
            with self._lock:
                waiter = None if self._done else _waiter(self._async_enders)
            if waiter is None:
                return self._outcome()
            try:
                yield from waiter[1].__await__()
            finally:
                self._forget(waiter)

    # -- for the engine's thread ----------------------------------------------------------------------------------

    def _push(self, deltas: list[Delta]) -> None:
        with self._lock:
            self._pending += deltas
            if self._n_readers:
                self._readable.notify_all()
            waiters, self._async_readers = self._async_readers, []
        if waiters:
            _wake(waiters)

    def _finish(self, result: Result | None, error: BaseException | None) -> None:
        with self._lock:
            if self._done:
                return
            self._result, self._error, self._done = result, error, True
            self._readable.notify_all()
            waiters = self._async_readers + self._async_enders
            self._async_readers, self._async_enders = [], []
        self._ended.set()
        _wake(waiters)

    # -- both; the lock is held -----------------------------------------------------------------------------------

    def _take(self) -> tuple[list[Delta], bool]:
        taken, self._pending = self._pending, []
        return (coalesce(taken) if len(taken) > 1 else taken), self._done

    def _outcome(self) -> Result:
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


def _waiter(waiters: list[Waiter]) -> Waiter:
    """The caller's event loop and a future in it, added to ``waiters``."""
    import asyncio  # takes 20 ms that programs without event loops need not spend

    loop = asyncio.get_running_loop()
    waiters.append((loop, loop.create_future()))
    return waiters[-1]


def _wake(waiters: list[Waiter]) -> None:
    for loop, future in waiters:
        try:
            loop.call_soon_threadsafe(_release, future)
        except RuntimeError:  # that event loop is closed: its reader is gone
            continue


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

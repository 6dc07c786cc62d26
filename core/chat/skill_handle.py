"""The handle on an answer with skills: like :class:`ggfw.handle.Handle`, over several requests."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from ggfw.chat.deltas import Delta
from ggfw.chat.rounds import Rounds
from ggfw.errors import GenerationError
from ggfw.handle import Handle
from ggfw.result import Result

if TYPE_CHECKING:
    from ggfw.request import Request


class SkillHandle:
    """One answer, whose ``load_skill`` calls are answered on the way.

    Iterate it (``for`` or ``async for``), call :meth:`result`, or await it, as a :class:`ggfw.handle.Handle`. The
    reader drives it: the next turn is asked for by whoever reads, or waits, when the last one has ended.

    Args:
        submit: queues a request.
        rounds: in its first state.

    Raises:
        What ``submit`` and rendering raise for the first turn.
    """

    def __init__(self, submit: Callable[[Request], Handle], rounds: Rounds) -> None:
        self._submit, self._rounds = submit, rounds
        self._lock = threading.RLock()
        self._canceled = False
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._handle = submit(rounds.next())
        #: Of the answer; all its requests have it.
        self.id = self._handle.id

    @property
    def done(self) -> bool:
        """Whether the answer has ended, well or not, and has been read to its end."""
        return self._result is not None or self._error is not None

    @property
    def canceled(self) -> bool:
        """Whether :meth:`cancel` was called before the end."""
        return self._canceled

    def cancel(self) -> None:
        """Stop the turn that runs within one step; no other begins."""
        if not self.done:
            self._canceled = True
            self._handle.cancel()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end; deltas that nobody has taken are passed over.

        Args:
            timeout: seconds to wait at most for each turn; the answer itself goes on.

        Raises:
            TimeoutError: it has not ended yet.
            GenerationError: a turn failed, was canceled or its deadline passed (``partial`` holds the result so far).
            GgfwError: the next turn could not be asked for, e.g. because the context is full.
        """
        while not self.done:
            if timeout is not None:
                self._wait(timeout)
            self._drain()
        return self._outcome()

    def _wait(self, timeout: float) -> None:
        try:
            self._handle.result(timeout)
        except GenerationError:  # raised again when its deltas have been taken in
            pass

    def _drain(self) -> None:
        """Take one turn to its end."""
        handle = self._handle
        try:
            for delta in handle:
                self._see(delta)
        except Exception as error:
            self._fail(handle, error)
        else:
            self._go_on(handle)

    def __iter__(self) -> Iterator[Delta]:
        while not self.done:
            handle = self._handle
            try:
                for delta in handle:
                    yield from self._see(delta)
            except Exception as error:
                self._fail(handle, error)
            else:
                self._go_on(handle)
        self._outcome()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        import asyncio

        while not self.done:
            handle = self._handle
            try:
                async for delta in handle:
                    for shown in self._see(delta):
                        yield shown
            except Exception as error:
                self._fail(handle, error)
            else:
                # Rendering and encoding take a while: not in the event loop.
                await asyncio.to_thread(self._go_on, handle)
        self._outcome()

    def __await__(self) -> Generator[Any, None, Result]:
        return self._drained().__await__()

    async def _drained(self) -> Result:
        async for _ in self:
            pass
        return self._outcome()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _see(self, delta: Delta) -> list[Delta]:
        with self._lock:
            return list(self._rounds.see(delta))

    def _go_on(self, ended: Handle) -> None:
        """The turn of ``ended`` is over: begin the next one, or know the result. The second reader finds it done."""
        with self._lock:
            if ended is not self._handle or self.done:
                return
            try:
                if not self._rounds.end(ended.result()):
                    self._result = self._rounds.result()
                    return
                self._handle = self._submit(self._rounds.next())
            except Exception as error:
                self._error = error
                return
        if self._canceled:
            self._handle.cancel()

    def _fail(self, ended: Handle, error: Exception) -> None:
        with self._lock:
            if ended is not self._handle or self.done:
                return
            if isinstance(error, GenerationError):
                error.partial = self._rounds.partial(error.partial)
            self._error = error

    def _outcome(self) -> Result:
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

"""Answers under way for one HTTP request: submitted, read, reported, and canceled when the client has gone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sanic import Request

from ggfw.chat.deltas import Delta
from ggfw.errors import ConstraintFailed, GgfwError
from ggfw.library import Model
from ggfw.result import Result
from ggfw.server.generation import Choice, Generation, check_room, submit, with_preset
from ggfw.server.pool import Lease
from ggfw.server.state import State, served
from ggfw.server.streams import COMMENT, EVENTS, begin


@dataclass(frozen=True)
class Progress:
    """How far a request has come.

    Args:
        total: prompt tokens.
        cache: of them, those that were in the cache.
        processed: of them, those that are through.
        drawn: tokens drawn so far.
        prompt_ms, drawn_ms: time spent on either.
    """

    total: int
    cache: int
    processed: int
    drawn: int
    prompt_ms: float
    drawn_ms: float


class Answers:
    """What :func:`answering` gives: one handle per choice.

    Attributes:
        model, id: which model answers, and what it is called here.
        requests: the engine's, one per choice.
        load_ms: what loading it took for this request.
    """

    def __init__(
        self,
        request: Request,
        lease: Lease,
        choices: Sequence[Choice],
        streaming: bool,
        forms: Sequence[str | None],
    ) -> None:
        self.lease = lease
        self.model: Model = lease.model
        self.id = lease.id
        self.load_ms = lease.load_ms
        self.requests = [choice.request for choice in choices]
        self.handles = [choice.handle for choice in choices]
        self._request, self._streaming = request, streaming
        self._forms = forms  # per choice, the field that says what its answer looks like
        self._state: State = served(request)
        self._reported: set[int] = set()

    @property
    def n(self) -> int:
        """Choices."""
        return len(self.handles)

    async def results(self) -> list[Result]:
        """Wait for all choices. The first failure ends them all."""
        tasks = [asyncio.ensure_future(_result(handle)) for handle in self.handles]
        try:
            results = await asyncio.gather(*tasks)
        except GgfwError as error:
            self._failed(0, error)
            raise
        finally:
            for task in tasks:
                task.cancel()
        for index, result in enumerate(results):
            self._finished(index, result)
        return results

    async def pieces(self) -> AsyncIterator[tuple[int, Delta | Result]]:
        """(choice, delta) as they come; (choice, result) when one ends. A slow reader gets longer pieces."""
        if self.n == 1:
            async for delta in self._watched(0):
                yield 0, delta
            yield 0, self._finished(0, self.handles[0].result(0))
            return
        # One place per choice: who reads slowly lets the pieces pile up, joined, in the handles.
        queue: asyncio.Queue[tuple[int, Any]] = asyncio.Queue(1)
        tasks = [asyncio.ensure_future(self._pump(index, queue)) for index in range(self.n)]
        try:
            left = self.n
            while left:
                index, item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, Result):
                    left -= 1
                    self._finished(index, item)
                yield index, item
        finally:
            for task in tasks:
                task.cancel()

    async def _watched(self, index: int) -> AsyncIterator[Delta]:
        try:
            async for delta in self.handles[index]:
                yield delta
        except GgfwError as error:
            self._failed(index, error)
            raise

    async def _pump(self, index: int, queue: asyncio.Queue[tuple[int, Any]]) -> None:
        try:
            async for delta in self._watched(index):
                await queue.put((index, delta))
            await queue.put((index, self.handles[index].result(0)))
        except GgfwError as error:
            await queue.put((index, error))

    def progress(self, index: int = 0) -> Progress | None:
        """How far a choice has come; None when it has ended."""
        request = self.requests[index]
        for work in self.model.engine.scheduler:
            if work.request is request:
                start, first = work.t_start, work.t_first
                now = time.perf_counter()
                return Progress(
                    total=work.n_prompt,
                    cache=work.n_cached,
                    processed=min(work.n_fed, work.n_prompt),
                    drawn=len(work.tokens),
                    prompt_ms=((first or now) - start) * 1e3 if start else 0.0,
                    drawn_ms=(work.t_last - first) * 1e3 if first else 0.0,
                )
        return None

    def _finished(self, index: int, result: Result) -> Result:
        if index not in self._reported:
            self._reported.add(index)
            ids = self.requests[index].prompt
            self._state.finished(
                self._request,
                self.id,
                result,
                streaming=self._streaming,
                prompt=lambda: self.model.detokenize(ids, special=True),
            )
        return result

    def _failed(self, index: int, error: BaseException) -> None:
        self.lease.failed(error)
        if isinstance(error, ConstraintFailed) and error.param is None:
            error.param = self._forms[index]
        if index not in self._reported:
            self._reported.add(index)
            self._state.failed(self._request, self.id, error)

    def abandoned(self) -> None:
        """The client has gone: say so for every choice that was not reported otherwise."""
        for index in range(self.n):
            if index not in self._reported:
                self._reported.add(index)
                self._state.abandoned(self._request, self.id)


async def _result(handle: Any) -> Result:
    return await handle


def _submit(model: Model, state: State, wanted: Generation | Sequence[Generation], id: str) -> list[Choice]:
    if isinstance(wanted, Generation):
        return submit(model, state, wanted, id)
    check_room(model, sum(one.n for one in wanted), "prompt" if len(wanted) > 1 else "n")
    choices: list[Choice] = []
    try:
        for n, one in enumerate(wanted):
            choices += submit(model, state, one, f"{id}-p{n}" if n else id)
    except BaseException:
        _cancel(choices)
        raise
    return choices


def _cancel(choices: Sequence[Choice]) -> None:
    for choice in choices:
        choice.handle.cancel()


async def _submitted(
    model: Model, state: State, wanted: Generation | Sequence[Generation], id: str
) -> list[Choice]:
    """Submit in a thread: rendering and encoding a long conversation must not stop the event loop."""
    announced = model.engine.announce()

    def submitting() -> list[Choice]:
        with announced:
            return _submit(model, state, wanted, id)

    work = asyncio.ensure_future(asyncio.to_thread(submitting))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # The thread goes on; what it submits has nobody who waits for it.
        work.add_done_callback(lambda done: _cancel(done.result()) if done.exception() is None else None)
        raise


@contextlib.asynccontextmanager
async def leasing(
    request: Request,
    name: str | None,
    *,
    keep_alive: float | None = None,
    beat: Callable[[], str] | None = None,
    content_type: str = EVENTS,
) -> AsyncIterator[Lease]:
    """Use a model, as :meth:`ggfw.server.pool.Pool.lease` does; a stream shows meanwhile that it is alive.

    Args:
        beat: gives what a stream sends after each silence while the model is loaded; None: the answer is no stream.
        content_type: of the stream.
    """
    state = served(request)
    context = state.pool.lease(name, keep_alive=keep_alive)
    if beat is None:
        async with context as lease:
            yield lease
        return
    async with contextlib.AsyncExitStack() as stack:
        entering = asyncio.ensure_future(stack.enter_async_context(context))
        try:
            while not (await asyncio.wait((entering,), timeout=state.heartbeat))[0]:
                await (await begin(request, content_type)).send(beat())
        except BaseException:
            entering.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await entering
            raise
        yield entering.result()


@contextlib.asynccontextmanager
async def answering(
    request: Request,
    name: str | None,
    wanted: Generation | Sequence[Generation],
    *,
    id: str,
    streaming: bool = False,
    keep_alive: float | None = None,
    lease: Lease | None = None,
) -> AsyncIterator[Answers]:
    """Submit a generation to the model called ``name`` and read its answers inside.

    What is still under way at the end is canceled: a client that has gone cancels the handler, and with it this.

    Args:
        wanted: one, or several; their choices are numbered through.
        id: of the answer, for client and log.
        keep_alive: see :meth:`ggfw.server.pool.Pool.lease`.
        lease: of the model, where the caller has one already.

    Raises:
        ModelNotFound, InvalidRequest, QueueFull: before anything runs.
    """
    state = served(request)
    async with contextlib.AsyncExitStack() as stack:
        held: Lease
        if lease is not None:
            held = lease
        else:
            beat = (lambda: COMMENT) if streaming else None
            held = await stack.enter_async_context(leasing(request, name, keep_alive=keep_alive, beat=beat))
        preset = held.entry.preset
        own = getattr(request.ctx, "ggfw_key", None) if state.isolate_cache else None
        if isinstance(wanted, Generation):
            wanted = replace(with_preset(wanted, preset), cache_key=own)
        else:
            wanted = [replace(with_preset(one, preset), cache_key=own) for one in wanted]
        choices = await _submitted(held.model, state, wanted, id)
        several = [wanted] if isinstance(wanted, Generation) else wanted
        forms = [one.form for one in several for _ in range(one.n)]
        answers = Answers(request, held, choices, streaming, forms)
        try:
            yield answers
        except asyncio.CancelledError:
            answers.abandoned()
            raise
        finally:
            _cancel(choices)

"""The engine: one thread per loaded model that runs the steps of all its requests.

Callers submit requests and get handles; the scheduler says what goes into the next step; the executor runs it in one
call; what it drew goes through decoder, stop strings and parser to the handles. The engine never waits for a reader.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from ggfw.cache import OutOfPages
from ggfw.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    GenerationCanceled,
    GenerationError,
    InvalidRequest,
    NonFiniteLogits,
    QueueFull,
)
from ggfw.handle import Handle
from ggfw.output import Output
from ggfw.request import Request, check_logprobs, check_max_tokens, with_seed
from ggfw.running import Running
from ggfw.sampling import SamplerFactory, StopStrings, TokenLogprob, token_logprob
from ggfw.sampling.constrained import ConstrainedSampler
from ggfw.sampling.constraint import MaskedConstraint
from ggfw.scheduler import Scheduler, Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ggfw.chat.deltas import Delta
    from ggfw.descriptors import SamplerStage
    from ggfw.model import LoadedModel
    from ggfw.sampling.arithmetic import F32

T = TypeVar("T")

#: What a job yields when it cannot go on before others have given pages back.
WAIT = object()


class Engine:
    """Runs requests on one loaded model.

    Args:
        model: the loaded model; the engine does not close it.
        n_parallel: requests that run at once; default: as many as the model was loaded for.
        max_queue: requests that may wait besides; more are refused with QueueFull.
    """

    def __init__(self, model: LoadedModel, *, n_parallel: int | None = None, max_queue: int = 64) -> None:
        self.model = model
        self.max_queue = max_queue
        self.n_steps = 0
        executor = model.executor
        if n_parallel is None:
            n_parallel = getattr(model, "n_parallel", 1)
        self.scheduler = Scheduler(
            model.cache,
            n_parallel=n_parallel,
            max_rows=executor.max_rows,
            max_outputs=executor.max_outputs,
            chunkable=model.architecture.chunkable,
            start=self._start_or_fail,
        )
        self._inbox: deque[Running] = deque()
        self._jobs: deque[tuple[Generator[Any, None, Any], Future[Any]]] = deque()
        self._wake = threading.Condition(threading.Lock())
        self._n_open = 0  # requests that have not ended
        self._mean_ms = 0.0  # of recent requests, for retry-after
        self._step_lock = (
            threading.Lock()
        )  # so that an abort never hits the step after the one it was meant for
        self._in_step: list[Running] = []
        self._aborted = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._pid = 0  # of the process the thread lives in

    @cached_property
    def _samplers(self) -> SamplerFactory:
        """Made for the first request: the tokenizer may still be under way when the engine starts, or be unusable."""
        return SamplerFactory(self.model.tokenizer, _sampler_stages)

    # -- for callers, in any thread -------------------------------------------------------------------------------

    def submit(self, request: Request) -> Handle:
        """Queue a request.

        Raises:
            ContextLengthExceeded: the prompt leaves no room for a single token.
            InvalidRequest: an empty prompt, an id outside the vocabulary, a model that cannot generate.
            QueueFull: too many requests wait already.
            GenerationError: the model is closed, or runs in a process from which this one was forked.
        """
        self._check_process()
        limit = self._check(request)
        request.params = with_seed(request.params)
        setup = self._samplers.setup(
            request.params, ignore_eos=request.ignore_eos, n_logprobs=check_logprobs(request.logprobs)
        )
        handle = Handle(request.id, self._on_cancel)
        decoder = self.model.tokenizer.decoder(special=request.special_tokens)
        output = Output(decoder, StopStrings(request.stop), request.parser)
        work = Running(request, handle, limit, output, setup)
        with self._wake:
            if self._stopping:
                raise GenerationError("the model is closed")
            if self._n_open >= self.scheduler.n_parallel + self.max_queue:
                n = self._n_open - self.scheduler.n_parallel
                seconds = max(1.0, self._mean_ms * 1e-3 * n / self.scheduler.n_parallel)
                raise QueueFull(f"{n} requests are waiting, the most there may be; try again later", seconds)
            self._n_open += 1
            self._inbox.append(work)
            self._run_thread()
            self._wake.notify()
        return handle

    def run(self, job: Generator[Any, None, T]) -> Future[T]:
        """Run ``job`` in the engine's thread: one of its pieces (up to the next ``yield``) between two steps.

        A job that yields WAIT is resumed when something else has happened, and fails with its own OutOfPages if
        nothing else is going on.
        """
        future: Future[T] = Future()
        self._check_process()
        with self._wake:
            if self._stopping:
                raise GenerationError("the model is closed")
            self._jobs.append((job, future))
            self._run_thread()
            self._wake.notify()
        return future

    @property
    def n_running(self) -> int:
        """Requests that have been admitted and not ended."""
        return len(self.scheduler.running)

    @property
    def n_waiting(self) -> int:
        """Requests in the queue."""
        return max(0, self._n_open - len(self.scheduler.running))

    def close(self) -> bool:
        """Cancel everything and end the thread; False if that had been done before."""
        if self._forked:  # the thread exists in the parent only, and the locks may be held for ever
            first, self._stopping = not self._stopping, True
            return first
        with self._wake:
            if self._stopping:
                return False
            self._stopping = True
            thread = self._thread
            self._wake.notify()
        if thread is not None and thread is not threading.current_thread():
            self._abort(whoever=True)
            thread.join()
        return True

    @property
    def _forked(self) -> bool:
        return self._thread is not None and self._pid != os.getpid()

    def _check_process(self) -> None:
        if self._forked:
            raise GenerationError(
                f"{self.model.name} runs in process {self._pid}, from which this one was forked; "
                "load the model after forking"
            )

    # -- admission ------------------------------------------------------------------------------------------------

    def _check(self, request: Request) -> int:
        """Check a request; gives how many tokens it may draw."""
        model, n = self.model, len(request.prompt)
        wanted = check_max_tokens(request.max_tokens)
        if not (model.architecture.causal and model.architecture.cacheable):
            raise InvalidRequest(f"{model.name} makes embeddings and cannot generate text", param="model")
        if not n:
            raise InvalidRequest("the prompt has no tokens; at least one is needed", param="prompt")
        n_ctx = min(model.n_ctx, _capacity(model.cache))
        if n >= n_ctx:
            raise ContextLengthExceeded(n, n_ctx)
        if not model.architecture.chunkable and n > model.executor.max_rows:
            raise ContextLengthExceeded(n, model.executor.max_rows)
        if not 0 <= min(request.prompt) <= max(request.prompt) < model.n_vocab:
            bad = next(i for i in request.prompt if not 0 <= i < model.n_vocab)
            raise InvalidRequest(
                f"token id {bad} is not in the vocabulary of {model.n_vocab}", param="prompt"
            )
        return min(n_ctx - n, wanted if wanted is not None else n_ctx)

    def _start(self, work: Running) -> None:
        """Give an admitted request its sampler: native where possible, else a host row."""
        request, setup, constraint = work.request, work.setup, work.request.constraint
        native = setup.host_reason is None
        if isinstance(constraint, MaskedConstraint):
            chain: Any = None
            if native:
                chain = self.model.executor.new_sampler(replace(setup, n_logprobs=None), request.prompt)
            if hasattr(chain, "hold"):
                # The first draw is made in the step, and taken in when the constraint has been asked.
                chain.hold()
                work.native = chain
            else:
                chain = setup.sampler()
                chain.seed(request.prompt)
            work.host, work.masked = ConstrainedSampler(chain, constraint), constraint
            return
        if constraint is None and native:
            work.native = self.model.executor.new_sampler(setup, request.prompt)
        if work.native is None:
            work.host = setup.sampler()
            work.host.seed(request.prompt)
            work.host.constrain(constraint)

    def _start_or_fail(self, work: Running) -> None:
        """Start a request; a sampler stage or a constraint that raises ends this request only."""
        try:
            self._start(work)
        except Exception as exception:
            self._fail(work, _wrapped(work, exception), "error")

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        if self._thread is None:
            _engines.add(self)
            self._pid = os.getpid()
            self._thread = threading.Thread(
                target=self._loop, name=f"ggfw-engine-{self.model.name}", daemon=True
            )
            self._thread.start()

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not (self._inbox or self._jobs or self.scheduler or self._stopping):
                    self._wake.wait()
                while self._inbox:
                    self.scheduler.add(self._inbox.popleft())
                stopping = self._stopping
            if stopping:
                break
            self._drop_ended()
            step = self.scheduler.plan()
            if step is not None and step.batch.segments:
                self._run_step(step)
            if self._jobs:
                self._run_job(idle=step is None and not self.model.cache.n_pages_used())
        for work in self.scheduler:
            self._fail(work, GenerationCanceled("the model was closed"), "canceled")
        for job, future in self._jobs:
            job.close()
            future.set_exception(GenerationError("the model was closed"))

    def _drop_ended(self) -> None:
        """Take out what was canceled or ran out of time."""
        now = 0.0
        for work in self.scheduler:
            if work.handle.canceled:
                self._fail(work, GenerationCanceled(f"request {work.request.id} was canceled"), "canceled")
            elif work.deadline is not None:
                now = now or time.perf_counter()
                if now > work.deadline:
                    what = f"the deadline of request {work.request.id} ({work.request.timeout:g} s) passed"
                    self._fail(work, DeadlineExceeded(what), "deadline")

    def _run_step(self, step: Step) -> None:
        """One executor call, then everything that follows from it."""
        for work in step.work:
            try:
                if work.masked is not None:
                    work.masked.prepare()
            except Exception as exception:  # the others come again with the next step
                self._fail(work, _wrapped(work, exception), "error")
                return
        with self._step_lock:
            self._in_step = step.work
        out, failed = None, None
        try:
            out = self.model.executor.step(step.batch)
        except Exception as exception:
            failed = exception
        with self._step_lock:
            self._in_step = []
            aborted, self._aborted = self._aborted, False
        if out is None:
            if aborted:  # nothing was advanced, and everybody in this step has been canceled
                return
            for work in step.work:
                failure = GenerationError(f"a step of the model failed: {failed}")
                failure.__cause__ = failed
                self._fail(work, failure, "error")
            return
        self.n_steps += 1
        now = time.perf_counter()
        row = 0
        for work, segment, sampled in zip(step.work, step.batch.segments, out.sampled, strict=True):
            if segment.prompt:
                work.n_fed += len(segment.tokens)
            if not segment.n_outputs:
                continue
            row += segment.n_outputs
            try:
                if sampled is not None and sampled < 0:
                    raise NonFiniteLogits("the model produced non-finite logits")
                if work.host is None:
                    assert sampled is not None
                    token = sampled
                else:
                    assert out.logits is not None
                    found = self._host_token(work, sampled, out.logits[row - 1])
                    if found is None:
                        self._end(work, "stop")
                        continue
                    token = found
                noted = None
                if work.logprobs is not None:
                    if work.host is not None:
                        assert out.logits is not None
                        noted = token_logprob(out.logits[row - 1], token, work.setup.n_logprobs or 0)
                    else:
                        noted = work.native.take_logprob()
                self._take(work, token, now, noted)
            except Exception as error:
                self._fail(work, _wrapped(work, error), "error")

    @staticmethod
    def _host_token(work: Running, drawn: int | None, logits: F32) -> int | None:
        """The token of a host row, taken in; None where a constraint is satisfied and nothing else is possible.

        Args:
            drawn: what the executor has drawn already, for the constraint to judge; None: nothing.
            logits: the row (n_vocab,).

        Raises:
            GenerationError: the constraint leads nowhere.
        """
        host, masked = work.host, work.masked
        assert host is not None
        if isinstance(host, ConstrainedSampler) and drawn is not None:
            token = host.settle(drawn, logits)
        else:
            token = host.pick(logits)
        if masked is not None and not masked.allows(token):
            if masked.complete:
                return None
            why = masked.failure or "every token it allows is suppressed"
            raise GenerationError(f"the constraint of request {work.request.id} leads nowhere: {why}")
        host.accept(token)
        return token

    def _take(self, work: Running, token: int, now: float, noted: TokenLogprob | None = None) -> None:
        """A request has drawn a token; ``noted`` is its log-probability, where that was asked for."""
        tokens = work.tokens
        tokens.append(token)
        work.t_last = now
        if len(tokens) == 1:
            work.t_first = now
        request = work.request
        if not request.ignore_eos and self.model.tokenizer.is_eog(token):
            if noted is not None and work.logprobs is not None:
                work.logprobs.push(noted, "")
            self._end(work, "stop")
            return
        deltas = work.output.push(token)
        if noted is not None and work.logprobs is not None:
            work.logprobs.push(noted, work.output.piece)
            deltas = work.logprobs.attach(deltas)
        if deltas:
            work.handle._push(deltas)
        output = work.output
        if output.matched is not None or output.ended or (work.masked is not None and work.masked.complete):
            self._end(work, "stop")
        elif len(tokens) >= work.limit:
            self._end(work, "length")

    def _end(self, work: Running, reason: str) -> None:
        deltas = self._last_deltas(work)
        if deltas:
            work.handle._push(deltas)
        result = work.result(reason, self.model.load_ms)
        self._mean_ms = (
            0.8 * self._mean_ms + 0.2 * result.timings.total if self._mean_ms else result.timings.total
        )
        self._forget(work)
        work.handle._finish(result, None)

    def _fail(self, work: Running, error: Exception, reason: str) -> None:
        try:
            deltas = self._last_deltas(work)
            if deltas:
                work.handle._push(deltas)
        except Exception as broken:  # the parser is what failed: there is nothing more to give out
            error.__context__ = broken
        if isinstance(error, GenerationError):
            error.partial = work.result(reason, self.model.load_ms)
        self._forget(work)
        work.handle._finish(None, error)

    @staticmethod
    def _last_deltas(work: Running) -> list[Delta]:
        deltas = work.output.finish()
        return deltas if work.logprobs is None else work.logprobs.attach(deltas)

    def _forget(self, work: Running) -> None:
        self.scheduler.remove(work)
        with self._wake:
            self._n_open -= 1

    def _run_job(self, idle: bool) -> None:
        job, future = self._jobs[0]
        if not future.running() and not future.set_running_or_notify_cancel():
            job.close()
            self._jobs.popleft()
            return
        try:
            if next(job) is WAIT:
                if idle:  # nobody will ever give pages back
                    job.throw(OutOfPages("the cache is too small for this input; load with a larger context"))
                self._jobs.rotate(-1)
            return
        except StopIteration as end:
            future.set_result(end.value)
        except BaseException as error:
            future.set_exception(error)
        self._jobs.popleft()

    # -- cancellation ---------------------------------------------------------------------------------------------

    def _on_cancel(self) -> None:
        with self._wake:
            self._wake.notify()
        self._abort()

    def _abort(self, whoever: bool = False) -> None:
        """Break off the running step if nobody wants it any more."""
        with self._step_lock:
            in_step = self._in_step
            if in_step and (whoever or all(work.handle.canceled for work in in_step)):
                self._aborted = True
                self.model.executor.abort()


def _wrapped(work: Running, cause: Exception) -> GenerationError:
    """What the caller of ``work`` is told about an exception that is not a GenerationError."""
    if isinstance(cause, GenerationError):
        return cause
    error = GenerationError(f"request {work.request.id} failed: {cause or type(cause).__name__}")
    error.__cause__ = cause
    return error


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End all engines before the interpreter goes down: a step must not run while its memory is taken away."""
    for engine in list(_engines):
        engine.close()


def _sampler_stages() -> Mapping[str, SamplerStage]:
    from ggfw.registry import default_registry

    return default_registry().sampler_stages


def _capacity(cache: Any) -> int:
    """Positions that one sequence can have at most, by the size of the pools."""
    from ggfw.cache import PAGE_SIZE

    return min((pool.n_pages * PAGE_SIZE for pool in cache.pools), default=1 << 62)

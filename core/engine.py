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
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from ggfw.arguments import instance, integer
from ggfw.cache import OutOfPages
from ggfw.errors import (
    DeadlineExceeded,
    GenerationCanceled,
    GenerationError,
    InvalidRequest,
    QueueFull,
    brief,
)
from ggfw.handle import Handle
from ggfw.intake import Intake
from ggfw.metrics import GAP_BOUNDS, STEP_BOUNDS, EngineMetrics, Meter, PoolUse
from ggfw.request import Request, token_ids
from ggfw.respelling import Respelling
from ggfw.reuse import KeepBudget, PrefixReuse
from ggfw.running import Running
from ggfw.scheduler import Scheduler
from ggfw.speculation import DraftModel, Speculator
from ggfw.step_times import StepTimes
from ggfw.stepping import Stepper, reason, wrapped
from ggfw.threads import start

if TYPE_CHECKING:
    from ggfw.model import LoadedModel

T = TypeVar("T")

#: What a job yields when it cannot go on before others have given pages back.
WAIT = object()

#: Seconds between two looks at requests that nothing but a job keeps from going on.
_PATIENCE = 0.01

#: Seconds that an idle engine waits at most for requests that have been announced.
_GATHER = 0.005


class Engine:
    """Runs requests on one loaded model.

    Args:
        model: the loaded model; the engine does not close it.
        n_parallel: requests that run at once; default: as many as the model was loaded for.
        max_queue: requests that may wait besides; more are refused with QueueFull.
        prefix_cache_mb: MiB that pages and recurrent states of earlier requests may take; 0 = nothing is reused
            between requests; None = a quarter of the cache, at least 512 MiB, at most the cache.
        step_budget: milliseconds that prompts may add to a step while requests decode; they are cut to fit.
        spec: how tokens are guessed: ``auto``, ``ngram``, ``draft`` or ``off``.
        draft: a draft model; the engine closes it.

    Raises:
        InvalidRequest: the draft model has another vocabulary; ``max_queue`` or ``prefix_cache_mb`` is below 0.
        UnsupportedError: tokens of this model cannot be guessed, and ``spec`` asks for it.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        n_parallel: int | None = None,
        max_queue: int = 64,
        prefix_cache_mb: int | None = None,
        step_budget: float = 50.0,
        spec: str = "off",
        draft: LoadedModel | None = None,
    ) -> None:
        max_queue = integer("max_queue", max_queue, 0)
        if prefix_cache_mb is not None:
            prefix_cache_mb = integer("prefix_cache_mb", prefix_cache_mb, 0, 2**43)
        if n_parallel is not None:
            n_parallel = integer("n_parallel", n_parallel, 1)
        self.model = model
        self.max_queue = max_queue
        executor = model.executor
        if n_parallel is None:
            n_parallel = getattr(model, "n_parallel", 1)
        chunkable = model.architecture.chunkable
        budget = KeepBudget.of(model.cache, executor.memory, prefix_cache_mb, n_parallel)
        self.reuse = PrefixReuse(model.cache, executor.memory, budget, chunkable=chunkable)
        self.speculator = Speculator(model, spec, None if draft is None else DraftModel(draft, model))
        self.scheduler = Scheduler(
            model.cache,
            self.reuse,
            StepTimes(step_budget),
            n_parallel=n_parallel,
            max_rows=executor.max_rows,
            max_outputs=executor.max_outputs,
            chunkable=chunkable,
            start=self._start_or_fail,
            speculator=None if self.speculator.off else self.speculator,
        )
        respelling = None
        if self.reuse.enabled and not getattr(model, "exact", False):
            respelling = Respelling(lambda i: model.tokenizer.piece(i), lambda i: model.tokenizer.is_mark(i))
        self._intake = Intake(model, self._on_cancel, respelling)
        self._meter = Meter()
        self._stepper = Stepper(model, self.scheduler, self._meter, self._ended, respelling)
        self._inbox: deque[Running] = deque()
        self._jobs: deque[tuple[Generator[Any, None, Any], Future[Any]]] = deque()
        self._wake = threading.Condition(threading.Lock())
        self._n_open = 0  # requests that have not ended
        self._n_announced = 0  # callers who are about to submit
        self._mean_ms = 0.0  # of recent requests, for retry-after
        self._any_canceled = False
        self._next_deadline = float("inf")
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._pid = 0  # of the process the thread lives in

    # -- for callers, in any thread -------------------------------------------------------------------------------

    def submit(self, request: Request) -> Handle:
        """Queue a request.

        Raises:
            ContextLengthExceeded: the prompt leaves no room for a single token.
            InvalidRequest: an empty prompt, an id outside the vocabulary, a model that cannot generate.
            QueueFull: too many requests wait already.
            GenerationError: the model is closed, or runs in a process from which this one was forked.
        """
        return self.submit_choices([request])[0]

    def submit_choices(self, requests: Sequence[Request]) -> list[Handle]:
        """Queue requests with the same prompt, which is evaluated once: the others take it over from the first.

        Apart from the prompt each request is a request like any other: give each its own seed, parser and constraint.

        Raises:
            InvalidRequest: there are none, their prompts differ, or they share a constraint that cannot be copied;
                besides the errors of :meth:`submit`, with none of them queued.
        """
        self._check_process()
        if not requests:
            raise InvalidRequest("there is no request; at least one is needed", param="n")
        for request in requests:
            instance("request", request, Request, "a ggfw.Request")
            request.prompt = token_ids(request.prompt)
        first = requests[0]
        if any(other.prompt != first.prompt or other.cache_key != first.cache_key for other in requests[1:]):
            raise InvalidRequest("choices have one prompt, but these requests have several", param="n")
        # One that can be copied is, for each of them; another would be advanced by all.
        given = [request.constraint for request in requests if request.constraint is not None]
        single = [id(constraint) for constraint in given if not callable(getattr(constraint, "copy", None))]
        if len(set(single)) < len(single):
            raise InvalidRequest(
                "several choices have one constraint, which they would all advance; give it a method copy, or each "
                "choice one of its own",
                param="constraint",
            )
        choices = [self._intake.take(first)]
        for request in requests[1:]:
            request.prompt, request.of_text = first.prompt, False
            choices.append(self._intake.take(request))
        for other in choices[1:]:
            other.leader = choices[0]
        choices[0].leads = len(choices) > 1
        most = self.check_choices(len(choices))
        with self._wake:
            if self._stopping:
                raise GenerationError("the model is closed")
            if self._n_open + len(choices) > most:
                n = max(self._n_open - self.scheduler.n_parallel, 0)
                seconds = max(1.0, self._mean_ms * 1e-3 * n / self.scheduler.n_parallel)
                raise QueueFull(f"{n} requests are waiting, {self.max_queue} may; try again later", seconds)
            self._run_thread()  # may fail, and then nothing has been taken
            self._n_open += len(choices)
            self._inbox.extend(choices)
            self._wake.notify()
        return [work.handle for work in choices]

    def check_choices(self, n: int) -> int:
        """Refuse more choices than requests may be open at once, of which it gives the number.

        Raises:
            InvalidRequest: there are more.
        """
        most = self.scheduler.n_parallel + self.max_queue
        if n > most:
            raise InvalidRequest(
                f"{brief(n)} choices were asked for, and this model takes {most} requests at once; ask for "
                "fewer, or load it with a longer queue",
                param="n",
            )
        return most

    def announce(self) -> ExitStack:
        """Say that something is about to be submitted; leave what is returned (a context) when that has been done.

        An engine that has nothing else to do waits for it a few milliseconds, so that requests that come together
        start together: one step for all their prompts takes less time than one for the first and one for the others.
        """
        with self._wake:
            self._n_announced += 1
        announced = ExitStack()
        announced.callback(self._arrived)
        return announced

    def _arrived(self) -> None:
        with self._wake:
            self._n_announced -= 1
            self._wake.notify()

    def run(self, job: Generator[Any, None, T]) -> Future[T]:
        """Run ``job`` in the engine's thread: one of its pieces (up to the next ``yield``) between two steps.

        A job that yields WAIT is resumed when something else has happened, and fails with its own OutOfPages if
        nothing else is going on. One whose future is canceled is closed instead of run any further.
        """
        future: Future[T] = Future()
        self._check_process()
        with self._wake:
            if self._stopping:
                raise GenerationError("the model is closed")
            self._run_thread()
            self._jobs.append((job, future))
            self._wake.notify()
        return future

    @property
    def n_steps(self) -> int:
        """Steps that were run."""
        return self._meter.steps

    @property
    def n_running(self) -> int:
        """Requests that have been admitted and not ended."""
        return len(self.scheduler.running)

    @property
    def n_waiting(self) -> int:
        """Requests in the queue."""
        return max(0, self._n_open - len(self.scheduler.running))

    def metrics(self) -> EngineMetrics:
        """What it has done, and what it holds now."""
        meter, reuse, cache = self._meter, self.reuse, self.model.cache
        sizes = self.reuse.memory.page_bytes  # the executor's own is gone with a closed model
        return EngineMetrics(
            n_running=self.n_running,
            n_waiting=self.n_waiting,
            prompt_tokens=meter.prompt_tokens,
            cached_tokens=reuse.n_tokens,
            generated_tokens=meter.generated_tokens,
            steps=meter.steps,
            step_seconds=meter.histogram(STEP_BOUNDS, meter.step_buckets, meter.step_sum),
            gap_seconds=meter.histogram(GAP_BOUNDS, meter.gap_buckets, meter.gap_sum),
            python_seconds=meter.python_seconds,
            rows=meter.rows,
            request_steps=meter.request_steps,
            pools=tuple(
                PoolUse(pool.n_pages, pool.n_used, pool.n_kept, n_bytes, pool.spec.window)
                for pool, n_bytes in zip(cache.pools, sizes, strict=True)
            ),
            n_slots=cache.n_slots,
            n_slots_used=cache.n_slots_used,
            prefix_lookups=reuse.n_asked,
            prefix_hits=reuse.n_hits,
            prefix_evictions=reuse.tree.n_evicted,
            prefix_bytes=reuse.tree.n_bytes,
            snapshot_bytes=reuse.tree.snapshots.n_bytes,
            preemptions=self.scheduler.n_preempted,
            drafts_proposed=meter.drafts_proposed,
            drafts_accepted=meter.drafts_accepted,
            skipped=meter.skipped,
            finished=meter.finished,
            canceled=meter.canceled,
            failed=meter.failed,
        )

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
            self._stepper.abort(whoever=True)
            thread.join()
        self.speculator.close()
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

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        if self._thread is None:
            _engines.add(self)
            self._pid = os.getpid()
            self._thread = start(
                threading.Thread(target=self._loop, name=f"ggfw-engine-{self.model.name}", daemon=True)
            )

    def _loop(self) -> None:
        scheduler, stepper = self.scheduler, self._stepper
        while True:
            try:
                if not self._turn():
                    break
            except BaseException as exception:  # the thread must live, or all requests would wait for ever
                for work in list(scheduler.running) or list(scheduler.waiting)[:1]:
                    stepper.fail(work, wrapped(work, exception), "error")
        for work in scheduler:
            stepper.fail(work, GenerationCanceled("the model was closed"), "canceled")
        for job, future in self._jobs:
            job.close()
            if not future.done():
                future.set_exception(GenerationError("the model was closed"))

    def _turn(self) -> bool:
        """One step, or one piece of a job, or a wait for something to do; False: the engine was closed."""
        scheduler = self.scheduler
        with self._wake:
            if not scheduler:
                self._wait_for_work()
            while self._inbox:
                self._add(self._inbox.popleft())
            if self._stopping:
                return False
        self._drop_ended()
        step = scheduler.plan()
        if step is not None:
            self._stepper.run(step)
        if self._jobs:
            self._run_job(idle=step is None and not self.model.cache.n_pages_used())
        elif step is None and scheduler:  # pages are out of the scheduler's hands; deadlines go on
            self._meter.asleep()
            with self._wake:
                self._wake.wait(_PATIENCE)
        return True

    def _wait_for_work(self) -> None:
        """Wait for something to do, and for what has been announced; nothing runs, and the lock is held."""
        while not (self._inbox or self._jobs or self._stopping):
            self._meter.asleep()
            self._wake.wait()
        end = time.monotonic() + _GATHER
        while (
            self._n_announced and not (self._jobs or self._stopping) and (left := end - time.monotonic()) > 0
        ):
            self._wake.wait(left)

    def _add(self, work: Running) -> None:
        self.scheduler.add(work)
        if work.handle.canceled:  # while it was on its way here, others may have been dropped
            self._any_canceled = True
        if work.deadline is not None:
            self._next_deadline = min(self._next_deadline, work.deadline)

    def _drop_ended(self) -> None:
        """Take out what was canceled or ran out of time."""
        if self._any_canceled:
            self._any_canceled = False
            for work in self.scheduler:
                if work.handle.canceled:
                    canceled = GenerationCanceled(f"request {work.request.id} was canceled")
                    self._stepper.fail(work, canceled, "canceled")
        if self._next_deadline == float("inf"):
            return
        now = time.perf_counter()
        if now <= self._next_deadline:
            return
        self._next_deadline = float("inf")
        for work in self.scheduler:
            if work.deadline is None:
                continue
            if now > work.deadline:
                what = f"the deadline of request {work.request.id} ({work.request.timeout:g} s) passed"
                self._stepper.fail(work, DeadlineExceeded(what), "deadline")
            else:
                self._next_deadline = min(self._next_deadline, work.deadline)

    def _start_or_fail(self, work: Running) -> None:
        """Start a request; a sampler stage or a constraint that raises ends this request only."""
        try:
            self._intake.start(work)
        except BaseException as exception:  # SystemExit too: nothing may end the engine's thread
            self._stepper.fail(work, wrapped(work, exception), "error")

    def _ended(self, total_ms: float) -> None:
        """A request has ended, after so many milliseconds if it was done."""
        if total_ms:
            self._mean_ms = 0.8 * self._mean_ms + 0.2 * total_ms if self._mean_ms else total_ms
        with self._wake:
            self._n_open -= 1

    def _run_job(self, idle: bool) -> None:
        self._meter.asleep()
        job, future = self._jobs[0]
        # The future is running only when the job is over: until then it can be canceled.
        if future.cancelled():
            self._jobs.popleft()
            future.set_running_or_notify_cancel()
            job.close()
            return
        try:
            if next(job) is WAIT:
                if idle:  # nobody will ever give pages back
                    job.throw(OutOfPages("the cache is too small for this input; load with a larger context"))
                self._jobs.rotate(-1)
            return
        except StopIteration as end:
            if future.set_running_or_notify_cancel():
                future.set_result(end.value)
        except Exception as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        except BaseException as cause:  # SystemExit of a plugin, which would end the caller
            if future.set_running_or_notify_cancel():
                failure = GenerationError(f"the model's work failed: {reason(cause)}")
                failure.__cause__ = cause
                future.set_exception(failure)
        self._jobs.popleft()

    # -- cancellation ---------------------------------------------------------------------------------------------

    def _on_cancel(self) -> None:
        with self._wake:
            self._any_canceled = True
            self._wake.notify()
        self._stepper.abort()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End all engines before the interpreter goes down: a step must not run while its memory is taken away."""
    for engine in list(_engines):
        engine.close()

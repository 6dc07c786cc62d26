"""Running a step, and everything that follows from it: draws, texts, ends and failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ggfw.errors import ConstraintFailed, GenerationError, NonFiniteLogits, said
from ggfw.metrics import Meter
from ggfw.sampling import token_logprob
from ggfw.sampling.constrained import ConstrainedSampler

if TYPE_CHECKING:
    from ggfw.chat.deltas import Delta
    from ggfw.execute.batch import Segment, StepResult
    from ggfw.model import LoadedModel
    from ggfw.respelling import Respelling
    from ggfw.running import Running
    from ggfw.sampling import TokenLogprob
    from ggfw.sampling.arithmetic import F32
    from ggfw.scheduler import Scheduler, Step


#: Tokens that one request may take in a row without asking the model; each is a row of the next step.
MOST_AHEAD = 15


class Stepper:
    """See the module. The engine's thread owns it; only :meth:`abort` may be called by others.

    Args:
        model: whose executor runs the steps.
        scheduler: plans them.
        meter: counts them.
        on_end: called with the milliseconds that a request took (0 when it failed), when it has ended.
        respelling: is told the tokens of what was said; None: nobody is.
    """

    def __init__(
        self,
        model: LoadedModel,
        scheduler: Scheduler,
        meter: Meter,
        on_end: Callable[[float], None],
        respelling: Respelling | None = None,
    ) -> None:
        self.model = model
        self.scheduler = scheduler
        self.meter = meter
        self._on_end = on_end
        self._respelling = respelling
        self._most_ahead = min(MOST_AHEAD, model.executor.max_rows // scheduler.n_parallel - 1)
        self._lock = threading.Lock()  # so that an abort never hits the step after the one it was meant for
        self._in_step: list[Running] = []
        self._aborted = False

    def abort(self, whoever: bool = False) -> None:
        """Break off the running step if nobody wants it any more."""
        with self._lock:
            in_step = self._in_step
            if in_step and (whoever or all(work.handle.canceled for work in in_step)):
                self._aborted = True
                self.model.executor.abort()

    def run(self, step: Step) -> None:
        """One executor call, then everything that follows from it."""
        for work in step.work:
            try:
                if work.masked is not None:
                    work.masked.prepare()
            except BaseException as exception:  # the others come again with the next step
                self.fail(work, wrapped(work, exception), "error")
                return
        with self._lock:
            self._in_step = step.work
        out, failed = None, None
        executor, meter = self.model.executor, self.meter
        native = getattr(executor, "native_seconds", None)
        meter.before()
        try:
            out = executor.step(step.batch)
        except BaseException as exception:  # SystemExit too, of an op: nothing may end the engine's thread
            failed = exception
        with self._lock:
            self._in_step = []
            aborted, self._aborted = self._aborted, False
        if out is None:
            meter.asleep()
            if aborted:  # nothing was advanced, and everybody in this step has been canceled
                return
            for work in step.work:
                failure = GenerationError(f"a step of the model failed: {reason(failed)}")
                failure.__cause__ = failed
                self.fail(work, failure, "error")
            return
        if native is not None:
            native = executor.native_seconds - native  # type: ignore[attr-defined]
        seconds = meter.after(native, step.n_decode + step.n_prompt, len(step.work))
        meter.prompt_tokens += step.n_prompt
        self.scheduler.times.observe(step.n_decode, step.n_prompt, seconds * 1e3, step.depth)
        if self.scheduler.speculator is not None and not step.n_prompt:
            self.scheduler.speculator.note(step.n_decode, seconds)
        self._take_results(step, out)

    # -- draws ----------------------------------------------------------------------------------------------------

    def _take_results(self, step: Step, out: StepResult) -> None:
        """Hand each segment's draws to its request."""
        now = time.perf_counter()
        reuse = self.scheduler.reuse
        row = 0
        for i, (work, segment, sampled) in enumerate(
            zip(step.work, step.batch.segments, out.sampled, strict=True)
        ):
            row += segment.n_outputs
            try:
                if segment.prompt:
                    work.n_fed += len(segment.tokens)
                    reuse.read(work)
                else:
                    work.n_ahead = 0
                if not segment.n_outputs:
                    continue
                logits = None if out.logits is None else out.logits[row - segment.n_outputs : row]
                if segment.n_draft:
                    self._take_drafts(work, segment, [sampled, *out.followers.get(i, ())], logits, now)
                else:
                    self._take_segment(work, sampled, logits, now)
                if work.skips is not None:
                    self._skip(work, now)
                if segment.prompt and not work.ended:
                    reuse.verified(work)
            except BaseException as error:  # SystemExit too: nothing may end the engine's thread
                self.fail(work, wrapped(work, error), "error")

    def _take_drafts(
        self, work: Running, segment: Segment, drawn: list[int | None], logits: F32 | None, now: float
    ) -> None:
        """The outputs of a segment with drafts: each is looked at while its row's draft is what the row before drew.

        Args:
            drawn: by a native sampler, row after row; of a host row at most the first.

        Raises:
            Exception: see :meth:`_take_segment`.
        """
        drafts = segment.tokens[len(segment.tokens) - segment.n_draft :]
        n_kept = 0
        try:
            for row in range(segment.n_draft + 1):
                if row:
                    segment.sequence.advance(1, 1)  # the draft of this row was right
                    n_kept += 1
                first = drawn[row] if row < len(drawn) else None
                self._take_segment(work, first, None if logits is None else logits[row : row + 1], now)
                if work.ended or (row < segment.n_draft and work.tokens[-1] != drafts[row]):
                    break
        finally:
            self.meter.drafts_proposed += segment.n_draft
            self.meter.drafts_accepted += n_kept
            if self.scheduler.speculator is not None:
                self.scheduler.speculator.judge(work, segment.n_draft, n_kept)

    def _take_segment(self, work: Running, sampled: int | None, logits: F32 | None, now: float) -> None:
        """One segment's outputs: a native draw, or rows (n_outputs, n_vocab) for the request's own sampler.

        Raises:
            Exception: of whatever sampler, constraint or parser takes part; it ends the request.
        """
        if sampled is not None and sampled < 0:
            raise NonFiniteLogits("the model produced non-finite logits")
        noted = None
        if work.host is None:
            assert sampled is not None
            token = sampled
            if work.logprobs is not None:
                noted = work.native.take_logprob()
        else:
            assert logits is not None
            found = self._host_token(work, sampled, logits[-1])
            if found is None:
                self.end(work, "stop")
                return
            token = found
            if work.logprobs is not None:
                noted = token_logprob(logits[-1], token, work.setup.n_logprobs or 0)
        self._take(work, token, now, noted)

    def _skip(self, work: Running, now: float) -> None:
        """Take what has to come, as far as each token is the only one allowed: no row of logits could change it.

        Raises:
            Exception: see :meth:`_take_segment`.
        """
        while not work.ended and work.skips is not None and work.n_ahead < self._most_ahead:
            token = work.skips.sole()
            if token is None or token in work.setup.params.logit_bias:
                return
            assert work.host is not None
            work.host.accept(token)
            work.n_ahead += 1
            self.meter.skipped += 1
            self._take(work, token, now)

    @staticmethod
    def _host_token(work: Running, drawn: int | None, logits: F32) -> int | None:
        """The token of a host row, taken in; None where a constraint is satisfied and nothing else is possible.

        Args:
            drawn: what the executor has drawn already, for the constraint to judge; None: nothing.
            logits: the row (n_vocab,).

        Raises:
            ConstraintFailed: the constraint leads nowhere.
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
            raise ConstraintFailed(f"the constraint of request {work.request.id} leads nowhere: {why}")
        host.accept(token)
        return token

    def _take(self, work: Running, token: int, now: float, noted: TokenLogprob | None = None) -> None:
        """A request has drawn a token; ``noted`` is its log-probability, where that was asked for."""
        tokens = work.tokens
        tokens.append(token)
        self.meter.generated_tokens += 1
        work.t_last = now
        if len(tokens) == 1:
            work.t_first = now
        if not work.request.ignore_eos and self.model.tokenizer.is_eog(token):
            if noted is not None and work.logprobs is not None:
                work.logprobs.push(noted, "")
            self.end(work, "stop")
            return
        deltas = work.output.push(token)
        if noted is not None and work.logprobs is not None:
            work.logprobs.push(noted, work.output.piece)
            deltas = work.logprobs.attach(deltas)
        if deltas:
            work.handle._push(deltas)
        output = work.output
        if output.matched is not None or output.ended or (work.masked is not None and work.masked.complete):
            self.end(work, "stop")
        elif len(tokens) >= work.limit:
            self.end(work, "length")

    # -- ends -----------------------------------------------------------------------------------------------------

    def end(self, work: Running, reason: str) -> None:
        """A request is done."""
        deltas = self._last_deltas(work)
        if deltas:
            work.handle._push(deltas)
        result = work.result(reason, self.model.load_ms)
        self._leave(work, keep=True)
        self.meter.finished += 1
        self._on_end(result.timings.total)
        work.handle._finish(result, None)

    def fail(self, work: Running, error: Exception, reason: str) -> None:
        """A request is over without being done: ``reason`` is canceled, deadline or error."""
        try:
            deltas = self._last_deltas(work)
            if deltas:
                work.handle._push(deltas)
        except BaseException as broken:  # the parser is what failed: there is nothing more to give out
            error.__context__ = broken
        if isinstance(error, GenerationError):
            error.partial = work.result(reason, self.model.load_ms)
        self._leave(work, keep=reason != "error")
        if isinstance(error, NonFiniteLogits):
            self.scheduler.reuse.forget(work)
        if reason == "canceled":
            self.meter.canceled += 1
        else:
            self.meter.failed += 1
        self._on_end(0.0)
        work.handle._finish(None, error)

    def _leave(self, work: Running, keep: bool) -> None:
        """Take a request out; what it said is remembered where its pages are."""
        if keep and self._respelling is not None and work.tokens and work.request.cache_prompt:
            self._respelling.remember(work.request.cache_key, [*work.request.prompt, *work.tokens])
        self.scheduler.remove(work, keep=keep)

    @staticmethod
    def _last_deltas(work: Running) -> list[Delta]:
        deltas = work.output.finish()
        return deltas if work.logprobs is None else work.logprobs.attach(deltas)


def wrapped(work: Running, cause: BaseException) -> GenerationError:
    """What the caller of ``work`` is told about an exception that is not a GenerationError."""
    if isinstance(cause, GenerationError):
        return cause
    error = GenerationError(f"request {work.request.id} failed: {reason(cause)}")
    error.__cause__ = cause
    return error


def reason(cause: BaseException | None) -> str:
    """What an error says; one that was meant to end the process, or says nothing, with its kind."""
    kind, text = type(cause).__name__, "" if cause is None else said(cause)
    if text and isinstance(cause, Exception):
        return text
    return f"{kind}: {text}" if text else kind

"""One admitted request while it runs: its place in the cache, its sampler, its text, its clock."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

from ggfw.attribution import LogprobTrack
from ggfw.cache import Sequence
from ggfw.handle import Handle
from ggfw.output import Output
from ggfw.request import Request
from ggfw.result import Result, Timings, Usage
from ggfw.sampling import Sampler, SamplerSetup
from ggfw.sampling.constrained import ConstrainedSampler
from ggfw.sampling.constraint import Foreseeing, MaskedConstraint

if TYPE_CHECKING:
    from ggfw.cache.snapshots import State
    from ggfw.speculation import Track

_serials = itertools.count()


class Running:
    """State of one request, owned by the engine's thread.

    Attributes:
        request, handle: what was asked, and by whom.
        limit: tokens that may be drawn, at least 1.
        output: the text so far.
        tokens: ids drawn so far.
        sequence: its place in the cache, None while it waits.
        native: the executor's sampler of a free row, else None.
        host: the Python sampler of a host row, else None.
        masked: the constraint of a host row, if it knows its mask.
        setup: what its samplers are made from.
        logprobs: the log-probabilities of the drawn tokens, if they were asked for.
        feed: what it has to read before it draws on: the prompt; after a preemption also what was drawn, but for the
            last token.
        n_fed: tokens of ``feed`` that are in the cache.
        n_cached: prompt tokens that needed no evaluation when it began.
        skips: its constraint, if a token that is the only one allowed may be taken without asking the model.
        n_ahead: tokens in front of the last one that were taken so, and are not in the cache yet.
        states: snapshots of recurrent state on the way, with their positions.
        serial: number in the order of submission.
        leader: the first of the choices that share this request's prompt, or None.
        leads: whether other requests have this one as their leader.
        has_room: whether the cache has room for its next row.
        ended: whether it is over.
        track: what speculation knows of it, once it does.
    """

    __slots__ = (
        "request", "handle", "limit", "output", "tokens", "sequence", "native", "host", "n_fed", "n_cached",
        "t_submit", "t_start", "t_first", "t_last", "deadline", "setup", "logprobs", "masked", "feed", "states",
        "serial", "leader", "leads", "has_room", "ended", "track", "skips", "n_ahead",
    )  # fmt: skip

    def __init__(
        self, request: Request, handle: Handle, limit: int, output: Output, setup: SamplerSetup
    ) -> None:
        self.request = request
        self.handle = handle
        self.limit = limit
        self.output = output
        self.tokens: list[int] = []
        self.sequence: Sequence | None = None
        self.native: Any = None
        self.host: Sampler | ConstrainedSampler | None = None
        self.masked: MaskedConstraint | None = None
        self.setup = setup
        self.logprobs = None if setup.n_logprobs is None else LogprobTrack()
        self.feed = request.prompt
        self.n_fed = 0
        self.n_cached = 0
        self.skips: Foreseeing | None = None
        self.n_ahead = 0
        self.states: list[tuple[int, State]] = []
        self.serial = next(_serials)
        self.leader: Running | None = None
        self.leads = False
        self.has_room = True
        self.ended = False
        self.track: Track | None = None
        self.t_submit = time.perf_counter()
        self.t_start = self.t_first = self.t_last = 0.0
        self.deadline = None if request.timeout is None else self.t_submit + request.timeout

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def decoding(self) -> bool:
        """Whether everything is read."""
        return self.n_fed >= len(self.feed)

    @property
    def has_read(self) -> bool:
        """Whether its prompt can be taken over by others, or never will."""
        return bool(self.tokens) or self.ended

    def rewind(self) -> None:
        """Begin again behind what was drawn: it is in no cache any more, sampler and text stay as they are."""
        self.feed = [*self.request.prompt, *self.tokens[:-1]]
        self.n_fed = self.n_ahead = 0

    def release(self) -> None:
        """Give samplers back, and what a draft model holds."""
        self.native = self.host = self.masked = self.skips = None
        if self.track is not None:
            self.track.close()
            self.track = None

    def result(self, reason: str, load_ms: float = 0.0) -> Result:
        """The result as it stands now."""
        now = time.perf_counter()
        n, n_prompt = len(self.tokens), self.n_prompt
        start = self.t_start or now
        first = self.t_first or now
        prefill = (first - start) if self.t_start else 0.0
        decode = self.t_last - self.t_first if n > 1 else 0.0
        evaluated = max(min(self.n_fed, n_prompt) - self.n_cached, 0)
        output = self.output
        if reason == "length" and output.matched is not None:
            reason = "stop"  # found in what was held back until the end
        return Result(
            text=output.text,
            reasoning=output.reasoning,
            tool_calls=output.tool_calls,
            finish_reason="tool_calls" if reason == "stop" and output.tool_calls else reason,
            token_ids=tuple(self.tokens),
            usage=Usage(n_prompt, n, self.n_cached, min(output.reasoning_tokens, n)),
            timings=Timings(
                load=load_ms,
                queue=(start - self.t_submit) * 1e3,
                ttft=(first - self.t_submit) * 1e3 if self.t_first else 0.0,
                prefill=prefill * 1e3,
                decode=decode * 1e3,
                total=(now - self.t_submit) * 1e3,
                prompt_per_second=evaluated / prefill if prefill > 0 else 0.0,
                decode_per_second=(n - 1) / decode if decode > 0 else 0.0,
            ),
            stop=output.matched,
            seed=self.request.params.seed or 0,
            id=self.request.id,
            logprobs=None if self.logprobs is None else list(self.logprobs.entries),
        )

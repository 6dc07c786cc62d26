"""Which tokens of which requests go into the next step.

First come, first served: decode rows of everything that runs, then chunks of the prompts, oldest first, while the
batch has room. A request is admitted when a place among the ``n_parallel`` running ones is free and the cache can
hold all it may ever need, so nobody who runs can run out of pages.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ggfw.cache import Cache, OutOfPages
from ggfw.execute.batch import Batch, Segment
from ggfw.running import Running


@dataclass(slots=True)
class Step:
    """The next step: a batch, and whose each of its segments is."""

    batch: Batch
    work: list[Running]


class Scheduler:
    """Waiting and running requests of one model. Not thread-safe: the engine's thread owns it.

    Args:
        cache: where admitted requests live.
        n_parallel: requests that may run at once.
        max_rows: rows of one batch.
        max_outputs: output rows of one batch.
        chunkable: whether a prompt may be cut into several steps.
        start: called once for a request that has just been admitted, to set up its sampler.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        n_parallel: int,
        max_rows: int,
        max_outputs: int,
        chunkable: bool = True,
        start: Callable[[Running], None],
    ) -> None:
        self.cache = cache
        self.n_parallel = max(1, min(n_parallel, max_rows, max_outputs))
        self.max_rows = max_rows
        self.max_outputs = max_outputs
        self.chunkable = chunkable
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []
        self._start = start

    def __bool__(self) -> bool:
        return bool(self.waiting or self.running)

    def __iter__(self) -> Iterator[Running]:
        """Everybody, the running ones first."""
        yield from list(self.running)
        yield from list(self.waiting)

    def add(self, work: Running) -> None:
        """Put a request at the end of the queue."""
        self.waiting.append(work)

    def remove(self, work: Running) -> None:
        """Forget a request and give back what it holds."""
        if work.sequence is None:
            self.waiting.remove(work)
        else:
            self.running.remove(work)
            work.release()

    def plan(self) -> Step | None:
        """The next step, or None when nobody can go on."""
        self._admit()
        if not self.running:
            return None
        segments: list[Segment] = []
        work: list[Running] = []
        for one in self.running:
            if one.decoding:
                assert one.sequence is not None
                segments.append(Segment(one.sequence, [one.tokens[-1]], sampler=one.native))
                work.append(one)
        room = self.max_rows - len(segments)
        outputs = self.max_outputs - len(segments)
        for one in self.running:
            if one.decoding:
                continue
            left = one.n_prompt - one.n_fed
            n = min(left, room)
            if n < 1 or (n < left and not self.chunkable):
                break  # the oldest prompt waits for the next step; younger ones do not overtake it
            last = n == left
            if last and not outputs:
                break
            assert one.sequence is not None
            tokens = one.request.prompt[one.n_fed : one.n_fed + n]
            segments.append(Segment(one.sequence, tokens, int(last), True, one.native if last else None))
            work.append(one)
            room -= n
            outputs -= last
        return Step(Batch(segments), work)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.n_parallel:
            one = self.waiting[0]
            try:
                sequence = self.cache.sequence()
            except OutOfPages:  # every state slot is taken
                return
            try:
                # The last token that is drawn is never fed back, so it needs no position.
                sequence.reserve(one.n_prompt + one.limit - 1)
            except OutOfPages:
                sequence.close()
                return
            self.waiting.popleft()
            one.sequence = sequence
            one.t_start = time.perf_counter()
            self.running.append(one)
            self._start(one)

"""Which tokens of which requests go into the next step.

First come, first served: decode rows of everything that runs, then chunks of what has to be read. While others decode,
the chunks together are as large as the step's budget of time allows, else as large as a step may be. The oldest one
gets most of them; what is left goes to the shortest others, so that a short prompt does not wait for a long one.

Pages are taken as they are needed. When there are none, the newest running request is preempted: it goes back to the
head of the queue with its sampler, its text and its place, and reads its own tokens again when there is room.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ggfw.cache import PAGE_SIZE, Cache, OutOfPages
from ggfw.execute.batch import Batch, Segment
from ggfw.records import dataclass
from ggfw.reuse import PrefixReuse
from ggfw.running import Running
from ggfw.step_times import StepTimes

if TYPE_CHECKING:
    from ggfw.speculation import Speculator

#: The part of a step's prompt rows that the oldest prompt may have while others have to be read, too.
SHARE_OF_OLDEST = 0.7


@dataclass(slots=True)
class Step:
    """The next step: a batch, and whose each of its segments is.

    Args:
        n_decode, n_prompt: rows of either kind.
        depth: positions in front of a prompt row, on average.
    """

    batch: Batch
    work: list[Running]
    n_decode: int = 0
    n_prompt: int = 0
    depth: float = 0.0


class Scheduler:
    """Waiting and running requests of one model. Not thread-safe: the engine's thread owns it.

    Args:
        cache: where admitted requests live.
        reuse: gives them their sequences.
        times: says how many rows fit into a step.
        n_parallel: requests that may run at once.
        max_rows: rows of one batch.
        max_outputs: output rows of one batch.
        chunkable: whether a prompt may be cut into several steps.
        start: called once for a request that has just been admitted, to set up its sampler.
        speculator: guesses tokens of requests that decode; None: nobody does.

    Attributes:
        running: oldest first.
        n_preempted: preemptions so far.
    """

    def __init__(
        self,
        cache: Cache,
        reuse: PrefixReuse,
        times: StepTimes,
        *,
        n_parallel: int,
        max_rows: int,
        max_outputs: int,
        chunkable: bool = True,
        start: Callable[[Running], None],
        speculator: Speculator | None = None,
    ) -> None:
        self.cache = cache
        self.reuse = reuse
        self.times = times
        self.n_parallel = max(1, min(n_parallel, max_rows, max_outputs))
        self.max_rows = max_rows
        self.max_outputs = max_outputs
        self.chunkable = chunkable
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []
        self.n_preempted = 0
        self.speculator = speculator
        self._start = start
        self._last_victim: Running | None = None
        self._refused: tuple[Running, list[int]] | None = None  # who had no room, with how much there was

    def __bool__(self) -> bool:
        return bool(self.waiting or self.running)

    def __iter__(self) -> Iterator[Running]:
        """Everybody, the running ones first."""
        yield from list(self.running)
        yield from list(self.waiting)

    def add(self, work: Running) -> None:
        """Put a request at the end of the queue."""
        self.waiting.append(work)

    def remove(self, work: Running, keep: bool = False) -> None:
        """Forget a request and give back what it holds.

        Args:
            keep: whether the prefix tree may have its pages.
        """
        work.ended = True
        if work.sequence is None:
            self.waiting.remove(work)
        else:
            self.running.remove(work)
            self.reuse.end(work, keep)
        work.release()

    def plan(self) -> Step | None:
        """The next step, or None when nobody can go on."""
        self._admit()
        if not self.running:
            return None
        self._make_room()
        reading: list[Running] = []
        work: list[Running] = []
        for one in self.running:
            if one.n_fed < len(one.feed):
                reading.append(one)
            elif one.has_room:
                work.append(one)
        segments = self._decode_segments(work, guess=not reading)
        n_decode = len(segments)
        for segment in segments:
            n_decode += len(segment.tokens) - 1
        n_prompt, depth = 0, 0.0
        if reading:
            n_first = len(segments)
            outputs = self.max_outputs - n_decode
            room = self.max_rows - n_decode
            if n_decode and self.chunkable:
                room = min(room, self.times.rows(_depth(reading)))
            n_prompt = self._read(reading, segments, work, room, outputs)
            for segment in segments[n_first:]:
                n = len(segment.tokens)
                depth += (segment.sequence.n_positions + n / 2) * n / n_prompt
        return Step(Batch(segments), work, n_decode, n_prompt, depth) if segments else None

    def _decode_segments(self, decoding: list[Running], guess: bool) -> list[Segment]:
        """The rows of requests that are past their prompts: the last token of each, and guesses where they pay.

        Args:
            guess: whether there may be guesses; beside prompts, every row takes the time of a row of theirs.
        """
        speculator = self.speculator if guess else None
        guesses = speculator.propose(decoding) if speculator is not None and decoding else []
        segments: list[Segment] = []
        for i, one in enumerate(decoding):
            sequence = one.sequence
            assert sequence is not None
            drafts = guesses[i] if guesses and not one.n_ahead else []
            if drafts:
                drafts = drafts[: max(sequence.room() - 1, 0)]
                sequence.reserve(1 + len(drafts))
            n = len(drafts)
            tokens = [*one.tokens[-1 - one.n_ahead :], *drafts]
            segments.append(Segment(sequence, tokens, 1 + n, sampler=one.native, n_draft=n))
        return segments

    # -- prompts --------------------------------------------------------------------------------------------------

    def _read(
        self, reading: list[Running], segments: list[Segment], work: list[Running], room: int, outputs: int
    ) -> int:
        """Add chunks of prompts (and of what preempted requests read again); gives their rows."""
        n_prompt = 0
        for one, wanted in self._portions(reading, room):
            n = self._pages_for(one, wanted)
            last = one.n_fed + n == len(one.feed)
            n_outputs = int(last and not one.tokens)
            if n < 1 or n_outputs > outputs:
                continue
            assert one.sequence is not None
            tokens = one.feed[one.n_fed : one.n_fed + n]
            segments.append(Segment(one.sequence, tokens, n_outputs, True, one.native if n_outputs else None))
            work.append(one)
            outputs -= n_outputs
            n_prompt += n
        return n_prompt

    def _portions(self, reading: list[Running], room: int) -> list[tuple[Running, int]]:
        """How many rows each of them gets, oldest first."""
        if not self.chunkable:
            portions = []
            for one in reading:
                n = len(one.feed) - one.n_fed
                if n > room:
                    break  # the oldest waits for the next step; younger ones do not overtake it
                portions.append((one, n))
                room -= n
            return portions
        left = {one: self.reuse.cut(one) - one.n_fed for one in reading}
        oldest, others = reading[0], reading[1:]
        got = {oldest: min(left[oldest], int(room * SHARE_OF_OLDEST) + 1 if others else room, room)}
        room -= got[oldest]
        for one in sorted(others, key=lambda other: len(other.feed) - other.n_fed):
            got[one] = min(left[one], room)
            room -= got[one]
        got[oldest] += min(room, left[oldest] - got[oldest])
        return [(one, got[one]) for one in reading]

    def _pages_for(self, one: Running, n: int) -> int:
        """Make room for ``n`` rows, or for fewer; gives for how many."""
        assert one.sequence is not None
        fitting = min(n, one.sequence.room())
        if fitting < 1 or (fitting < n and not self.chunkable):
            return 0  # others go on, and give pages back
        one.sequence.reserve(fitting)
        return fitting

    # -- room -----------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """See that those who decode have room for a row each, preempting others where there is none."""
        for one in list(self.running):
            sequence = one.sequence
            if sequence is None or one.n_fed < len(one.feed):
                continue
            one.has_room = True
            if sequence.n_positions % PAGE_SIZE and not one.n_ahead:
                continue  # in the middle of a page of its own
            while one.sequence is not None:
                try:
                    sequence.reserve(1 + one.n_ahead)
                    break
                except OutOfPages:
                    if len(self.running) == 1:  # something else has the pages, and gives them back
                        one.has_room = False
                        break
                    self._preempt(self._victim(self.running))
        oldest = self.running[0]
        if oldest.n_fed < len(oldest.feed):
            least = 1 if self.chunkable else len(oldest.feed)
            while len(self.running) > 1 and oldest.sequence is not None and oldest.sequence.room() < least:
                self._preempt(self._victim(self.running[1:]))

    def _victim(self, candidates: list[Running]) -> Running:
        """The newest of them, but not the one that was preempted last if there is another."""
        return next((one for one in reversed(candidates) if one is not self._last_victim), candidates[-1])

    def _preempt(self, work: Running) -> None:
        """Send a running request back to the head of the queue."""
        self.running.remove(work)
        self.reuse.end(work, keep=True)
        work.rewind()
        queue = list(self.waiting)
        insort(queue, work, key=lambda one: one.serial)
        self.waiting = deque(queue)
        self._last_victim = work
        self.n_preempted += 1

    def _admit(self) -> None:
        """Let those at the head of the queue run for whom there is a place, and room for what they have to read."""
        if not self.waiting or len(self.running) >= self.n_parallel:
            return
        at = 0  # those before it wait for their leaders
        while at < len(self.waiting) and len(self.running) < self.n_parallel:
            one = self.waiting[at]
            if one.leader is not None and not one.leader.has_read:
                at += 1
                continue
            if not self._begin(one):
                break
            del self.waiting[at]
            insort(self.running, one, key=lambda other: other.serial)
            if not one.t_start:
                one.t_start = time.perf_counter()
                self._start(one)

    def _begin(self, one: Running) -> bool:
        """Give a request its sequence if there is room for all it has to read; else it has none."""
        there = [pool.n_free + pool.n_kept for pool in self.cache.pools]
        if self._refused is not None and self._refused[0] is one and self.running:
            before = self._refused[1]
            if there and all(now <= then for now, then in zip(there, before, strict=True)):
                return False  # nothing has changed for the better
        try:
            self.reuse.begin(one)
        except OutOfPages:
            return False
        if self.running and not self._fits(one):
            self.reuse.end(one, keep=False)
            self._refused = (one, there)
            return False
        self._refused = None
        self.reuse.count(one)
        return True

    def _fits(self, one: Running) -> bool:
        """Whether what a request has to read fits besides what the others have to, and a page more for each."""
        sequence = one.sequence
        assert sequence is not None
        for i, pool in enumerate(self.cache.pools):
            need = 0
            for other in (*self.running, one):
                assert other.sequence is not None
                pages = -(-(len(other.feed) + 1) // PAGE_SIZE)
                need += max(pages - len(other.sequence.tables[i]), 0) if not other.decoding else 1
            if need > pool.n_free + pool.n_kept:
                return False
        return True


def _depth(reading: list[Running]) -> float:
    """How many positions a prompt row of the next step has in front of it, about: most rows are the oldest one's."""
    oldest = reading[0].n_fed
    others = max((one.n_fed for one in reading[1:]), default=oldest)
    return SHARE_OF_OLDEST * oldest + (1.0 - SHARE_OF_OLDEST) * max(oldest, others)

"""What an engine counts while it runs, and a snapshot of it."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import field

from ggfw.records import dataclass

#: Upper bounds of the buckets of step times, in seconds; the last bucket has none.
STEP_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
#: Upper bounds of the buckets of Python's time between two steps, in seconds; the last bucket has none.
GAP_BOUNDS = (0.000_025, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005)


@dataclass(frozen=True)
class Histogram:
    """Times by size.

    Args:
        bounds: upper bounds of the buckets but the last, in seconds.
        buckets: how many fell into each, not cumulated; one more than ``bounds``.
        sum: of all, in seconds.
        count: of all.
    """

    bounds: tuple[float, ...]
    buckets: tuple[int, ...]
    sum: float
    count: int

    def quantile(self, q: float) -> float:
        """The upper bound of the bucket in which the ``q``-quantile lies; 0 without entries, else perhaps inf."""
        seen, wanted = 0, q * self.count
        for bound, n in zip((*self.bounds, float("inf")), self.buckets, strict=True):
            seen += n
            if n and seen >= wanted:
                return bound
        return 0.0


@dataclass(frozen=True)
class PoolUse:
    """Pages of one pool.

    Args:
        n_pages: of the pool.
        n_used: that running requests refer to.
        n_kept: that only the prefix tree keeps.
        page_bytes: of one page.
        window: attention window of its layers, 0 = none.
    """

    n_pages: int
    n_used: int
    n_kept: int
    page_bytes: int
    window: int = 0


@dataclass(frozen=True)
class EngineMetrics:
    """A snapshot of one engine. Counts are since it was made.

    Args:
        n_running, n_waiting: requests now.
        prompt_tokens: evaluated for prompts, what was read again after a preemption included.
        cached_tokens: that needed no evaluation.
        generated_tokens: drawn.
        steps: that were run.
        step_seconds: how long they took, the executor's work in Python included.
        gap_seconds: Python's time between the native calls of two steps that followed each other at once.
        python_seconds: time of the engine's thread outside native calls: CPU time between steps, and what the executor
            needs before and after a call.
        rows: of all steps, prompts and drafts included.
        request_steps: segments of all steps: one per request and step.
        pools: use of pages.
        n_slots, n_slots_used: recurrent state slots.
        prefix_lookups, prefix_hits: requests that looked for a prefix, and those that found one.
        prefix_evictions: nodes of the prefix tree that made way.
        prefix_bytes: that the tree keeps: pages nobody refers to, and snapshots.
        snapshot_bytes: of them, snapshots of recurrent state.
        preemptions: of running requests.
        drafts_proposed, drafts_accepted: tokens of speculation.
        skipped: tokens that were the only ones a constraint allowed, taken without asking the model.
        canceled, failed: requests that ended so; finished: all others that ended.
    """

    n_running: int = 0
    n_waiting: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    step_seconds: Histogram = field(default_factory=lambda: Meter().histogram(STEP_BOUNDS))
    gap_seconds: Histogram = field(default_factory=lambda: Meter().histogram(GAP_BOUNDS))
    python_seconds: float = 0.0
    rows: int = 0
    request_steps: int = 0
    pools: tuple[PoolUse, ...] = ()
    n_slots: int = 0
    n_slots_used: int = 0
    prefix_lookups: int = 0
    prefix_hits: int = 0
    prefix_evictions: int = 0
    prefix_bytes: int = 0
    snapshot_bytes: int = 0
    preemptions: int = 0
    drafts_proposed: int = 0
    drafts_accepted: int = 0
    skipped: int = 0
    finished: int = 0
    canceled: int = 0
    failed: int = 0


class Meter:
    """Counters that the engine's thread writes and any thread may read."""

    def __init__(self) -> None:
        self.prompt_tokens = self.generated_tokens = self.rows = self.request_steps = 0
        self.drafts_proposed = self.drafts_accepted = self.skipped = 0
        self.finished = self.canceled = self.failed = 0
        self.steps = 0
        self.step_sum = self.gap_sum = self.python_seconds = 0.0
        self.step_buckets = [0] * (len(STEP_BOUNDS) + 1)
        self.gap_buckets = [0] * (len(GAP_BOUNDS) + 1)
        self._begin = 0.0
        self._left: float | None = None  # when the last step was over; None: the thread has slept since
        self._cpu = 0.0

    def asleep(self) -> None:
        """The thread has nothing to do: what follows is no gap between two steps."""
        self._left = None

    def before(self) -> None:
        """The executor is called next."""
        if self._left is not None:
            self.python_seconds += time.thread_time() - self._cpu
        self._begin = time.perf_counter()

    def after(self, native: float | None, n_rows: int, n_segments: int) -> float:
        """The executor has returned; gives how many seconds it took.

        Args:
            native: of them, seconds inside native calls; None: all.
        """
        now = time.perf_counter()
        took = now - self._begin
        python = 0.0 if native is None else max(took - native, 0.0)
        self.steps += 1
        self.rows += n_rows
        self.request_steps += n_segments
        self.step_sum += took
        self.python_seconds += python
        self.step_buckets[bisect_left(STEP_BOUNDS, took)] += 1
        if self._left is not None:
            gap = self._begin - self._left + python
            self.gap_sum += gap
            self.gap_buckets[bisect_left(GAP_BOUNDS, gap)] += 1
        self._left = now
        self._cpu = time.thread_time()
        return took

    @staticmethod
    def histogram(
        bounds: tuple[float, ...], buckets: list[int] | None = None, total: float = 0.0
    ) -> Histogram:
        """A snapshot of some buckets."""
        taken = tuple(buckets or [0] * (len(bounds) + 1))
        return Histogram(bounds, taken, total, sum(taken))

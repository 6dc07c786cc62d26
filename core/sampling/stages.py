"""The stages of the chain that shrink or reshape the list of candidates, in llama.cpp's order.

A stage takes candidates and gives candidates; both are sorted best first and never empty. ``order`` is its place
in the default chain; plugins' stages choose numbers in between. A stage that needs only the best few of its input
says so by ``limit``, so that the chain need not sort a whole vocabulary for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from ggfw.sampling.arithmetic import F32, NEG_INF, Ids, best_first, exp_differences, normalised
from ggfw.sampling.rng import Pcg

if TYPE_CHECKING:
    from ggfw.sampling.edits import Window


class Candidates(NamedTuple):
    """Ids (n,) int64 with their logits (n,) float32, best first, n >= 1, no NaN or -inf."""

    ids: Ids
    logits: F32

    def head(self, n: int) -> Candidates:
        """The best ``n``."""
        return Candidates(self.ids[:n], self.logits[:n])

    def pick(self, index: Ids) -> Candidates:
        """The candidates at these positions."""
        return Candidates(self.ids[index], self.logits[index])


@dataclass
class StageContext:
    """What a stage may look at beside its candidates: the sampler's generator, its window, the vocabulary's size."""

    rng: Pcg
    window: Window
    n_vocab: int


class Stage(Protocol):
    """A step of the chain."""

    name: str
    order: int
    limit: int | None

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        """The candidates that remain, sorted best first, at least one."""
        ...


class TopK:
    """Keep the ``k`` best."""

    name = "top_k"
    order = 500

    def __init__(self, k: int) -> None:
        self.limit: int | None = k

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        return c.head(self.limit or c.ids.size)


class Typical:
    """Keep the candidates whose surprise is nearest to the entropy, until their probabilities exceed ``p``.

    surprise = -ln p, entropy H = sum of p * surprise (float64); sorted by |surprise - H|, the likelier first on a
    tie; kept up to and including the first with cumulated float32 probability > ``p``. Source: Meister et al.,
    "Locally Typical Sampling", in llama.cpp's form.
    """

    name = "typical_p"
    order = 600
    limit: int | None = None

    def __init__(self, p: float) -> None:
        self._p = np.float32(p)

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        if c.ids.size < 2:
            return c
        e, total, differences = exp_differences(c.logits)
        p = e / total
        surprise = math.log(total) - differences.astype(np.float64)
        entropy = np.add.accumulate(np.where(p > 0, p * surprise, 0.0))[-1]
        typical_first = np.argsort(np.abs(surprise - entropy), kind="stable")
        cumulated = np.add.accumulate(p.astype(np.float32)[typical_first])
        kept = typical_first[: int(np.searchsorted(cumulated, self._p, side="right")) + 1]
        return c.pick(np.sort(kept))


class TopP:
    """Keep the smallest head of the candidates whose probabilities (without temperature) reach ``p``, at least one.

    The running sum is float32; the first position where it is >= ``p`` is kept.
    """

    name = "top_p"
    order = 700
    limit: int | None = None

    def __init__(self, p: float) -> None:
        self._p = np.float32(p)

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        if c.ids.size < 2:
            return c
        cumulated = np.add.accumulate(normalised(c.logits))
        return c.head(int(np.searchsorted(cumulated, self._p, side="left")) + 1)


class MinP:
    """Keep the candidates whose probability is at least ``p`` times the best one's: logit >= best + ln p (float32)."""

    name = "min_p"
    order = 800
    limit: int | None = None

    def __init__(self, p: float) -> None:
        self._log_p = np.float32(math.log(np.float32(p)))

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        return c.head(max(1, int(np.count_nonzero(c.logits >= c.logits[0] + self._log_p))))


class Temperature:
    """Divide the logits by ``t`` > 0 (float32).

    A temperature so small that the best logit overflows leaves the best candidate alone (the limit is greedy);
    candidates that become -inf leave the list.
    """

    name = "temperature"
    order = 1000
    limit: int | None = None

    def __init__(self, t: float) -> None:
        self._t = np.float32(t)

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        if c.ids.size < 2:
            return c
        logits = c.logits / self._t
        if not np.isfinite(logits[0]):
            return c.head(1)
        return Candidates(c.ids, logits).head(int(np.count_nonzero(logits > NEG_INF)))


def sorted_candidates(ids: Ids, logits: F32) -> Candidates:
    """Candidates from pairs with rising ids: NaN and -inf dropped, best first, ties by the lower id; may be empty."""
    above = logits > NEG_INF
    if not above.all():
        ids, logits = ids[above], logits[above]
    order = best_first(logits)
    return Candidates(ids[order], logits[order])

"""The stages of the chain that shrink or reshape the list of candidates, in llama.cpp's order.

A stage takes candidates and gives candidates; both are sorted best first and never empty. ``order`` is its place
in the default chain; plugins' stages choose numbers in between. A stage that needs only the best few of its input
says so by ``limit``, so that the chain need not sort a whole vocabulary for it.

Beyond the protocol a stage may have

- ``bound(row) -> float32 | None``: when it comes first, the least logit of the row that it keeps, instead of
  :meth:`Stage.apply`; None where it cannot say.
- ``seed(ids)`` and ``accept(token)``: the prompt, and each token that entered the text.
- ``select(candidates, context) -> int``: the last stage of the chain may draw the token itself (the position in
  the candidates, of which there are at least two).

It is copied with ``copy.deepcopy`` when its sampler is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from ggfw.errors import NonFiniteLogits
from ggfw.records import dataclass
from ggfw.sampling.arithmetic import F32, F64, NEG_INF, Ids, best_first, exp_differences, normalised
from ggfw.sampling.rng import Pcg

if TYPE_CHECKING:
    from ggfw.sampling.edits import Edit, Window


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
    """What a stage may look at beside its candidates.

    Attributes:
        rng: the sampler's random generator.
        window: its penalty window.
        n_vocab: the vocabulary's size.
        row: the model's logits (n_vocab,) float32, before all edits; not to be written to.
    """

    rng: Pcg
    window: Window
    n_vocab: int
    row: F32


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

    name = "typ_p"
    order = 600
    limit: int | None = None

    def __init__(self, p: float, min_keep: int = 0) -> None:
        self._p = np.float32(p)
        self._min_keep = min_keep

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        if c.ids.size < 2:
            return c
        p, surprise, entropy = surprises(c.logits)
        typical_first = np.argsort(np.abs(surprise - entropy), kind="stable")
        cumulated = np.add.accumulate(p.astype(np.float32)[typical_first])
        n_kept = int(np.searchsorted(cumulated, self._p, side="right")) + 1
        kept = typical_first[: max(n_kept, self._min_keep)]
        return c.pick(np.sort(kept))


class TopP:
    """Keep the smallest head of the candidates whose probabilities (without temperature) reach ``p``, at least one.

    The running sum is float32; the first position where it is >= ``p`` is kept.
    """

    name = "top_p"
    order = 700
    limit: int | None = None

    def __init__(self, p: float, min_keep: int = 0) -> None:
        self._p = np.float32(p)
        self._min_keep = min_keep

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        if c.ids.size < 2:
            return c
        cumulated = np.add.accumulate(normalised(c.logits))
        return c.head(max(int(np.searchsorted(cumulated, self._p, side="left")) + 1, self._min_keep))


class MinP:
    """Keep the candidates whose probability is at least ``p`` times the best one's: logit >= best + ln p (float32)."""

    name = "min_p"
    order = 800
    limit: int | None = None

    def __init__(self, p: float, min_keep: int = 0) -> None:
        self._log_p = np.float32(math.log(np.float32(p)))
        self._min_keep = max(1, min_keep)

    def bound(self, row: F32) -> np.float32 | None:
        """The least logit that is kept of a row; None when ``min_keep`` may ask for more."""
        return row.max() + self._log_p if self._min_keep == 1 else None

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        n = int(np.count_nonzero(c.logits >= c.logits[0] + self._log_p))
        return c.head(max(n, self._min_keep))


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
        return _divided(c, self._t) if c.ids.size > 1 else c


class DynamicTemperature:
    """A temperature between ``t - width`` (not below 0) and ``t + width`` that grows with the entropy.

    ``T = Tmin + (Tmax - Tmin) * (H / ln n)^exponent`` for n candidates of entropy H (float64); 0 leaves the best alone.
    Source: "entropy-based dynamic temperature" of kalomaze, in llama.cpp's form.
    """

    name = "temperature"
    order = 1000
    limit: int | None = None

    def __init__(self, t: float, width: float, exponent: float) -> None:
        self._lowest = float(max(np.float32(0), np.float32(t) - np.float32(width)))
        self._highest = float(np.float32(t) + np.float32(width))
        self._exponent = float(np.float32(exponent))

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        n = c.ids.size
        if n < 2:
            return c
        _, _, entropy = surprises(c.logits)
        share = min(max(entropy / math.log(n), 0.0), 1.0)
        t = np.float32(self._lowest + (self._highest - self._lowest) * math.pow(share, self._exponent))
        return _divided(c, t) if t > 0 else c.head(1)


def _divided(c: Candidates, t: np.float32) -> Candidates:
    logits: F32 = np.divide(c.logits, t, dtype=np.float32)
    if not np.isfinite(logits[0]):
        return c.head(1)
    return Candidates(c.ids, logits).head(int(np.count_nonzero(logits > NEG_INF)))


def surprises(logits: F32) -> tuple[F64, F64, float]:
    """Of sorted ``logits`` (n,): probabilities, surprises ``-ln p`` (both float64) and their mean, the entropy."""
    e, total, differences = exp_differences(logits)
    p = e / total
    surprise = math.log(total) - differences.astype(np.float64)
    return p, surprise, float(np.add.accumulate(np.where(p > 0, p * surprise, 0.0))[-1])


class EditStage:
    """An edit (penalties, DRY) that comes after a filter: it changes the candidates' logits and sorts them anew.

    Raises:
        NonFiniteLogits: it left no candidate above -inf.
    """

    limit: int | None = None

    def __init__(self, edit: Edit) -> None:
        self.edit = edit
        self.name, self.order = edit.name, edit.order

    def seed(self, ids: Iterable[int]) -> None:
        """Pass the prompt on."""
        if hasattr(self.edit, "seed"):
            self.edit.seed(ids)

    def accept(self, token: int) -> None:
        """Pass a token on."""
        if hasattr(self.edit, "accept"):
            self.edit.accept(token)

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        by_id = np.argsort(c.ids)
        ids, logits = c.ids[by_id], c.logits[by_id]
        out = sorted_candidates(ids, self.edit.edit(ids, logits))
        if not out.ids.size:
            raise NonFiniteLogits(f"all candidates are -inf after {self.name}; penalise less")
        return out


def sorted_candidates(ids: Ids, logits: F32) -> Candidates:
    """Candidates from pairs with rising ids: NaN and -inf dropped, best first, ties by the lower id; may be empty."""
    above = logits > NEG_INF
    if not above.all():
        ids, logits = ids[above], logits[above]
    order = best_first(logits)
    return Candidates(ids[order], logits[order])

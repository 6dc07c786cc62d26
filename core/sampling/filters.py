"""Further stages that shrink the list of candidates: top-n-sigma and XTC."""

from __future__ import annotations

import numpy as np

from ggfw.sampling.arithmetic import F32, NEG_INF, normalised
from ggfw.sampling.stages import Candidates, StageContext

#: A sum over a row is kept in so many interleaved parts, added up at the end: the native scan's vector lanes.
LANES = 16


def lane_sum(values: np.ndarray) -> float:
    """Sum of float64 values (n,): lane i mod 16 by lane, then the lanes from first to last."""
    n = values.size
    padded = np.zeros((max(1, -(-n // LANES)), LANES))
    padded.reshape(-1)[:n] = values
    return float(np.add.accumulate(np.add.accumulate(padded, axis=0)[-1])[-1])


class TopNSigma:
    """Keep the logits that are at least ``max - n * sigma``, sigma being the standard deviation of the logits.

    -inf entries count for neither mean nor deviation. Mean and deviation are float64, the bound float32. Source: Tang
    et al., "Top-n-sigma: Not All Logits Are You Need", in llama.cpp's form. There the others stay in the list, at
    -inf, so that ``min_keep`` and a dynamic temperature count them and typical-p fails; here they are gone.
    """

    name = "top_n_sigma"
    order = 400
    limit: int | None = None

    def __init__(self, n: float) -> None:
        self._n = float(np.float32(n))

    def bound(self, row: F32) -> np.float32:
        """The least logit that is kept of a row (n,) with no NaN."""
        above = row > NEG_INF
        n_above = int(np.count_nonzero(above))
        best = row.max()
        if not np.isfinite(best):
            return np.float32(best)
        values = np.where(above, row, 0.0).astype(np.float64)
        mean = lane_sum(values) / n_above
        squares = np.where(above, (values - mean) * (values - mean), 0.0)
        sigma = float(np.sqrt(lane_sum(squares) / n_above))
        return np.float32(float(best) - self._n * sigma)

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        if c.ids.size < 2:
            return c
        return c.head(max(1, int(np.count_nonzero(c.logits >= self.bound(c.logits)))))


class Xtc:
    """With some chance drop all candidates but the least likely of those that reach a probability.

    Draws one random number for the chance when there are at least two candidates. Source: p-e-w, "Exclude top
    choices", in llama.cpp's form.

    Args:
        probability: the chance, > 0.
        threshold: the probability, <= 0.5.
        min_keep: nothing is dropped if fewer candidates would remain.
    """

    name = "xtc"
    order = 900
    limit: int | None = None

    def __init__(self, probability: float, threshold: float, min_keep: int = 0) -> None:
        self._probability, self._threshold = np.float32(probability), np.float32(threshold)
        self._min_keep = min_keep

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        n = c.ids.size
        if n < 2 or np.float32(context.rng.float64()) > self._probability:
            return c
        last = int(np.count_nonzero(normalised(c.logits) >= self._threshold)) - 1
        if last < 1 or n - last < self._min_keep:
            return c
        return Candidates(c.ids[last:], c.logits[last:])

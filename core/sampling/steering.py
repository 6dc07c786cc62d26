"""Stages that steer the text by what was drawn before: mirostat 1 and 2, adaptive-p.

Each remembers the probabilities of the candidates it last gave and learns from :meth:`accept` which one entered the
text; a token that was not among them teaches nothing.
"""

from __future__ import annotations

import math

import numpy as np

from ggfw.sampling.arithmetic import F32, Ids, best_first, normalised
from ggfw.sampling.stages import Candidates, StageContext

#: Mirostat 1 estimates the exponent of Zipf's law from so many of the best candidates.
N_ZIPF = 100


class _Steering:
    """Remembers candidates with their probabilities."""

    order = 1100
    limit: int | None = None

    def __init__(self) -> None:
        self._ids: Ids = np.empty(0, np.int64)
        self._probabilities: F32 = np.empty(0, np.float32)

    def _remember(self, ids: Ids, probabilities: F32) -> None:
        self._ids, self._probabilities = ids, probabilities

    def _recall(self, token: int) -> float | None:
        """The probability that ``token`` had, once."""
        at = np.flatnonzero(self._ids == token)
        found = float(self._probabilities[at[0]]) if at.size else None
        self._remember(self._ids[:0], self._probabilities[:0])
        return found


class _Mirostat(_Steering):
    def __init__(self, tau: float, eta: float) -> None:
        super().__init__()
        self._tau, self._eta = tau, eta
        #: The highest surprise, in bits, that is let through.
        self.mu = 2 * tau

    def accept(self, token: int) -> None:
        """Move mu against the error: ``mu -= eta * (surprise - tau)``."""
        p = self._recall(token)
        if p:
            self.mu -= self._eta * (-math.log2(p) - self._tau)

    def _kept(self, c: Candidates) -> Candidates:
        self._remember(c.ids, normalised(c.logits))
        return c


class Mirostat(_Mirostat):
    """Mirostat 1: estimate the exponent s of Zipf's law, then keep the k best that give the surprise mu.

    ``k = (eps * 2^mu / (1 - N^-eps))^(1/s)`` with ``eps = s - 1`` and N the vocabulary's size. Source: Basu et al.,
    "Mirostat: a neural text decoding algorithm that directly controls perplexity".
    """

    name = "mirostat"

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        return self._kept(c if c.ids.size < 2 else c.head(self._width(c.logits, context.n_vocab)))

    def _width(self, logits: F32, n_vocab: int) -> int:
        best = logits[:N_ZIPF].astype(np.float64)
        ranks = np.log(np.arange(2, best.size + 1) / np.arange(1, best.size))
        s = float(np.dot(ranks, best[:-1] - best[1:]) / np.dot(ranks, ranks))
        eps = s - 1
        log_n = math.log(max(n_vocab, 2))
        # ln of eps / (1 - N^-eps); both signs of eps, and its limit 1 / ln N at 0
        log_ratio = -math.log(log_n) if abs(eps) < 1e-9 else math.log(eps / -math.expm1(-eps * log_n))
        log_k = log_ratio + self.mu * math.log(2)
        if s <= 0:  # all equal: any k has the same surprise per candidate
            return logits.size if log_k > 0 else 1
        return max(1, int(math.exp(min(log_k / s, math.log(logits.size) + 1))))


class Mirostat2(_Mirostat):
    """Mirostat 2: keep the candidates whose surprise ``-log2 p`` is at most mu, at least one."""

    name = "mirostat_v2"

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        p = normalised(c.logits)
        with np.errstate(divide="ignore"):
            surprise = -np.log2(p.astype(np.float64))
        return self._kept(c.head(max(1, int(np.searchsorted(surprise, self.mu, side="right")))))


class AdaptiveP(_Steering):
    """Prefer candidates near a target probability; the target moves against the average of what was drawn.

    With d = |p - target| / 0.3 the new logit is ``5 - 10 * d^2 / (1 + d)``. The average is exponential and is of the
    probabilities before this change. Source: llama.cpp's adaptive-p.

    Args:
        target: 0 to 1.
        decay: of the average, 0 to 0.99.
    """

    name = "adaptive_p"

    WIDTH, PEAK, SHARPNESS = np.float32(0.3), np.float32(5), np.float32(10)

    def __init__(self, target: float, decay: float) -> None:
        super().__init__()
        self._target, self._decay = target, decay
        self._sum, self._weight = target / (1 - decay), 1 / (1 - decay)

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        p = normalised(c.logits)
        self._remember(c.ids, p)
        target = np.float32(min(max(2 * self._target - self._sum / self._weight, 0.0), 1.0))
        d = np.abs(p - target) / self.WIDTH
        logits = self.PEAK - self.SHARPNESS * d * d / (1 + d)
        by_id = np.argsort(c.ids)  # so that equal ones come by their ids
        ids, logits = c.ids[by_id], logits[by_id]
        order = best_first(logits)
        return Candidates(ids[order], logits[order])

    def accept(self, token: int) -> None:
        """Take the probability of ``token`` into the average."""
        p = self._recall(token)
        if p is not None:
            self._sum = p + self._decay * self._sum
            self._weight = 1 + self._decay * self._weight

"""Log-probabilities of the model's own distribution: before bias, penalties and every other stage."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from ggfw.records import dataclass
from ggfw.sampling.arithmetic import as_row, best_first, select_best

#: Entries so far below the best one cannot change a float64 sum, however many there are.
NEGLIGIBLE = 80.0


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the likeliest tokens.

    Args:
        id: the token.
        logprob: natural logarithm of its probability.
    """

    id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A drawn token with its log-probability.

    Args:
        id: the token.
        logprob: natural logarithm of the probability that the model gave it; -inf for none at all.
        top: the likeliest tokens at this place, best first, as many as were asked for.
        part: what the token became: ``text``, ``reasoning``, or empty for what is not shown (markers, tool calls, end
            tokens, stop strings).
    """

    id: int
    logprob: float
    top: tuple[TopLogprob, ...] = ()
    part: str = ""


def token_logprob(row: ArrayLike, token: int, n: int = 0) -> TokenLogprob:
    """The log-probability of ``token`` and of the ``n`` likeliest tokens in a row of logits (n_vocab,) float32.

    ``l - max - ln(sum of e^(l_i - max))`` in float64. NaN and -inf have no probability; entries of +inf share
    everything.

    Raises:
        NonFiniteLogits: no entry is above -inf.
    """
    logits = as_row(row)
    best = logits.max()
    if best == np.inf:
        total = math.log(int(np.count_nonzero(logits == np.inf)))
    else:
        below = logits.astype(np.float64) - float(best)
        total = math.log(float(np.exp(below[below > -NEGLIGIBLE]).sum()))

    def logprob(token: int) -> float:
        logit = float(logits[token])
        return -total if logit == best else logit - float(best) - total

    ids = select_best(logits, n) if n > 0 else np.empty(0, np.int64)
    ids = ids[best_first(logits[ids])]
    top = tuple(TopLogprob(int(i), logprob(int(i))) for i in ids)
    return TokenLogprob(int(token), logprob(int(token)), top)

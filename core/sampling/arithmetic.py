"""The arithmetic of one logits row: exact selection of the best, exponentials, softmax, greedy choice.

Everything here is built from IEEE basic operations in a fixed order, so that the native sampler
(``kernels_c/src/sampler.c``) gives the same bits on every machine: the exponential is our own polynomial instead of
the mathematics library's, and sums run from the first to the last element instead of pairwise.

Conventions: a row is ``(n_vocab,)`` float32 and is never written to; NaN counts as -inf; -inf is never chosen;
of equal logits (+0 and -0 are equal) the lower id comes first.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ggfw.errors import InvalidRequest, NonFiniteLogits

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Ids = NDArray[np.int64]

NEG_INF = np.float32(-np.inf)

LOG2_E = 1.4426950408889634
#: ln 2 in two parts; the first has 21 bits of mantissa set to zero, so that k * LN2_HI is exact for |k| < 2^11.
LN2_HI = float.fromhex("0x1.62e42fee00000p-1")
LN2_LO = float.fromhex("0x1.a39ef35793c76p-33")
#: 1.5 * 2^52: adding it rounds to the nearest integer, which then stands in the low bits of the mantissa.
ROUNDER = 6755399441055744.0
#: Below this exp() is taken as 0: the result stays a normal number, whatever the denormal mode of the processor.
EXP_LOWEST = -708.0
#: 1/13!, 1/12!, ..., 1/1!, 1/0!: on |r| <= ln(2)/2 the series is exact to 4e-18 relative.
EXP_TERMS = tuple(1.0 / math.factorial(i) for i in range(13, -1, -1))

#: So many float64 and their temporaries stay in the cache; longer arrays are done piece by piece.
CACHED = 8192
#: Up to here a plain partition, and a plain stable sort, is fast enough.
SMALL_ROW = 4096
LARGEST_BLOCK, SMALLEST_BLOCK = 256, 16


def as_row(row: ArrayLike) -> F32:
    """View ``row`` as one row of logits: (n_vocab,) float32, NaN replaced by -inf in a copy.

    Raises:
        InvalidRequest: more than one dimension.
        NonFiniteLogits: nothing in a non-empty row is above -inf.
    """
    out = np.asarray(row, dtype=np.float32)
    if out.ndim != 1:
        raise InvalidRequest(
            f"a row of logits has one dimension, this one has shape {out.shape}", param="row"
        )
    if out.size == 0:
        return out
    best = out.max()
    if np.isnan(best):
        out = np.where(np.isnan(out), NEG_INF, out)
        best = out.max()
    if best == NEG_INF:
        raise NonFiniteLogits(
            f"all {out.size} logits are NaN or -inf, so no token can be chosen; check the model file (ggfw verify)"
        )
    return out


def exp_nonpositive(x: ArrayLike) -> F64:
    """e^x for x (n,) <= 0 in float64, within 1 ulp; 0 below -708.

    Source: range reduction by k = round(x / ln 2), series of degree 13, scaling by 2^k through the exponent bits.
    """
    x = np.asarray(x, dtype=np.float64)
    if x.size > CACHED:
        return np.concatenate([exp_nonpositive(x[i : i + CACHED]) for i in range(0, x.size, CACHED)])
    clamped = np.maximum(x, EXP_LOWEST)
    shifted = clamped * LOG2_E + ROUNDER
    k = shifted - ROUNDER
    r = (clamped - k * LN2_HI) - k * LN2_LO
    e = np.full_like(r, EXP_TERMS[0])
    for term in EXP_TERMS[1:]:
        e *= r
        e += term
    e *= ((shifted.view(np.int64) << 52) + (1023 << 52)).view(np.float64)
    e[x < EXP_LOWEST] = 0.0
    return e


def exp_differences(logits: F32) -> tuple[F64, float, F32]:
    """Terms of a softmax: (exp of the differences to the maximum, their sum from first to last, the differences).

    The difference is taken in float32, the exponential and the sum in float64. ``logits`` (n,) holds no NaN and its
    maximum is finite.
    """
    differences = logits - logits.max()
    e = exp_nonpositive(differences)
    return e, float(np.add.accumulate(e)[-1]), differences


def normalised(logits: F32) -> F32:
    """Probabilities (n,) float32 of finite ``logits`` (n,), in their order."""
    e, total, _ = exp_differences(logits)
    return (e / total).astype(np.float32)


def softmax(row: ArrayLike) -> F32:
    """Probabilities of a row of logits, (n_vocab,) float32.

    NaN and -inf get 0; entries of +inf share everything equally. An empty row gives an empty result.

    Raises:
        NonFiniteLogits: no entry is above -inf.
    """
    logits = as_row(row)
    if logits.size == 0:
        return logits.copy()
    if logits.max() == np.inf:
        certain = logits == np.inf
        return (certain / np.count_nonzero(certain)).astype(np.float32)
    return normalised(logits)


def greedy(row: ArrayLike) -> int:
    """Id of the best logit of a row (n_vocab,), the lowest id on a tie; NaN counts as -inf; 0 for an empty row.

    Raises:
        NonFiniteLogits: no entry is above -inf.
    """
    logits = as_row(row)
    return int(logits.argmax()) if logits.size else 0


def select_best(row: F32, k: int) -> Ids:
    """Ids of the ``k`` best entries above -inf of a clean row (n,), ascending; fewer if the row has fewer.

    Of entries that tie for the last places the lower ids are taken. The k-th largest maximum of blocks is a lower
    bound of the k-th best entry, so only the few entries not below it are looked at.
    """
    n = row.size
    bound = NEG_INF
    if k < n and n > SMALL_ROW:
        block = LARGEST_BLOCK
        while block > SMALLEST_BLOCK and n // block < 4 * k:
            block //= 2
        n_blocks = n // block
        if k <= n_blocks:
            maxima = row[: n_blocks * block].reshape(n_blocks, block).max(axis=1)
            bound = np.partition(maxima, n_blocks - k)[n_blocks - k]
    ids = np.flatnonzero(row >= bound) if bound > NEG_INF else np.flatnonzero(row > NEG_INF)
    if ids.size > k:
        values = row[ids]
        last = np.partition(values, ids.size - k)[ids.size - k]
        keep = values > last
        keep[np.flatnonzero(values == last)[: k - np.count_nonzero(keep)]] = True
        ids = ids[keep]
    return ids


def best_first(logits: F32) -> NDArray[np.int64]:
    """The permutation that sorts ``logits`` (n,) falling, equal ones by their position. No NaN."""
    if logits.size <= SMALL_ROW:
        return np.argsort(-logits, kind="stable")
    bits = (logits + np.float32(0.0)).view(np.uint32)  # the sum makes +0 of -0
    # Positive floats order like their bits, negative ones backwards; all inverted, for the best is to come first.
    falling = np.where(bits >> 31, bits, bits ^ np.uint32(0x7FFFFFFF))
    # NumPy's stable sort of 16-bit integers is a radix sort: low half first, then the high half.
    order = np.argsort(falling.astype(np.uint16), kind="stable")
    return order[np.argsort((falling >> 16).astype(np.uint16)[order], kind="stable")]

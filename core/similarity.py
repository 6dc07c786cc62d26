"""How alike two vectors are."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ggfw.arguments import floats
from ggfw.errors import InvalidRequest

__all__ = ["cosine_similarity"]


def cosine_similarity(a: ArrayLike, b: ArrayLike) -> float:
    """Return the cosine of the angle between two vectors: 1 for the same direction, 0 for a right angle.

    Args:
        a, b: (n,) numbers; computed in float64.

    Raises:
        InvalidRequest: they have different lengths, more than one dimension, no elements, or length zero.
    """
    x, y = floats("a", a, np.float64), floats("b", b, np.float64)
    if x.ndim != 1 or x.shape != y.shape or x.size == 0:
        raise InvalidRequest(
            f"two vectors of the same length were expected, not {x.shape} and {y.shape}", "b"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InvalidRequest(
            "a vector has a number that is infinite or none at all, so it has no direction", "a"
        )
    x, y = (v / (np.abs(v).max() or 1.0) for v in (x, y))  # so that no square is too large or too small
    lengths = float(np.linalg.norm(x)) * float(np.linalg.norm(y))
    if not lengths > 0.0:
        raise InvalidRequest("a vector of length zero points nowhere, so it is like no other", "a")
    return float(np.clip(x @ y / lengths, -1.0, 1.0))

"""The protocol between the sampler and a grammar, JSON schema or any other rule about the next token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ggfw.errors import brief
from ggfw.sampling.arithmetic import F32, NEG_INF, Ids


@runtime_checkable
class Constraint(Protocol):
    """What may come next. The sampler draws first and asks once; only on refusal does it sweep the vocabulary.

    One with a method ``copy`` (an independent constraint in the same state) stays as it is: each answer has a copy of
    its own. Without it the constraint serves one answer, which advances it.
    """

    def allows(self, token: int) -> bool:
        """Whether ``token`` may come next; a pure question, the state does not change."""
        ...

    def accept(self, token: int) -> None:
        """Advance by ``token``; a token that is not allowed leaves the state untouched."""
        ...

    def first_bytes(self) -> Sequence[bool] | NDArray[np.bool_]:
        """256 flags: a superset of the bytes the next token may begin with; index 0 covers tokens without bytes."""
        ...

    def first_byte(self, token: int) -> int:
        """First byte of ``token``'s text; 0 if it has none or ends the generation."""
        ...


@runtime_checkable
class MaskedConstraint(Constraint, Protocol):
    """A constraint that can say everything at once. It also knows when it is satisfied."""

    #: Whether nothing but the end may follow.
    complete: bool
    #: Why nothing may follow although the constraint is not satisfied; None if all is well.
    failure: str | None

    def mask(self) -> NDArray[np.bool_]:
        """(n_vocab,) bool: which tokens may come next, exactly those that :meth:`allows` allows."""
        ...

    def bitmask(self) -> NDArray[np.uint32]:
        """The mask as bits: bit i % 32 of word i // 32. Valid until the state changes; tokens beyond it are refused."""
        ...

    def prepare(self) -> None:
        """The next question comes in a while: a chance to begin with the mask in another thread."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """A constraint that knows some of what has to come."""

    def forced(self) -> list[int]:
        """Tokens that most probably follow, because little else is allowed."""
        ...

    def sole(self) -> int | None:
        """The only token that may come next; None where there are others, or where that is not known cheaply."""
        ...

    def allowed_prefix(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens`` may follow one after the other; the state does not change."""
        ...


def own_constraint(constraint: Constraint | None) -> Constraint | None:
    """The constraint for one answer: a copy where there can be one, else ``constraint`` itself.

    Raises:
        TypeError: what its method gives is no constraint; without one the answer would be anything.
    """
    copy = getattr(constraint, "copy", None)
    if not callable(copy):
        return constraint
    own = copy()
    if not isinstance(own, Constraint):
        raise TypeError(f"{type(constraint).__name__}.copy() gave {brief(own)}; a constraint was expected")
    return own


def masked_row(row: F32, constraint: MaskedConstraint) -> F32 | None:
    """A row of logits (n_vocab,) with everything that is refused at -inf; None if nothing finite is left."""
    mask = constraint.mask()
    if mask.size < row.size:  # logits that belong to no token
        mask = np.concatenate([mask, np.zeros(row.size - mask.size, np.bool_)])
    out = np.where(mask[: row.size], row, NEG_INF)
    return out if out.size and out.max() > NEG_INF else None


def allowed_ids(constraint: Constraint, ids: Ids) -> Ids:
    """Those of ``ids`` that the constraint allows, in their order; the cheap question about the lead byte is first."""
    if isinstance(constraint, MaskedConstraint):
        mask = constraint.mask()
        ids = ids[ids < mask.size]
        return ids[mask[ids]]
    lead = constraint.first_bytes()
    return np.asarray(
        [i for i in ids.tolist() if lead[constraint.first_byte(i)] and constraint.allows(i)], dtype=np.int64
    )

"""A sampler under a constraint that knows its mask: the same protocol for the Python and for the native chain."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ggfw.errors import NonFiniteLogits
from ggfw.sampling.constraint import MaskedConstraint, masked_row


class Chain(Protocol):
    """What :class:`ggfw.sampling.Sampler` and its native twin have in common."""

    def seed(self, ids: Iterable[int]) -> None:
        """Take the prompt in."""

    def accept(self, token: int) -> None:
        """Take a token in."""

    def pick(self, row: ArrayLike) -> int:
        """One token for a row of logits."""


class ConstrainedSampler:
    """Draw, ask once, and on refusal draw again from the same row with everything refused at -inf.

    The result does not depend on when the mask was computed, nor on whether it was needed.

    Args:
        chain: draws; any penalties and random numbers are its own.
        constraint: in its first state.
    """

    def __init__(self, chain: Chain, constraint: MaskedConstraint) -> None:
        self.chain = chain
        self.constraint = constraint
        #: The native chain looks at the mask itself, without a masked copy of the row made in NumPy.
        self._pick_masked: Callable[[ArrayLike, NDArray[np.uint32]], int] | None = getattr(
            chain, "pick_masked", None
        )
        #: How often the first draw was refused.
        self.n_refused = 0

    def seed(self, ids: Iterable[int]) -> None:
        """Take the prompt in; the constraint does not see it."""
        self.chain.seed(ids)

    def accept(self, token: int) -> None:
        """Say that ``token`` entered the text."""
        self.chain.accept(token)
        self.constraint.accept(token)

    def prepare(self) -> None:
        """Before the model runs: the constraint may compute its mask meanwhile."""
        self.constraint.prepare()

    def pick(self, row: ArrayLike) -> int:
        """One token for a row of raw logits (n_vocab,) float32, which is not written to.

        If nothing in the vocabulary is allowed, the refused token is returned (the caller may ask and stop).

        Raises:
            NonFiniteLogits: the row has no logit above -inf.
        """
        return self.settle(self.chain.pick(row), row)

    def settle(self, token: int, row: ArrayLike) -> int:
        """What becomes of the first draw ``token`` from ``row``: itself, or what is drawn instead."""
        if self.constraint.allows(token):
            return token
        self.n_refused += 1
        try:
            if self._pick_masked is not None:
                return self._pick_masked(row, self.constraint.bitmask())
            masked = masked_row(np.asarray(row, np.float32), self.constraint)
            return token if masked is None else self.chain.pick(masked)
        except NonFiniteLogits:  # nothing is allowed, or what is allowed has been biased away
            return token

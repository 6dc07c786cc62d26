"""The protocol between the sampler and a grammar, JSON schema or any other rule about the next token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ggfw.sampling.arithmetic import Ids


@runtime_checkable
class Constraint(Protocol):
    """What may come next. The sampler draws first and asks once; only on refusal does it sweep the vocabulary."""

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


def allowed_ids(constraint: Constraint, ids: Ids) -> Ids:
    """Those of ``ids`` that the constraint allows, in their order; the cheap question about the lead byte is first."""
    lead = constraint.first_bytes()
    return np.asarray(
        [i for i in ids.tolist() if lead[constraint.first_byte(i)] and constraint.allows(i)], dtype=np.int64
    )

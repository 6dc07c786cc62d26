"""A sampler stage of one's own: ``python examples/custom_sampler_stage.py``.

As a package it has an entry point in the group ``ggfw`` (``ggfw plugins new sampler_stages NAME`` writes one);
then every front end knows the stage's parameter. Here it is checked and tried without being installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggfw.descriptors import SamplerStage
from ggfw.sampling import Candidates
from ggfw.testing import check_sampler_stage


class Odd:
    """Leaves only tokens with odd ids, if there are any."""

    name, order, limit = "odd_only", 760, None

    def apply(self, candidates: Candidates, context: Any) -> Candidates:
        """Return the candidates that stay, in their order."""
        keep = candidates.ids % 2 == 1  # (n,)
        return Candidates(candidates.ids[keep], candidates.logits[keep]) if keep.any() else candidates


def make(params: Any) -> Odd | None:
    """The stage of one request; None where its parameter switches it off."""
    return Odd() if params.extra["odd_only"] else None


STAGE = SamplerStage(
    name="odd_only", order=760, load=make, params={"odd_only": False}, summary="only tokens with odd ids"
)


def main() -> list[int]:
    """Check the stage against the rules for its kind, and apply it."""
    check_sampler_stage(STAGE)
    candidates = Candidates(np.array([4, 7, 2, 9]), np.array([3.0, 2.0, 1.0, 0.0], np.float32))
    kept = [int(i) for i in Odd().apply(candidates, None).ids]
    print(f"of 4, 7, 2, 9 stay {kept}")
    return kept


if __name__ == "__main__":
    main()

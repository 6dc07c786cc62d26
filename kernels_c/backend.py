"""A kernel backend of one of our units: its probe, and what it says where it cannot run."""

from __future__ import annotations

import platform
from typing import Any

from ggfw import kernels_c
from ggfw.descriptors import KernelBackend

__all__ = ["unit_backend"]

#: What ``platform.machine()`` says, in lower case, of each processor family.
FAMILIES = {"x86-64": ("x86_64", "amd64"), "arm64": ("aarch64", "arm64")}


def unit_backend(name: str, score: int, family: str, summary: str, **more: Any) -> KernelBackend:
    """Return the descriptor of a unit.

    Args:
        name: of the unit: ``avx2``, ``amx``, ...
        score: of its probe where it can run.
        family: ``x86-64`` or ``arm64``; "" = all processors.
        summary, more: further fields of the descriptor.
    """

    def here() -> bool:
        return not family or platform.machine().lower() in FAMILIES[family]

    def probe() -> int:
        # Absent where the compiler lacked a flag or the processor is of another family: then it is just not on offer.
        return score if here() and kernels_c.built(name) and kernels_c.usable(library()) else 0

    def library() -> str:
        return kernels_c.library_path(name)

    def missing() -> str:
        if not here():
            return f"a processor of the family {family} (it is {platform.machine()})"
        if not kernels_c.built(name):
            return (
                f"the library of this unit: the compiler that ggfw was built with did not know {summary}; "
                "install ggfw anew with a newer one (CC names it)"
            )
        return kernels_c.missing(library())

    return KernelBackend(
        name=name, probe=probe, library=library, abi=kernels_c.ABI, summary=summary, missing=missing, **more
    )

"""Kernels for x86-64 with AVX2, FMA and F16C."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw import kernels_c
from ggfw.descriptors import KernelBackend
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


def _probe() -> int:
    # Absent where the compiler lacked a flag or the processor is of another family: then it is just not on offer.
    return 20 if kernels_c.built("avx2") and kernels_c.usable(_library()) else 0


def _library() -> str:
    return kernels_c.library_path("avx2")


@hookimpl
def ggfw_register_kernel_backends() -> Iterable[KernelBackend]:
    return [
        KernelBackend(
            name="avx2",
            probe=_probe,
            library=_library,
            abi=kernels_c.ABI,
            summary="x86-64 with AVX2, FMA and F16C",
        )
    ]

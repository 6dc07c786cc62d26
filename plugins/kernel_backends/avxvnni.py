"""Products of quantised weights for x86-64 with AVX2 and AVX-VNNI; the rest is the AVX2 unit's."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.descriptors import KernelBackend
from ggfw.hookspecs import hookimpl
from ggfw.kernels_c.backend import unit_backend

GGFW_PLUGIN_API = 1


@hookimpl
def ggfw_register_kernel_backends() -> Iterable[KernelBackend]:
    return [unit_backend("avxvnni", 30, "x86-64", "products for x86-64 with AVX2 and AVX-VNNI")]

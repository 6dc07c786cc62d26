"""Products of quantised weights for arm64 with USDOT and USMMLA; the rest is the NEON unit's."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.descriptors import KernelBackend
from ggfw.hookspecs import hookimpl
from ggfw.kernels_c.backend import unit_backend

GGFW_PLUGIN_API = 1


@hookimpl
def ggfw_register_kernel_backends() -> Iterable[KernelBackend]:
    return [unit_backend("i8mm", 40, "arm64", "products for arm64 with USDOT and USMMLA")]

"""Products of prompt rows for x86-64 with AMX-BF16; the rest is the AVX-512 unit's."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.descriptors import KernelBackend
from ggfw.hookspecs import hookimpl
from ggfw.kernels_c.backend import unit_backend

GGFW_PLUGIN_API = 1


@hookimpl
def ggfw_register_kernel_backends() -> Iterable[KernelBackend]:
    return [unit_backend("amx", 60, "x86-64", "products of prompt rows for x86-64 with AMX-BF16")]

"""The kernels every processor can run: plain C, the slow twin of all others. Ships executor and header, too."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw import kernels_c
from ggfw.descriptors import KernelBackend
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


def _probe() -> int:
    # Not compiled is an error here, not a "cannot run": without this library nothing can.
    return 1 if kernels_c.usable(_library()) else 0


def _library() -> str:
    return kernels_c.library_path("generic")


@hookimpl
def ggfw_register_kernel_backends() -> Iterable[KernelBackend]:
    return [
        KernelBackend(
            name="generic",
            probe=_probe,
            library=_library,
            executor=kernels_c.executor_path,
            bindings=kernels_c.bindings_path,
            abi=kernels_c.ABI,
            summary="plain C for every processor",
        )
    ]

"""The plugin: what it offers. The architecture itself is in ``parallel.py``, imported when a file needs it."""

from ggfw.descriptors import ArchitectureSpec
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


@hookimpl
def ggfw_register_architectures():
    return [
        ArchitectureSpec(
            name="parallel", gguf_names=("parallel",), load="ggfw_arch_parallel.parallel:Parallel"
        )
    ]

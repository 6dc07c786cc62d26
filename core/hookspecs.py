"""The plugin door: seven hooks of one shape.

Every hook takes no arguments and returns an iterable of frozen descriptors (see :mod:`ggfw.descriptors`); all
results count. A plugin is a module named by an entry point of the group ``ggfw``::

    from ggfw.hookspecs import hookimpl

    GGFW_PLUGIN_API = 1

    @hookimpl
    def ggfw_register_architectures():
        return [ArchitectureSpec(name="toy", gguf_names=("toy",), load="my_package.toy:Toy")]

Importing a plugin must be cheap: a descriptor is data and a lazy ``load``. No hook is called after start-up.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from ggfw.descriptors import (
    ArchitectureSpec,
    ChatDialect,
    KernelBackend,
    ModelSource,
    QuantFormat,
    SamplerStage,
    Skill,
)

#: The version of this contract; a plugin states the one it was written for as ``GGFW_PLUGIN_API``.
PLUGIN_API = 1

#: Name of the entry-point group and of the pluggy project.
GROUP = "ggfw"

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def ggfw_register_architectures() -> Iterable[ArchitectureSpec]:
    """Architectures: which ``general.architecture`` values this plugin can build graphs for."""


@hookspec
def ggfw_register_quant_formats() -> Iterable[QuantFormat]:
    """Quant formats: block layout of a ggml tensor type and its NumPy reference."""


@hookspec
def ggfw_register_kernel_backends() -> Iterable[KernelBackend]:
    """Kernel backends: a shared library of kernels for one instruction set, with a probe."""


@hookspec
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """Chat dialects: how a model family writes tools, calls, results and reasoning."""


@hookspec
def ggfw_register_skills() -> Iterable[Skill]:
    """Skills: instructions that a model can load on demand."""


@hookspec
def ggfw_register_model_sources() -> Iterable[ModelSource]:
    """Model sources: how a reference such as ``hf:owner/repo`` becomes files."""


@hookspec
def ggfw_register_sampler_stages() -> Iterable[SamplerStage]:
    """Sampler stages: further steps of the sampling chain."""

"""``pypi:PACKAGE[==VERSION][,PACKAGE…]``: models that come inside wheels of the package index."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.descriptors import ModelSource
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


@hookimpl
def ggfw_register_model_sources() -> Iterable[ModelSource]:
    """The scheme ``pypi``."""
    return [
        ModelSource(
            name="pypi",
            load="ggfw.plugins.model_sources.wheels:WheelSource",
            summary="pypi:PACKAGE[==VERSION], a GGUF file inside a wheel, or in parts inside several",
        )
    ]

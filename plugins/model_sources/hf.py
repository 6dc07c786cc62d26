"""``hf:OWNER/REPO[:QUANT][@REVISION]``: models of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.descriptors import ModelSource
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


@hookimpl
def ggfw_register_model_sources() -> Iterable[ModelSource]:
    """The scheme ``hf``."""
    return [
        ModelSource(
            name="hf",
            load="ggfw.plugins.model_sources.hub:HubSource",
            summary="hf:OWNER/REPO[:QUANT][@REVISION], a GGUF file of the Hugging Face hub",
        )
    ]

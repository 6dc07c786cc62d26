"""``file:PATH`` and ``file://PATH``: a file of this machine, for programs that only know references."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.descriptors import ModelSource
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


@hookimpl
def ggfw_register_model_sources() -> Iterable[ModelSource]:
    """The scheme ``file``."""
    return [
        ModelSource(
            name="file",
            load="ggfw.plugins.model_sources.local:FileSource",
            remote=False,
            summary="file:PATH, a file of this machine",
        )
    ]

"""ggfw runs GGUF language models on ordinary CPUs; everything model-specific in it is a plugin.

>>> import ggfw
>>> with ggfw.load("model.gguf") as model:          # doctest: +SKIP
...     print(model.chat([ggfw.user("Hello!")]).text)
...     for piece in model.stream("Once upon a time"):
...         print(piece, end="")

This module only re-exports; every name is loaded on first use, so that ``import ggfw`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
    from ggfw.chat.messages import assistant, system, tool, user
    from ggfw.chat.skills import Skills, load_skills
    from ggfw.engine import Engine
    from ggfw.errors import (
        AmbiguousModel,
        BackendError,
        CacheFileError,
        ConstraintFailed,
        ContextLengthExceeded,
        DeadlineExceeded,
        GenerationCanceled,
        GenerationError,
        GgfwError,
        GGUFError,
        GraphError,
        InvalidRequest,
        ModelFileError,
        ModelNotFound,
        NonFiniteLogits,
        PluginError,
        QueueFull,
        TemplateError,
        UnknownArchitecture,
        UnknownPreTokenizer,
        UnknownQuantFormat,
        UnsupportedError,
    )
    from ggfw.gguf import GGUF, analyze
    from ggfw.handle import Handle
    from ggfw.library import Model
    from ggfw.loading import load
    from ggfw.models import ModelEntry, discover_models, select_model, supports
    from ggfw.request import Request
    from ggfw.result import Result, Timings, ToolCall, Usage
    from ggfw.sampling import Params
    from ggfw.similarity import cosine_similarity
    from ggfw.stream import Stream

_WHERE = {
    "chat.deltas": ("Delta", "ReasoningDelta", "TextDelta", "ToolCallDelta"),
    "chat.messages": ("assistant", "system", "tool", "user"),
    "chat.skills": ("Skills", "load_skills"),
    "engine": ("Engine",),
    "errors": (
        "AmbiguousModel",
        "BackendError",
        "CacheFileError",
        "ConstraintFailed",
        "ContextLengthExceeded",
        "DeadlineExceeded",
        "GGUFError",
        "GenerationCanceled",
        "GenerationError",
        "GgfwError",
        "GraphError",
        "InvalidRequest",
        "ModelFileError",
        "ModelNotFound",
        "NonFiniteLogits",
        "PluginError",
        "QueueFull",
        "TemplateError",
        "UnknownArchitecture",
        "UnknownPreTokenizer",
        "UnknownQuantFormat",
        "UnsupportedError",
    ),
    "gguf": ("GGUF", "analyze"),
    "handle": ("Handle",),
    "library": ("Model",),
    "loading": ("load",),
    "models": ("ModelEntry", "discover_models", "select_model", "supports"),
    "request": ("Request",),
    "result": ("Result", "Timings", "ToolCall", "Usage"),
    "sampling": ("Params",),
    "similarity": ("cosine_similarity",),
    "stream": ("Stream",),
}
#: Modules that are part of the face: ``ggfw.quants.dequantize``, ``ggfw.kernels.matvec``, ...
_MODULES = (
    "constraints",
    "errors",
    "gguf",
    "graph",
    "kernels",
    "quantize",
    "quants",
    "sampling",
    "tokenizer",
    "verify",
)
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "GGUF",
    "AmbiguousModel",
    "BackendError",
    "CacheFileError",
    "ConstraintFailed",
    "ContextLengthExceeded",
    "DeadlineExceeded",
    "Delta",
    "Engine",
    "GGUFError",
    "GenerationCanceled",
    "GenerationError",
    "GgfwError",
    "GraphError",
    "Handle",
    "InvalidRequest",
    "Model",
    "ModelEntry",
    "ModelFileError",
    "ModelNotFound",
    "NonFiniteLogits",
    "Params",
    "PluginError",
    "QueueFull",
    "ReasoningDelta",
    "Request",
    "Result",
    "Skills",
    "Stream",
    "TemplateError",
    "TextDelta",
    "Timings",
    "ToolCall",
    "ToolCallDelta",
    "UnknownArchitecture",
    "UnknownPreTokenizer",
    "UnknownQuantFormat",
    "UnsupportedError",
    "Usage",
    "analyze",
    "assistant",
    "cosine_similarity",
    "discover_models",
    "load",
    "load_skills",
    "select_model",
    "supports",
    "system",
    "tool",
    "user",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("ggfw")
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})

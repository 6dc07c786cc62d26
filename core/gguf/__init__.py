"""The GGUF container: reader, metadata, split sets, writer, analysis. Reads no weights on its own account.

Reading is loaded with the package; writing and analysis on first use, because a model that is only run needs neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ggfw.gguf.metadata import Metadata, MetadataArray, ValueType
from ggfw.gguf.reader import GGUF
from ggfw.gguf.split import shard_file_name, split_name
from ggfw.gguf.tensors import TensorInfo
from ggfw.gguf.types import GGML_TYPE_BY_NAME, GGML_TYPES, GGMLType, type_name

if TYPE_CHECKING:
    from ggfw.gguf import values
    from ggfw.gguf.analysis import Analysis, analyze
    from ggfw.gguf.writer import gguf_bytes, typed_metadata, write_gguf, write_split

__all__ = [
    "GGML_TYPES",
    "GGML_TYPE_BY_NAME",
    "GGUF",
    "Analysis",
    "GGMLType",
    "Metadata",
    "MetadataArray",
    "TensorInfo",
    "ValueType",
    "analyze",
    "gguf_bytes",
    "shard_file_name",
    "split_name",
    "type_name",
    "typed_metadata",
    "values",
    "write_gguf",
    "write_split",
]

_LATER = {
    **dict.fromkeys(("Analysis", "analyze"), "analysis"),
    **dict.fromkeys(("gguf_bytes", "typed_metadata", "write_gguf", "write_split"), "writer"),
}


def __getattr__(name: str) -> Any:
    if name == "values":
        return import_module("ggfw.gguf.values")
    if name in _LATER:
        return getattr(import_module(f"ggfw.gguf.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

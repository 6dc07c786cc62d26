"""The GGUF container: reader, metadata, split sets, writer, analysis. Reads no weights on its own account."""

from __future__ import annotations

from ggfw.gguf import values
from ggfw.gguf.analysis import Analysis, analyze
from ggfw.gguf.metadata import Metadata, MetadataArray, ValueType
from ggfw.gguf.reader import GGUF
from ggfw.gguf.split import shard_file_name, split_name
from ggfw.gguf.tensors import TensorInfo
from ggfw.gguf.types import GGML_TYPE_BY_NAME, GGML_TYPES, GGMLType, type_name
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

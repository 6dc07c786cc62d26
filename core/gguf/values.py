"""Metadata values for writing: choosing the type number, and the bytes.

Python values get the type most files use: ``int`` -> U32 (negative: I32, larger: U64 / I64), ``float`` -> F32,
``bool``, ``str``, lists by their elements (whole numbers: I32). Wrap a value to choose: ``U8(1)``, ``F64(0.5)``,
``U64([1, 2])``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggfw.errors import InvalidRequest
from ggfw.gguf.metadata import NUMPY_DTYPE, SCALAR_LAYOUT, MetadataArray, ValueType
from ggfw.records import dataclass


@dataclass(frozen=True, slots=True)
class Typed:
    """A value with the type it shall have in the file; a list or array means an array of that type."""

    value_type: ValueType
    value: Any


def U8(value: Any) -> Typed:
    """As unsigned 8-bit integer(s)."""
    return Typed(ValueType.U8, value)


def I8(value: Any) -> Typed:
    """As signed 8-bit integer(s)."""
    return Typed(ValueType.I8, value)


def U16(value: Any) -> Typed:
    """As unsigned 16-bit integer(s)."""
    return Typed(ValueType.U16, value)


def I16(value: Any) -> Typed:
    """As signed 16-bit integer(s)."""
    return Typed(ValueType.I16, value)


def U32(value: Any) -> Typed:
    """As unsigned 32-bit integer(s)."""
    return Typed(ValueType.U32, value)


def I32(value: Any) -> Typed:
    """As signed 32-bit integer(s)."""
    return Typed(ValueType.I32, value)


def U64(value: Any) -> Typed:
    """As unsigned 64-bit integer(s)."""
    return Typed(ValueType.U64, value)


def I64(value: Any) -> Typed:
    """As signed 64-bit integer(s)."""
    return Typed(ValueType.I64, value)


def F32(value: Any) -> Typed:
    """As single-precision float(s)."""
    return Typed(ValueType.F32, value)


def F64(value: Any) -> Typed:
    """As double-precision float(s)."""
    return Typed(ValueType.F64, value)


def encode_string(text: str) -> bytes:
    """u64 length and UTF-8 bytes; lone surrogates from reading become the bytes they stood for."""
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def encode_value(key: str, value: Any) -> bytes:
    """Type number and bytes of one metadata value.

    Args:
        key: for messages.
        value: a Python scalar, str, list, NumPy scalar or array, :class:`MetadataArray`, or :class:`Typed`.

    Raises:
        InvalidRequest: a number does not fit its type, or the value has no counterpart in GGUF.
    """
    if isinstance(value, Typed):
        if isinstance(value.value, list | tuple | np.ndarray | MetadataArray):
            return struct.pack("<I", ValueType.ARRAY) + _encode_array(
                key, list(value.value), value.value_type
            )
        return struct.pack("<I", value.value_type) + _encode_scalar(key, value.value, value.value_type)
    if isinstance(value, MetadataArray):
        stored = value.stored()
        if (
            stored is not None
        ):  # neither decoded nor encoded: a vocabulary has hundreds of thousands of strings
            return struct.pack("<I", ValueType.ARRAY) + _array_head(value.value_type, len(value)) + stored
        return struct.pack("<I", ValueType.ARRAY) + _encode_array(key, value.list(), value.value_type)
    if isinstance(value, np.ndarray):
        return struct.pack("<I", ValueType.ARRAY) + _encode_numpy(key, value)
    if isinstance(value, list | tuple):
        return struct.pack("<I", ValueType.ARRAY) + _encode_array(key, value, _common_type(key, value))
    value_type = _scalar_type(key, value)
    return struct.pack("<I", value_type) + _encode_scalar(key, value, value_type)


def _scalar_type(key: str, value: Any) -> ValueType:
    if isinstance(value, np.generic):
        return _numpy_type(key, value.dtype)
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, int):
        if value >= 0:
            return ValueType.U32 if value < 2**32 else ValueType.U64
        return ValueType.I32 if value >= -(2**31) else ValueType.I64
    if isinstance(value, float):
        return ValueType.F32
    if isinstance(value, str):
        return ValueType.STRING
    raise InvalidRequest(f"metadata key {key!r}: {type(value).__name__} has no counterpart in GGUF", key)


def _common_type(key: str, values: Sequence[Any]) -> ValueType:
    if all(isinstance(v, str) for v in values) and values:
        return ValueType.STRING
    if all(isinstance(v, list | tuple | MetadataArray | np.ndarray) for v in values) and values:
        return ValueType.ARRAY
    if all(isinstance(v, bool) for v in values) and values:
        return ValueType.BOOL
    if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        low, high = min(values, default=0), max(values, default=0)
        if -(2**31) <= low and high < 2**31:
            return ValueType.I32
        if low >= 0:
            return ValueType.U32 if high < 2**32 else ValueType.U64
        return ValueType.I64
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return ValueType.F32
    raise InvalidRequest(f"metadata key {key!r}: the elements of a list must be of one kind", key)


def _numpy_type(key: str, dtype: np.dtype[Any]) -> ValueType:
    if dtype == np.bool_:
        return ValueType.BOOL
    for value_type, candidate in NUMPY_DTYPE.items():
        if value_type != ValueType.BOOL and candidate == dtype.newbyteorder("<"):
            return ValueType(value_type)
    raise InvalidRequest(f"metadata key {key!r}: NumPy type {dtype} has no counterpart in GGUF", key)


def _encode_scalar(key: str, value: Any, value_type: ValueType) -> bytes:
    if value_type == ValueType.STRING:
        return encode_string(value)
    try:
        return SCALAR_LAYOUT[value_type].pack(value.item() if isinstance(value, np.generic) else value)
    except (struct.error, OverflowError, KeyError):
        raise InvalidRequest(
            f"metadata key {key!r}: {value!r} does not fit the type {value_type.name}", key
        ) from None


def _array_head(value_type: ValueType, count: int) -> bytes:
    return struct.pack("<IQ", value_type, count)


def _encode_numpy(key: str, array: NDArray[Any]) -> bytes:
    if array.ndim != 1:
        raise InvalidRequest(
            f"metadata key {key!r}: a NumPy array must have one dimension, not {array.ndim}", key
        )
    value_type = _numpy_type(key, array.dtype)
    return (
        _array_head(value_type, len(array)) + np.ascontiguousarray(array, NUMPY_DTYPE[value_type]).tobytes()
    )


def _encode_array(key: str, values: Sequence[Any], value_type: ValueType) -> bytes:
    head = _array_head(value_type, len(values))
    if value_type == ValueType.STRING:
        return head + b"".join(map(encode_string, values))
    if value_type == ValueType.ARRAY:
        return head + b"".join(encode_value(key, v)[4:] for v in values)
    try:
        return head + struct.pack(f"<{len(values)}{SCALAR_LAYOUT[value_type].format[-1:]}", *values)
    except (struct.error, OverflowError):
        raise InvalidRequest(
            f"metadata key {key!r}: an element does not fit the type {value_type.name}", key
        ) from None

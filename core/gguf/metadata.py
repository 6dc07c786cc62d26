"""GGUF metadata: value types, lazy arrays, and the read-only mapping that a model file offers.

Scalars are read when the file is opened; arrays only note where they are and become Python objects on use, because a
vocabulary of 262,144 strings must not cost time in a program that only lists models.
"""

from __future__ import annotations

import builtins
import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NoReturn, overload

import numpy as np
from numpy.typing import NDArray

from ggfw.errors import GGUFError, brief
from ggfw.gguf.cursor import Cursor
from ggfw.gguf.strings import decode_strings, raw_strings, scan_strings


class ValueType(IntEnum):
    """Type numbers of metadata values in the file."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


SCALAR_LAYOUT: dict[int, struct.Struct] = {
    ValueType.U8: struct.Struct("<B"),
    ValueType.I8: struct.Struct("<b"),
    ValueType.U16: struct.Struct("<H"),
    ValueType.I16: struct.Struct("<h"),
    ValueType.U32: struct.Struct("<I"),
    ValueType.I32: struct.Struct("<i"),
    ValueType.F32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<?"),
    ValueType.U64: struct.Struct("<Q"),
    ValueType.I64: struct.Struct("<q"),
    ValueType.F64: struct.Struct("<d"),
}

NUMPY_DTYPE: dict[int, np.dtype[Any]] = {
    ValueType.U8: np.dtype("u1"),
    ValueType.I8: np.dtype("i1"),
    ValueType.U16: np.dtype("<u2"),
    ValueType.I16: np.dtype("<i2"),
    ValueType.U32: np.dtype("<u4"),
    ValueType.I32: np.dtype("<i4"),
    ValueType.F32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("u1"),
    ValueType.U64: np.dtype("<u8"),
    ValueType.I64: np.dtype("<i8"),
    ValueType.F64: np.dtype("<f8"),
}

MAX_NESTING = 4  # arrays of arrays of ...; nobody writes more than two levels


class MetadataArray(Sequence[Any]):
    """An array value of a GGUF file, read on first use.

    Behaves as a sequence of Python values (``len``, index, slice, iteration, ``==``). Use :meth:`numpy` for numbers and
    :meth:`strings` for text when all of it is wanted.
    """

    __slots__ = ("value_type", "_data", "_start", "_count", "_heads", "_items")

    def __init__(
        self,
        value_type: ValueType,
        data: NDArray[np.uint8],
        start: int,
        count: int,
        heads: NDArray[np.int64] | None = None,
        items: list[Any] | None = None,
    ) -> None:
        self.value_type = value_type
        self._data = data
        self._start = start
        self._count = count
        self._heads = heads  # strings only: (count + 1,) offsets of the length fields
        self._items = items

    def __len__(self) -> int:
        return self._count

    def numpy(self) -> NDArray[Any]:
        """The numbers as a read-only array without copying (bool: a copy; strings and nested arrays: dtype object)."""
        dtype = NUMPY_DTYPE.get(self.value_type)
        if dtype is None:
            out = np.empty(self._count, object)
            out[:] = self.list()
            return out
        raw = (
            np.frombuffer(self._data, dtype, self._count, self._start) if self._count else np.empty(0, dtype)
        )
        return raw != 0 if self.value_type == ValueType.BOOL else raw

    def strings(self) -> builtins.list[str]:
        """All elements as str, decoded together; bytes that are not UTF-8 become lone surrogates (surrogateescape).

        Raises:
            TypeError: if the elements are not strings.
        """
        if self.value_type != ValueType.STRING:
            raise TypeError(
                f"this metadata array holds {self.value_type.name}, not STRING; use numpy() or list()"
            )
        return list(self.list())

    def raw(self) -> builtins.list[bytes]:
        """All elements of a string array as bytes, undecoded."""
        if self.value_type != ValueType.STRING or self._heads is None:
            raise TypeError(
                f"this metadata array holds {self.value_type.name}, not STRING; use numpy() or list()"
            )
        return raw_strings(self._data, self._heads)

    def stored(self) -> memoryview | None:
        """The elements as they lie in the file, without copying; None for arrays of arrays, which do not lie as one."""
        if self._heads is not None:
            return self._data[int(self._heads[0]) : int(self._heads[-1])].data
        layout = SCALAR_LAYOUT.get(self.value_type)
        if layout is None:
            return None
        return self._data[self._start : self._start + self._count * layout.size].data

    def list(self) -> builtins.list[Any]:
        """All elements as a list of Python values; kept after the first call, do not change it."""
        if self._items is None:
            if self._heads is not None:
                self._items = decode_strings(self._data, self._heads)
            else:
                self._items = self.numpy().tolist()
        return self._items

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> builtins.list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if self._items is not None:
            return self._items[index]
        if isinstance(index, slice):
            return self.list()[index]
        if self._heads is None:
            return self.numpy()[index].item()
        position = range(self._count)[index]
        begin, end = int(self._heads[position]) + 8, int(self._heads[position + 1])
        return self._data[begin:end].tobytes().decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[Any]:
        return iter(self.list())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MetadataArray | list | tuple):
            return len(self) == len(other) and self.list() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<MetadataArray {self.value_type.name} x {self._count}>"


class Metadata(Mapping[str, Any]):
    """The key-value pairs of a GGUF file in file order; arrays are :class:`MetadataArray`."""

    __slots__ = ("_values", "_types")

    def __init__(self, values: dict[str, Any], types: dict[str, ValueType]) -> None:
        self._values = values
        self._types = types

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def value_type(self, key: str) -> ValueType:
        """The type number with which the file stores ``key`` (ARRAY for arrays)."""
        return self._types[key]

    def __repr__(self) -> str:
        return f"<Metadata, {len(self)} keys>"


def read_metadata(cursor: Cursor, data: NDArray[np.uint8], count: int) -> Metadata:
    """Read ``count`` key-value pairs at the cursor.

    Args:
        cursor: positioned behind the header counts.
        data: the same buffer as uint8 array (lazy arrays keep it).
        count: number of pairs; the caller has checked it against the file size.

    Raises:
        GGUFError: a field does not fit, a type number is unknown, or a key comes twice.
    """
    values: dict[str, Any] = {}
    types: dict[str, ValueType] = {}
    for index in range(count):
        at = cursor.position
        key = cursor.name(f"name of metadata key {index}")
        if key in values:
            cursor.fail(f"metadata key {brief(key)}", "appears twice", at)
        field = f"metadata key {brief(key)}"
        value_type = _value_type(cursor, field)
        values[key] = _read_value(cursor, data, value_type, field, 0)
        types[key] = value_type
    return Metadata(values, types)


def _value_type(cursor: Cursor, field: str) -> ValueType:
    at = cursor.position
    number = cursor.u32(f"value type of {field}")
    try:
        return ValueType(number)
    except ValueError:
        cursor.fail(f"value type of {field}", f"{number} is not a GGUF value type (0 to 12)", at)


def _read_value(
    cursor: Cursor, data: NDArray[np.uint8], value_type: ValueType, field: str, depth: int
) -> Any:
    if value_type == ValueType.STRING:
        # Shown to people and fed to templates: a damaged byte becomes U+FFFD rather than an unprintable surrogate.
        return cursor.raw_string(field).decode("utf-8", "replace")
    if value_type == ValueType.ARRAY:
        return _read_array(cursor, data, field, depth)
    return cursor.scalar(SCALAR_LAYOUT[value_type], field)


def _read_array(cursor: Cursor, data: NDArray[np.uint8], field: str, depth: int) -> MetadataArray:
    at = cursor.position
    if depth >= MAX_NESTING:
        cursor.fail(field, f"arrays are nested more than {MAX_NESTING} deep", at)
    element = _value_type(cursor, f"elements of {field}")
    at = cursor.position
    count = cursor.u64(f"element count of {field}")
    if element == ValueType.STRING:
        smallest = 8
    elif element == ValueType.ARRAY:
        smallest = 12
    else:
        smallest = SCALAR_LAYOUT[element].size
    if count * smallest > cursor.remaining:
        cursor.fail(
            f"element count of {field}",
            f"{count} elements of at least {smallest} bytes do not fit in the {cursor.remaining} bytes left",
            at,
        )
    start = cursor.position
    if element == ValueType.STRING:

        def fail(problem: str, where: int) -> NoReturn:
            raise GGUFError(f"{cursor.source}: {field} at byte {where}: {problem}")

        heads = scan_strings(data, start, count, fail)
        cursor.position = int(heads[-1])
        return MetadataArray(element, data, start, count, heads)
    if element == ValueType.ARRAY:
        items = [_read_array(cursor, data, field, depth + 1) for _ in range(count)]
        return MetadataArray(element, data, start, count, items=items)
    cursor.position = start + count * smallest
    return MetadataArray(element, data, start, count)

"""Writing GGUF files: one file, bytes, or a split set.

Tensors are given as NumPy arrays, as ``(bytes, shape, type)``, or copied from another file as :class:`TensorInfo`.
The bytes may also be a function that returns them, called when it is the tensor's turn, so that a converter never holds
more than one tensor.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ggfw.errors import InvalidRequest
from ggfw.files import check_target
from ggfw.gguf.metadata import Metadata, ValueType
from ggfw.gguf.shard import DEFAULT_ALIGNMENT
from ggfw.gguf.split import shard_file_name
from ggfw.gguf.tensors import MAX_DIMS, TensorInfo
from ggfw.gguf.types import GGML_TYPE_BY_NAME, GGMLType, find_type
from ggfw.gguf.values import I32, U16, Typed, encode_string, encode_value
from ggfw.records import dataclass

Bytes: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]
Payload: TypeAlias = (
    NDArray[Any] | tuple[Bytes | Callable[[], Bytes], tuple[int, ...], int | str] | TensorInfo
)

MAX_NAME_BYTES = 63  # ggml keeps names in 64 bytes, the last one zero

_ARRAY_TYPES = {"f4": "F32", "f2": "F16", "f8": "F64", "i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64"}


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    type: GGMLType
    n_bytes: int
    load: Callable[[], Bytes]


def write_gguf(
    target: str | os.PathLike[str] | BinaryIO,
    metadata: Mapping[str, Any],
    tensors: Iterable[tuple[str, Payload]] = (),
    *,
    alignment: int = DEFAULT_ALIGNMENT,
    version: int = 3,
) -> None:
    """Write one GGUF file.

    Args:
        target: a path (written beside it first and renamed when complete) or a binary file.
        metadata: key -> value, see :mod:`ggfw.gguf.values`; the metadata of an open file keeps its types.
        tensors: (name, data) in file order; data is an array, ``(bytes, shape, type)`` with the shape slowest dimension
            first and the type as number or name, or a TensorInfo.
        alignment: power of two; written as ``general.alignment`` unless it is the default 32.
        version: container version, 2 or 3 (their layouts do not differ).

    Raises:
        InvalidRequest: a name comes twice or is too long, sizes do not match, a value has no counterpart in GGUF.
    """
    prepared = [_prepare(name, data) for name, data in tensors]
    head, offsets = _header(_with_alignment(metadata, alignment), prepared, alignment, version)
    if isinstance(target, str | os.PathLike):
        with _replacing(Path(target)) as file:
            _write(file, head, prepared, offsets, alignment)
    else:
        _write(target, head, prepared, offsets, alignment)


class Region:
    """The tensors of a file whose header is written: any part, in any order, by any thread."""

    def __init__(self, file: BinaryIO, places: dict[str, tuple[int, int]]) -> None:
        self._file = file
        self._places = places  # name -> first byte in the file, size
        self._lock = Lock()

    def write(self, name: str, begin: int, data: Bytes) -> None:
        """Write bytes of the tensor ``name`` from its byte ``begin`` on.

        Raises:
            InvalidRequest: they do not lie in the tensor.
        """
        first, size = self._places[name]
        view = _bytes(data)
        if not 0 <= begin <= begin + len(view) <= size:
            raise InvalidRequest(
                f"tensor {name!r} has {size} bytes, {len(view)} from byte {begin} on were given", "tensors"
            )
        if not hasattr(os, "pwrite"):  # Windows
            with self._lock:
                self._file.seek(first + begin)
                self._file.write(view)
            return
        while view:
            written = os.pwrite(self._file.fileno(), view, first + begin)
            view, begin = view[written:], begin + written


@contextmanager
def write_in_place(
    target: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Iterable[tuple[str, tuple[int, ...], int | str]],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
    version: int = 3,
) -> Iterator[Region]:
    """Write one GGUF file whose tensors are made inside the ``with``, piece by piece; it is there when that ends well.

    Args:
        target: a path (written beside it first and renamed when complete).
        metadata, alignment, version: as in :func:`write_gguf`.
        tensors: (name, shape, type) in file order. What is not written of one is zeros.

    Raises:
        InvalidRequest: as in :func:`write_gguf`.
    """
    prepared = [_prepare(name, (b"", shape, wanted)) for name, shape, wanted in tensors]
    head, offsets = _header(_with_alignment(metadata, alignment), prepared, alignment, version)
    start = -(-len(head) // alignment) * alignment
    places = {t.name: (start + offset, t.n_bytes) for t, offset in zip(prepared, offsets, strict=True)}
    with _replacing(Path(target)) as file:
        file.write(head)
        file.flush()
        if prepared:
            file.truncate(start + offsets[-1] + -(-prepared[-1].n_bytes // alignment) * alignment)
        yield Region(file, places)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file beside ``path`` that takes its place when all was written, and else is gone."""
    check_target(path)
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as file:
            yield file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Iterable[tuple[str, Payload]] = (),
    *,
    alignment: int = DEFAULT_ALIGNMENT,
    version: int = 3,
) -> bytes:
    """The bytes that :func:`write_gguf` would write."""
    buffer = io.BytesIO()
    write_gguf(buffer, metadata, tensors, alignment=alignment, version=version)
    return buffer.getvalue()


def write_split(
    prefix: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Iterable[tuple[str, Payload]],
    *,
    max_tensors: int | None = None,
    max_bytes: int | None = None,
    alignment: int = DEFAULT_ALIGNMENT,
) -> list[Path]:
    """Write a split set ``<prefix>-NNNNN-of-MMMMM.gguf``.

    Args:
        prefix: folder and beginning of the file names.
        metadata: goes into the first file; the others hold the ``split.*`` keys only.
        tensors: as in :func:`write_gguf`.
        max_tensors: most tensors per file.
        max_bytes: most tensor bytes per file; a larger tensor gets a file of its own.
        alignment: as in :func:`write_gguf`.

    Returns:
        The files in order.
    """
    prefix = Path(prefix)
    items = list(tensors)
    groups: list[list[tuple[str, Payload]]] = [[]]
    n_bytes = 0
    for name, data in items:
        size = _prepare(name, data).n_bytes
        full = max_tensors is not None and len(groups[-1]) >= max_tensors
        if groups[-1] and (full or (max_bytes is not None and n_bytes + size > max_bytes)):
            groups.append([])
            n_bytes = 0
        groups[-1].append((name, data))
        n_bytes += size
    paths = []
    for number, group in enumerate(groups):
        keys = typed_metadata(metadata) if number == 0 else {}
        keys |= {
            "split.no": U16(number),
            "split.count": U16(len(groups)),
            "split.tensors.count": I32(len(items)),
        }
        path = prefix.with_name(shard_file_name(prefix.name, number + 1, len(groups)))
        write_gguf(path, keys, group, alignment=alignment)
        paths.append(path)
    return paths


def typed_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A dict of the values that keeps the types of an open file's scalars, for changing and writing again."""
    if not isinstance(metadata, Metadata):
        return dict(metadata)
    return {
        key: value if metadata.value_type(key) == ValueType.ARRAY else Typed(metadata.value_type(key), value)
        for key, value in metadata.items()
    }


def _with_alignment(metadata: Mapping[str, Any], alignment: int) -> dict[str, Any]:
    if alignment <= 0 or alignment & (alignment - 1):
        raise InvalidRequest(f"alignment is {alignment}; it must be a power of two", "alignment")
    values = typed_metadata(metadata)
    values.pop("general.alignment", None)
    if alignment != DEFAULT_ALIGNMENT:
        values["general.alignment"] = Typed(ValueType.U32, alignment)
    return values


def _prepare(name: str, data: Payload) -> _Tensor:
    if isinstance(data, TensorInfo):
        load: Callable[[], Bytes] = lambda: data.data  # noqa: E731
        shape, ggml_type = data.shape, _type(name, data.ggml_type)
    elif isinstance(data, np.ndarray):
        kind = _ARRAY_TYPES.get(f"{data.dtype.kind}{data.dtype.itemsize}")
        if kind is None:
            raise InvalidRequest(
                f"tensor {name!r}: NumPy type {data.dtype} has no counterpart in ggml", "tensors"
            )
        array = data
        load = lambda: _little_endian(array)  # noqa: E731
        shape, ggml_type = data.shape, GGML_TYPE_BY_NAME[kind]
    else:
        raw, shape, wanted = data
        load = raw if callable(raw) else lambda: raw
        shape, ggml_type = tuple(shape), _type(name, wanted)
    if len(shape) > MAX_DIMS:
        raise InvalidRequest(
            f"tensor {name!r}: {len(shape)} dimensions, at most {MAX_DIMS} are possible", "tensors"
        )
    row = shape[-1] if shape else 1
    if row % ggml_type.block_size:
        raise InvalidRequest(
            f"tensor {name!r}: rows of {row} elements are not a multiple of the {ggml_type.block_size} "
            f"that {ggml_type.name} packs",
            "tensors",
        )
    if not 0 < len(name.encode()) <= MAX_NAME_BYTES:
        raise InvalidRequest(f"tensor {name!r}: a name must have 1 to {MAX_NAME_BYTES} bytes", "tensors")
    return _Tensor(name, shape, ggml_type, prod(shape) // ggml_type.block_size * ggml_type.type_size, load)


def _type(name: str, wanted: int | str) -> GGMLType:
    found = find_type(wanted if isinstance(wanted, str) else int(wanted))
    if found is None:
        raise InvalidRequest(
            f"tensor {name!r}: the ggml type {wanted!r} is unknown, so it has no size", "tensors"
        )
    return found


def _little_endian(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)


def _header(
    metadata: Mapping[str, Any], tensors: list[_Tensor], alignment: int, version: int
) -> tuple[bytes, list[int]]:
    """The bytes before the data section (not padded), and each tensor's offset in it."""
    if version not in (2, 3):
        raise InvalidRequest(f"version is {version}; 2 or 3 was expected", "version")
    parts = [struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [encode_string(key), encode_value(key, value)]
    offsets: list[int] = []
    seen: set[str] = set()
    offset = 0
    for t in tensors:
        if t.name in seen:
            raise InvalidRequest(f"tensor {t.name!r} is given twice", "tensors")
        seen.add(t.name)
        dims = t.shape[::-1]
        parts.append(encode_string(t.name))
        parts.append(struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, t.type.id, offset))
        offsets.append(offset)
        offset += -(-t.n_bytes // alignment) * alignment
    return b"".join(parts), offsets


def _write(file: BinaryIO, head: bytes, tensors: list[_Tensor], offsets: list[int], alignment: int) -> None:
    file.write(head)
    if tensors:
        file.write(bytes(-len(head) % alignment))
    for t in tensors:
        data = t.load()
        view = _bytes(data)
        if len(view) != t.n_bytes:
            raise InvalidRequest(
                f"tensor {t.name!r}: {t.type.name} of shape {t.shape} has {t.n_bytes} bytes, {len(view)} were given",
                "tensors",
            )
        file.write(view)
        file.write(bytes(-t.n_bytes % alignment))


def _bytes(data: Bytes) -> memoryview:
    # A view of nothing cannot be cast where an array has no elements.
    return (
        memoryview(data.data if isinstance(data, np.ndarray) else data).cast("B")
        if len(data)
        else memoryview(b"")
    )

"""One GGUF file: mapping, header, metadata, tensor records."""

from __future__ import annotations

import mmap
import os
from dataclasses import field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ggfw.errors import GGUFError, ModelNotFound, brief
from ggfw.files import is_regular, open_without_waiting
from ggfw.gguf.cursor import Cursor
from ggfw.gguf.metadata import Metadata, ValueType, read_metadata
from ggfw.gguf.tensors import TensorInfo, TensorRecord, place_tensors, read_tensor_records
from ggfw.records import dataclass

DEFAULT_ALIGNMENT = 32
VERSIONS = (2, 3)
_SMALLEST_PAIR = 8 + 4 + 1  # empty name, type, one byte
_SMALLEST_RECORD = 8 + 4 + 4 + 8  # empty name, no dimensions, type, offset


@dataclass(eq=False)
class Shard:
    """One file, opened: its bytes, its metadata, its tensor records (not yet placed, see ``tensors``).

    Attributes:
        source: how messages call it (path, or ``"<bytes>"``).
        path: None for bytes.
        data: the file as read-only uint8 array.
        mapping: the mmap under ``data``; None for bytes.
        data_offset: byte at which the data section begins.
    """

    source: str
    path: Path | None
    data: NDArray[np.uint8]
    mapping: mmap.mmap | None
    version: int
    alignment: int
    metadata: Metadata
    records: list[TensorRecord] = field(repr=False)
    data_offset: int

    def tensors(self, shard: int) -> list[TensorInfo]:
        """Check the places of all tensors and return them; ``shard`` is the index to note in each."""
        return place_tensors(
            self.records,
            source=self.source,
            data=self.data,
            mapping=self.mapping,
            data_offset=self.data_offset,
            alignment=self.alignment,
            shard=shard,
        )

    def close(self) -> None:
        """Unmap the file, unless arrays that look into it are still alive (then the last of them unmaps it)."""
        mapping, self.mapping = self.mapping, None
        self.data = np.empty(0, np.uint8)
        if mapping is not None:
            try:
                mapping.close()
            except BufferError:
                pass  # somebody still holds a view; the mapping goes away with it


def open_shard(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> Shard:
    """Map (or take) one file and parse its header.

    Raises:
        ModelNotFound: there is no such file.
        GGUFError: it is not a GGUF file of version 2 or 3, or it is damaged.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        data = np.frombuffer(source, np.uint8)
        data.flags.writeable = False
        return _parse(data, "<bytes>", None, None)
    path = Path(source)
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not is_regular(file.fileno()):
                raise GGUFError(
                    f"{path} is a pipe or a device, not a file; a file was expected, for it is mapped"
                )
            if status.st_size == 0:
                raise GGUFError(f"{path}: the file is empty (byte 0: expected the magic 'GGUF')")
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFound(f"there is no file {path}; check the path or run `ggfw list`") from None
    except ValueError:  # a zero byte or a lone surrogate: no path has one
        raise ModelNotFound(f"there is no file {str(path)!r}; no path can be spelt like that") from None
    except IsADirectoryError:
        raise GGUFError(f"{path} is a folder, not a GGUF file; name a file in it") from None
    except PermissionError:
        raise GGUFError(f"{path} cannot be read: permission denied") from None
    except OSError as error:
        raise GGUFError(f"{path} cannot be mapped: {error.strerror or error}") from None
    return _parse(np.frombuffer(mapping, np.uint8), str(path), path, mapping)


def _parse(data: NDArray[np.uint8], source: str, path: Path | None, mapping: mmap.mmap | None) -> Shard:
    cursor = Cursor(data.data, source)
    version = _read_version(cursor)
    at = cursor.position
    n_tensors = cursor.u64("tensor count")
    n_pairs = cursor.u64("metadata count")
    # Every pair and every record needs some bytes, so absurd counts are refused before the first loop.
    if n_pairs * _SMALLEST_PAIR > cursor.remaining:
        cursor.fail(
            "metadata count", f"{n_pairs} keys do not fit in the {cursor.remaining} bytes left", at + 8
        )
    if n_tensors * _SMALLEST_RECORD > cursor.remaining:
        cursor.fail(
            "tensor count", f"{n_tensors} tensors do not fit in the {cursor.remaining} bytes left", at
        )
    metadata = read_metadata(cursor, data, n_pairs)
    if n_tensors * _SMALLEST_RECORD > cursor.remaining:
        cursor.fail(
            "tensor count", f"{n_tensors} tensors do not fit in the {cursor.remaining} bytes left", at
        )
    records = read_tensor_records(cursor, n_tensors)
    alignment = _alignment(metadata, source)
    data_offset = -(-cursor.position // alignment) * alignment
    return Shard(source, path, data, mapping, version, alignment, metadata, records, data_offset)


def _read_version(cursor: Cursor) -> int:
    cursor.need(4, "magic")
    magic = bytes(cursor.buffer[:4])
    if magic != b"GGUF":
        if magic == b"vers" and bytes(cursor.buffer[:40]).startswith(b"version https://git-lfs"):
            cursor.fail(
                "magic", "this is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"
            )
        if magic in (b"tjgg", b"lmgg", b"fmgg", b"algg"):
            cursor.fail("magic", "this is a GGML file from before GGUF; convert the original model again")
        cursor.fail("magic", f"expected 'GGUF', found {magic!r}; this is not a GGUF file")
    cursor.position = 4
    version = cursor.u32("version")
    if version in VERSIONS:
        return version
    if version & 0xFFFF == 0 and version:
        cursor.fail(
            "version", "this is a big-endian GGUF file, only little-endian ones are supported; convert it", 4
        )
    if version == 1:
        cursor.fail("version", "GGUF version 1 is not supported (2 and 3 are); convert the model again", 4)
    cursor.fail("version", f"GGUF version {version} is not supported (2 and 3 are)", 4)


def _alignment(metadata: Metadata, source: str) -> int:
    key = "general.alignment"
    if key not in metadata:
        return DEFAULT_ALIGNMENT
    value, value_type = metadata[key], metadata.value_type(key)
    if value_type != ValueType.U32:
        raise GGUFError(
            f"{source}: metadata key {key!r} must be a U32, the file has {value_type.name} ({brief(value)})"
        )
    if value == 0 or value & (value - 1):
        raise GGUFError(f"{source}: metadata key {key!r} is {value}; it must be a power of two")
    return int(value)

"""Tensor records: name, shape, type, and where the bytes are."""

from __future__ import annotations

import mmap
from dataclasses import field
from math import prod

import numpy as np
from numpy.typing import NDArray

from ggfw.errors import GGUFError, brief
from ggfw.gguf.cursor import Cursor
from ggfw.gguf.types import find_type, type_name
from ggfw.records import dataclass

MAX_DIMS = 4  # ggml's limit
_MAX_ELEMENTS = 2**60  # their bytes in any type are a number that NumPy can count


@dataclass(frozen=True, slots=True, eq=False)
class TensorInfo:
    """One tensor of a GGUF file.

    Attributes:
        name: e.g. ``"blk.0.attn_q.weight"``.
        shape: slowest dimension first (NumPy's order): a ggml matrix of ``[n_in, n_out]`` has shape ``(n_out, n_in)``.
        ggml_type: type number in the file.
        type_name: ``"Q4_K"`` etc., or ``"unknown(NN)"``.
        n_bytes: size in the file; for an unknown type the distance to the next tensor or the end of the file.
        offset: first byte, counted from the beginning of the shard's file.
        shard: 0-based index of the file in a split set.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    n_bytes: int
    offset: int
    shard: int
    _file: NDArray[np.uint8] = field(repr=False)
    _mapping: mmap.mmap | None = field(repr=False, default=None)

    @property
    def type_name(self) -> str:
        """ggml's name of the type, or ``"unknown(NN)"``."""
        return type_name(self.ggml_type)

    @property
    def known(self) -> bool:
        """Whether the size of this type's blocks is known."""
        return find_type(self.ggml_type) is not None

    @property
    def n_elements(self) -> int:
        """Number of elements (1 for a shape without dimensions)."""
        return prod(self.shape)

    @property
    def data(self) -> NDArray[np.uint8]:
        """The bytes as a read-only 1-D uint8 view of the mapped file; nothing is copied."""
        return self._file[self.offset : self.offset + self.n_bytes]

    @property
    def mapped(self) -> bool:
        """Whether the bytes are a file's mapping, whose memory can be given back; False for files given as bytes."""
        return self._mapping is not None


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """What the header says about a tensor, before sizes and places were checked."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    relative_offset: int  # from the beginning of the data section
    n_bytes: int | None  # None: the type is unknown
    at: int  # byte of the record in the header


def read_tensor_records(cursor: Cursor, count: int) -> list[TensorRecord]:
    """Read ``count`` tensor records at the cursor; sizes are computed with Python integers, so nothing can wrap."""
    records: list[TensorRecord] = []
    seen: set[str] = set()
    for index in range(count):
        at = cursor.position
        name = cursor.name(f"name of tensor {index}")
        label = f"tensor {brief(name)}"
        if name in seen:
            cursor.fail(label, "appears twice", at)
        seen.add(name)
        n_dims = cursor.u32(f"dimension count of {label}")
        if n_dims > MAX_DIMS:
            cursor.fail(
                f"dimension count of {label}", f"{n_dims} dimensions, at most {MAX_DIMS} are possible", at
            )
        dims = [cursor.u64(f"dimension {d} of {label}") for d in range(n_dims)]
        type_at = cursor.position
        ggml_type = cursor.u32(f"type of {label}")
        relative_offset = cursor.u64(f"offset of {label}")
        n_elements = prod(dims)
        # Without the zeros: an empty array of 2^62 columns cannot be made either.
        if prod(d or 1 for d in dims) > _MAX_ELEMENTS:
            cursor.fail(f"shape of {label}", f"{dims} has more than 2^60 elements", at)
        n_bytes: int | None = None
        known = find_type(ggml_type)
        if known is not None:
            row = dims[0] if dims else 1
            if row % known.block_size:
                cursor.fail(
                    f"shape of {label}",
                    f"rows of {row} elements are not a multiple of the {known.block_size} that {known.name} packs",
                    type_at,
                )
            n_bytes = n_elements // known.block_size * known.type_size
        records.append(TensorRecord(name, tuple(reversed(dims)), ggml_type, relative_offset, n_bytes, at))
    return records


def place_tensors(
    records: list[TensorRecord],
    *,
    source: str,
    data: NDArray[np.uint8],
    mapping: mmap.mmap | None,
    data_offset: int,
    alignment: int,
    shard: int,
) -> list[TensorInfo]:
    """Check that every record lies inside the file and overlaps no other, and turn it into a TensorInfo.

    Returns:
        TensorInfo in header order.

    Raises:
        GGUFError: an offset is not aligned, bytes lie outside the file, or two tensors share bytes.
    """
    size = len(data)
    by_place = sorted(range(len(records)), key=lambda i: records[i].relative_offset)
    n_bytes: dict[int, int] = {}
    for rank, index in enumerate(by_place):
        r = records[index]
        begin = data_offset + r.relative_offset
        where = f"{source}: tensor {brief(r.name)} (record at byte {r.at})"
        if r.relative_offset % alignment:
            raise GGUFError(
                f"{where}: offset {r.relative_offset} is not a multiple of the alignment {alignment}"
            )
        following = records[by_place[rank + 1]] if rank + 1 < len(by_place) else None
        limit = data_offset + following.relative_offset if following is not None else size
        if r.n_bytes is None:
            if begin > size or limit > size:
                raise GGUFError(f"{where}: offset {begin} lies outside the file of {size} bytes")
            n_bytes[index] = limit - begin
            continue
        if begin + r.n_bytes > size:
            raise GGUFError(
                f"{where}: {r.n_bytes} bytes at byte {begin} do not fit in the {size} bytes of the file (truncated?)"
            )
        if following is not None and begin + r.n_bytes > limit:
            raise GGUFError(
                f"{where}: its {r.n_bytes} bytes at byte {begin} overlap tensor {brief(following.name)} at {limit}"
            )
        n_bytes[index] = r.n_bytes
    return [
        TensorInfo(
            r.name, r.shape, r.ggml_type, n_bytes[i], data_offset + r.relative_offset, shard, data, mapping
        )
        for i, r in enumerate(records)
    ]

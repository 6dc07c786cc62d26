"""Pieces that the NumPy references of several formats share. Blocks are uint8 arrays of shape (n, type_size)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.uint8]
Floats = NDArray[np.float32]


def f16(blocks: Blocks, at: int) -> Floats:
    """The half-precision field at byte ``at`` of every block, as float32 (n, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def u16(blocks: Blocks, at: int, count: int) -> NDArray[np.uint16]:
    """``count`` little-endian uint16 at byte ``at`` of every block, (n, count)."""
    return np.ascontiguousarray(blocks[:, at : at + 2 * count]).view("<u2")


def u32(blocks: Blocks, at: int, count: int) -> NDArray[np.uint32]:
    """``count`` little-endian uint32 at byte ``at`` of every block, (n, count)."""
    return np.ascontiguousarray(blocks[:, at : at + 4 * count]).view("<u4")


def put_f16(out: Blocks, at: int, values: Floats) -> None:
    """Store float32 (n, 1) or (n,) as the half-precision field at byte ``at``; out of range becomes infinite."""
    out[:, at : at + 2] = values.reshape(-1, 1).astype("<f2").view(np.uint8)


def halves(out: Floats) -> tuple[Floats, Floats]:
    """The first and the second half of every block's elements, as views."""
    middle = out.shape[1] // 2
    return out[:, :middle], out[:, middle:]


def nibble_pairs(packed: Blocks) -> tuple[Blocks, Blocks]:
    """Low and high nibbles of bytes, each of the shape of ``packed``."""
    return packed & np.uint8(15), packed >> np.uint8(4)


def two_bit_planes(packed: Blocks) -> Blocks:
    """2-bit fields in ggml's plane order: (n, 32 k) bytes -> (n, k, 4, 32), the shift walks 0, 2, 4, 6."""
    groups = packed.reshape(len(packed), -1, 1, 32)
    return (groups >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & np.uint8(3)

"""NumPy references of Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K: blocks (n, type_size) -> out (n, 256).

Layouts are those of ggml's ``block_q*_K``. Values are computed in float32 in ggml's order: super-block scale times
sub-block scale, times quant, minus the offset.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ggfw.plugins.quant_formats.blocks import Blocks, Floats, f16, nibble_pairs, two_bit_planes


def dequantize_q2_k(blocks: Blocks, out: Floats) -> None:
    """Scales (low nibble) and minima (high) 16 bytes, 2-bit planes 64 bytes, d f16, dmin f16."""
    scale, minimum = nibble_pairs(blocks[:, :16])
    d, dmin = f16(blocks, 80), f16(blocks, 82)
    out.reshape(-1, 2, 4, 32)[:] = two_bit_planes(blocks[:, 16:80])
    groups = out.reshape(-1, 16, 16)
    groups *= (d * scale)[:, :, None]
    groups -= (dmin * minimum)[:, :, None]


def dequantize_q3_k(blocks: Blocks, out: Floats) -> None:
    """High-bit mask 32 bytes, 2-bit planes 64 bytes, 16 scales of 6 bits in 12 bytes, d f16.

    A high bit that is *not* set subtracts 4. The mask's bit number walks over the eight groups of 32 elements.
    """
    n = len(blocks)
    packed = blocks[:, 96:108]
    low = np.concatenate(nibble_pairs(packed[:, :8]), axis=1)  # (n, 16)
    high = (packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3  # (n, 4, 4)
    scale = (low | (high.reshape(n, 16) << 4)).view(np.int8) - np.int8(32)
    low_bits = two_bit_planes(blocks[:, 32:96]).reshape(n, 8, 32)
    missing = (~blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None]) & 1  # (n, 8, 32)
    out.reshape(n, 8, 32)[:] = low_bits.view(np.int8) - (missing << 2).view(np.int8)
    groups = out.reshape(n, 16, 16)
    groups *= (f16(blocks, 108) * scale)[:, :, None]


def _six_bit_pairs(packed: Blocks) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Eight scales and eight minima of 6 bits from 12 bytes: (n, 12) -> (n, 8), (n, 8)."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.concatenate((first & 63, (third & 15) | (first >> 6 << 4)), axis=1)
    minimum = np.concatenate((second & 63, (third >> 4) | (second >> 6 << 4)), axis=1)
    return scale, minimum


def _scale_and_offset(blocks: Blocks, out: Floats) -> None:
    """Q4_K and Q5_K: turn the quants in ``out`` into values; d f16, dmin f16, then the 12 bytes of 6-bit pairs."""
    scale, minimum = _six_bit_pairs(blocks[:, 4:16])
    groups = out.reshape(-1, 8, 32)
    groups *= (f16(blocks, 0) * scale)[:, :, None]
    groups -= (f16(blocks, 2) * minimum)[:, :, None]


def dequantize_q4_k(blocks: Blocks, out: Floats) -> None:
    """d f16, dmin f16, 6-bit scales and minima 12 bytes, 128 bytes; of every 32, low nibbles come first."""
    quants = out.reshape(-1, 4, 2, 32)
    quants[:, :, 0], quants[:, :, 1] = nibble_pairs(blocks[:, 16:].reshape(-1, 4, 32))
    _scale_and_offset(blocks, out)


def dequantize_q5_k(blocks: Blocks, out: Floats) -> None:
    """As Q4_K, with 32 bytes of fifth bits before the nibbles: bit g of byte l belongs to element l of group g."""
    n = len(blocks)
    bits = ((blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1) << 4  # (n, 8, 32)
    fifth = bits.reshape(n, 4, 2, 32)
    quants = out.reshape(n, 4, 2, 32)
    low, high = nibble_pairs(blocks[:, 48:].reshape(n, 4, 32))
    quants[:, :, 0] = low | fifth[:, :, 0]
    quants[:, :, 1] = high | fifth[:, :, 1]
    _scale_and_offset(blocks, out)


def dequantize_q6_k(blocks: Blocks, out: Floats) -> None:
    """Low nibbles 128 bytes, high 2-bit planes 64 bytes, 16 int8 scales, d f16; value d * scale * (q - 32)."""
    n = len(blocks)
    nibbles = (
        blocks[:, :128].reshape(n, 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None]
    ) & 15  # (n, 2, 2, 64)
    low = nibbles.reshape(n, 2, 4, 32)
    q = (low | (two_bit_planes(blocks[:, 128:192]) << 4)).view(np.int8) - np.int8(32)
    out.reshape(n, 2, 4, 32)[:] = q
    groups = out.reshape(n, 16, 16)
    groups *= (f16(blocks, 208) * blocks[:, 192:208].view(np.int8))[:, :, None]


def dequantize_q8_k(blocks: Blocks, out: Floats) -> None:
    """d f32, 256 int8, sums of 16 quants (int16; redundant); value d * q."""
    d = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    np.multiply(blocks[:, 4:260].view(np.int8), d, out=out)

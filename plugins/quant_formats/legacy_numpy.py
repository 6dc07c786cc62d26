"""NumPy references of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1: blocks (n, type_size) <-> values (n, 32).

Nibble j of the 16 packed bytes: the low one is element j, the high one element j + 16. Layouts and arithmetic are
those of ggml's ``block_q*`` and ``quantize_row_q*_ref``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ggfw.plugins.quant_formats.blocks import Blocks, Floats, f16, halves, nibble_pairs, put_f16, u32

_BIT = np.arange(32, dtype=np.uint32)


def dequantize_q4_0(blocks: Blocks, out: Floats) -> None:
    """d f16, 16 bytes; value d * (q - 8)."""
    d = f16(blocks, 0)
    for part, q in zip(halves(out), nibble_pairs(blocks[:, 2:]), strict=True):
        np.multiply(q.view(np.int8) - np.int8(8), d, out=part)


def dequantize_q4_1(blocks: Blocks, out: Floats) -> None:
    """d f16, m f16, 16 bytes; value d * q + m."""
    d, m = f16(blocks, 0), f16(blocks, 2)
    for part, q in zip(halves(out), nibble_pairs(blocks[:, 4:]), strict=True):
        np.multiply(q, d, out=part)
    out += m


def _fifth_bits(blocks: Blocks, at: int) -> NDArray[np.uint8]:
    """Bit j of the uint32 at byte ``at`` belongs to element j; returned as 0 or 16, (n, 32)."""
    return (((u32(blocks, at, 1) >> _BIT) & 1) << 4).astype(np.uint8)


def dequantize_q5_0(blocks: Blocks, out: Floats) -> None:
    """d f16, fifth bits u32, 16 bytes; value d * (q - 16)."""
    d, high = f16(blocks, 0), _fifth_bits(blocks, 2)
    for part, q, h in zip(halves(out), nibble_pairs(blocks[:, 6:]), np.split(high, 2, axis=1), strict=True):
        np.multiply((q | h).view(np.int8) - np.int8(16), d, out=part)


def dequantize_q5_1(blocks: Blocks, out: Floats) -> None:
    """d f16, m f16, fifth bits u32, 16 bytes; value d * q + m."""
    d, m, high = f16(blocks, 0), f16(blocks, 2), _fifth_bits(blocks, 4)
    for part, q, h in zip(halves(out), nibble_pairs(blocks[:, 8:]), np.split(high, 2, axis=1), strict=True):
        np.multiply(q | h, d, out=part)
    out += m


def dequantize_q8_0(blocks: Blocks, out: Floats) -> None:
    """d f16, 32 int8; value d * q."""
    np.multiply(blocks[:, 2:].view(np.int8), f16(blocks, 0), out=out)


def dequantize_q8_1(blocks: Blocks, out: Floats) -> None:
    """d f16, s f16 (d times the sum of q; redundant), 32 int8; value d * q."""
    np.multiply(blocks[:, 4:].view(np.int8), f16(blocks, 0), out=out)


def _signed_scale(values: Floats, levels: int) -> tuple[Floats, Floats]:
    """Scale that puts the value of largest magnitude (the first of equals) on -levels, and its inverse; (n, 1)."""
    at = np.abs(values).argmax(axis=1, keepdims=True)
    d = np.take_along_axis(values, at, axis=1) / np.float32(-levels)
    return d, _inverse(d)


def _inverse(d: Floats) -> Floats:
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)


def _round_up_half(scaled: Floats, offset: float, top: int) -> NDArray[np.uint8]:
    """Truncate ``scaled + offset`` and cap it at ``top``, as the C cast does for the values that occur."""
    return np.minimum((scaled + np.float32(offset)).astype(np.int32), top).astype(np.uint8)


def _pack_nibbles(q: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return (q[:, :16] & np.uint8(15)) | (q[:, 16:] << np.uint8(4))


def _pack_fifth_bits(q: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.packbits(q >> 4, axis=1, bitorder="little")


def quantize_q4_0(values: Floats, out: Blocks) -> None:
    """Round to 16 levels; the value of largest magnitude becomes -8."""
    d, inverse = _signed_scale(values, 8)
    put_f16(out, 0, d)
    out[:, 2:] = _pack_nibbles(_round_up_half(values * inverse, 8.5, 15))


def quantize_q5_0(values: Floats, out: Blocks) -> None:
    """Round to 32 levels; the value of largest magnitude becomes -16."""
    d, inverse = _signed_scale(values, 16)
    q = _round_up_half(values * inverse, 16.5, 31)
    put_f16(out, 0, d)
    out[:, 2:6] = _pack_fifth_bits(q)
    out[:, 6:] = _pack_nibbles(q)


def _range_scale(values: Floats, levels: int) -> tuple[Floats, Floats, NDArray[np.uint8]]:
    """Scale, minimum and quants that spread the levels from the smallest to the largest value."""
    low = values.min(axis=1, keepdims=True)
    d = (values.max(axis=1, keepdims=True) - low) / np.float32(levels)
    return d, low, _round_up_half((values - low) * _inverse(d), 0.5, levels)


def quantize_q4_1(values: Floats, out: Blocks) -> None:
    """Round to 16 levels between minimum and maximum."""
    d, low, q = _range_scale(values, 15)
    put_f16(out, 0, d)
    put_f16(out, 2, low)
    out[:, 4:] = _pack_nibbles(q)


def quantize_q5_1(values: Floats, out: Blocks) -> None:
    """Round to 32 levels between minimum and maximum."""
    d, low, q = _range_scale(values, 31)
    put_f16(out, 0, d)
    put_f16(out, 2, low)
    out[:, 4:8] = _pack_fifth_bits(q)
    out[:, 8:] = _pack_nibbles(q)


def quantize_q8_0(values: Floats, out: Blocks) -> None:
    """Round to -127..127, halves away from zero."""
    d = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scaled = values * _inverse(d)
    whole = np.trunc(scaled)
    whole += np.copysign(np.abs(scaled - whole) >= 0.5, scaled)
    put_f16(out, 0, d)
    out[:, 2:] = whole.astype(np.int8).view(np.uint8)

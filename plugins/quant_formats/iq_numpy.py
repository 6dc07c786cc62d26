"""NumPy references of the IQ1, IQ2 and IQ3 formats: blocks (n, type_size) -> out (n, 256).

Layouts are those of ggml's ``block_iq*``; values are computed in float32 in ggml's order. All of them pick vectors of
eight (IQ1, IQ2) or four (IQ3) elements from a grid; IQ2 and IQ3 give every element a sign, IQ1 shifts every vector.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ggfw.plugins.quant_formats.blocks import Blocks, Floats, f16, nibble_pairs, u16, u32
from ggfw.plugins.quant_formats.iq_grids import even_signs, grid, signs

_DELTA = np.float32(0.125)  # IQ1: every vector is shifted by plus or minus this
_SEVEN_BITS = np.array([0, 7, 14, 21], np.uint32)


def _per_16(blocks: Blocks, at: int) -> Floats:
    """IQ2_XS, IQ2_S: two 4-bit scales in each of 8 bytes -> d * (0.5 + s) / 4 per 16 elements, (n, 16, 1)."""
    nibbles = np.stack(nibble_pairs(blocks[:, at : at + 8]), axis=2).reshape(-1, 16)
    return (f16(blocks, 0) * (np.float32(0.5) + nibbles) * np.float32(0.25))[:, :, None]


def _packed_signs_and_scale(words: NDArray[np.uint32]) -> tuple[NDArray[np.int8], Floats]:
    """IQ2_XXS, IQ3_XXS: four 7-bit sign fields and a 4-bit scale per word -> signs (n, 8, 4, 8), 0.5 + s (n, 8)."""
    fields = (words[:, :, None] >> _SEVEN_BITS) & 127
    return even_signs()[fields], np.float32(0.5) + (words >> 28).astype(np.float32)


def dequantize_iq2_xxs(blocks: Blocks, out: Floats) -> None:
    """d f16, then per 32 elements: four grid indices of 8 bits, one word of signs and scale."""
    n = len(blocks)
    words = u32(blocks, 2, 16).reshape(n, 8, 2)
    index = blocks[:, 2:].reshape(n, 8, 8)[:, :, :4]
    sign, scale = _packed_signs_and_scale(words[:, :, 1])
    factor = f16(blocks, 0) * scale * np.float32(0.25)  # (n, 8)
    values = (grid("iq2_xxs")[index] * sign).reshape(n, 8, 32)
    np.multiply(values, factor[:, :, None], out=out.reshape(n, 8, 32))


def dequantize_iq2_xs(blocks: Blocks, out: Floats) -> None:
    """d f16, 32 words of a 9-bit grid index and a 7-bit sign field, 8 bytes of 4-bit scales."""
    n = len(blocks)
    words = u16(blocks, 2, 32)
    values = grid("iq2_xs")[words & 511] * even_signs()[words >> 9]  # (n, 32, 8)
    np.multiply(values.reshape(n, 16, 16), _per_16(blocks, 66), out=out.reshape(n, 16, 16))


def dequantize_iq2_s(blocks: Blocks, out: Floats) -> None:
    """d f16, 32 low index bytes, 32 sign bytes, 8 bytes of high index bits, 8 bytes of 4-bit scales."""
    n = len(blocks)
    high = (blocks[:, 66:74, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3  # (n, 8, 4)
    index = blocks[:, 2:34] | (high.reshape(n, 32).astype(np.uint16) << 8)
    values = grid("iq2_s")[index] * signs()[blocks[:, 34:66]]  # (n, 32, 8)
    np.multiply(values.reshape(n, 16, 16), _per_16(blocks, 74), out=out.reshape(n, 16, 16))


def dequantize_iq3_xxs(blocks: Blocks, out: Floats) -> None:
    """d f16, 64 grid indices, 8 words of signs and scale."""
    n = len(blocks)
    sign, scale = _packed_signs_and_scale(u32(blocks, 66, 8))
    factor = f16(blocks, 0) * scale * np.float32(0.5)  # (n, 8)
    values = grid("iq3_xxs")[blocks[:, 2:66]].reshape(n, 8, 32) * sign.reshape(n, 8, 32)
    np.multiply(values, factor[:, :, None], out=out.reshape(n, 8, 32))


def dequantize_iq3_s(blocks: Blocks, out: Floats) -> None:
    """d f16, 64 low index bytes, 8 bytes of ninth index bits, 32 sign bytes, 4 bytes of 4-bit scales."""
    n = len(blocks)
    ninth = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little")  # (n, 64)
    index = blocks[:, 2:66] | (ninth.astype(np.uint16) << 8)
    scale = np.stack(nibble_pairs(blocks[:, 106:110]), axis=2).reshape(n, 8)
    factor = f16(blocks, 0) * (1 + 2 * scale.astype(np.int32)).astype(np.float32)  # (n, 8)
    values = grid("iq3_s")[index].reshape(n, 8, 32) * signs()[blocks[:, 74:106]].reshape(n, 8, 32)
    np.multiply(values, factor[:, :, None], out=out.reshape(n, 8, 32))


def _shifted(index: NDArray[np.integer], negative: NDArray[np.bool_], factor: Floats, out: Floats) -> None:
    """IQ1: factor * (grid vector +- 0.125) for 32 vectors; index (n, 32), negative and factor broadcast to it."""
    vectors = out.reshape(len(out), 32, 8)
    delta = np.where(negative, -_DELTA, _DELTA)
    np.add(grid("iq1_s")[index], delta[:, :, None], out=vectors)
    vectors *= factor[:, :, None]


def dequantize_iq1_s(blocks: Blocks, out: Floats) -> None:
    """d f16, 32 low index bytes, 8 words: four times 3 high index bits, 3 bits of scale, sign of the shift."""
    n = len(blocks)
    words = u16(blocks, 34, 8)
    high = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & 7  # (n, 8, 4)
    index = blocks[:, 2:34] | (high.reshape(n, 32) << 8)
    factor = f16(blocks, 0) * (2 * ((words >> 12) & 7) + 1).astype(np.float32)  # (n, 8)
    _shifted(index, np.repeat(words >= 0x8000, 4, axis=1), np.repeat(factor, 4, axis=1), out)


def dequantize_iq1_m(blocks: Blocks, out: Floats) -> None:
    """32 low index bytes, 16 bytes of (3 high index bits, sign of the shift) nibbles, 4 words of scales.

    Each word of scales holds four scales of 3 bits (one per 16 elements) and a quarter of the half-precision d in its
    top bits.
    """
    n = len(blocks)
    words = u16(blocks, 48, 4)
    d_bits = (words >> 12) << np.array([0, 4, 8, 12], np.uint16)  # (n, 4)
    d = np.bitwise_or.reduce(d_bits, axis=1, keepdims=True).view(np.float16).astype(np.float32)
    scale = ((words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & 7).reshape(n, 16)
    factor = d * (2 * scale + 1).astype(np.float32)  # (n, 16)
    nibbles = np.stack(nibble_pairs(blocks[:, 32:48]), axis=2).reshape(n, 32)
    index = blocks[:, :32] | ((nibbles & 7).astype(np.uint16) << 8)
    _shifted(index, nibbles >= 8, np.repeat(factor, 2, axis=1), out)

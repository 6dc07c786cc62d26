"""NumPy references of TQ1_0, TQ2_0, Q1_0, Q2_0: blocks (n, type_size) -> out (n, block_size)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ggfw.plugins.quant_formats.blocks import Blocks, Floats, f16, two_bit_planes

_POWERS_OF_3 = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]


def _trits(packed: Blocks, count: int) -> NDArray[np.int8]:
    """The first ``count`` base-3 digits of bytes (n, m) -> (n, count, m), minus one.

    A byte is a fraction of 256: multiplying by 3^k modulo 256 drops the first k digits, and the next one is the carry
    of one more multiplication by 3.
    """
    shifted = packed[:, None, :] * _POWERS_OF_3[:count]  # uint8, wraps on purpose
    return ((shifted.astype(np.uint16) * 3) >> 8).astype(np.int8) - np.int8(1)


def dequantize_tq1_0(blocks: Blocks, out: Floats) -> None:
    """48 bytes of five trits (in runs of 32 and 16 bytes), 4 bytes of four trits, d f16; value d * trit."""
    d = f16(blocks, 52)[:, :, None]
    n = len(blocks)
    np.multiply(_trits(blocks[:, :32], 5), d, out=out[:, :160].reshape(n, 5, 32))
    np.multiply(_trits(blocks[:, 32:48], 5), d, out=out[:, 160:240].reshape(n, 5, 16))
    np.multiply(_trits(blocks[:, 48:52], 4), d, out=out[:, 240:].reshape(n, 4, 4))


def dequantize_tq2_0(blocks: Blocks, out: Floats) -> None:
    """2-bit planes 64 bytes, d f16; value d * (q - 1)."""
    q = two_bit_planes(blocks[:, :64]).view(np.int8) - np.int8(1)
    np.multiply(q.reshape(out.shape), f16(blocks, 64), out=out)


def dequantize_q1_0(blocks: Blocks, out: Floats) -> None:
    """d f16, 16 bytes; bit j (lowest first) set: d, else -d."""
    d = f16(blocks, 0)
    out[:] = np.where(np.unpackbits(blocks[:, 2:], axis=1, bitorder="little"), d, -d)


def dequantize_q2_0(blocks: Blocks, out: Floats) -> None:
    """d f16, 16 bytes; four neighbouring elements to a byte, lowest bits first; value d * (q - 1)."""
    q = (blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    np.multiply(q.reshape(out.shape).view(np.int8) - np.int8(1), f16(blocks, 0), out=out)

"""NumPy references of IQ4_NL and IQ4_XS (ggml's ``block_iq4_nl``, ``block_iq4_xs``)."""

from __future__ import annotations

import numpy as np

from ggfw.plugins.quant_formats.blocks import Blocks, Floats, f16, halves, nibble_pairs, u16

#: ggml's fixed non-linear scale.
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def dequantize_iq4_nl(blocks: Blocks, out: Floats) -> None:
    """d f16, 16 bytes; low nibble j is element j, high nibble element j + 16; value d * table[q]."""
    d = f16(blocks, 0)
    for part, q in zip(halves(out), nibble_pairs(blocks[:, 2:]), strict=True):
        np.multiply(IQ4_VALUES[q], d, out=part)


def dequantize_iq4_xs(blocks: Blocks, out: Floats) -> None:
    """d f16, high scale bits u16, low scale bits 4 bytes, 128 bytes; value d * (scale - 32) * table[q] per 32."""
    n = len(blocks)
    high = (u16(blocks, 2, 1) >> np.arange(0, 16, 2, dtype=np.uint16)) & 3  # (n, 8)
    low = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8)) & 15  # (n, 4, 2)
    scale = (low.reshape(n, 8) | (high << 4)).astype(np.int8) - np.int8(32)
    values = out.reshape(n, 8, 2, 16)
    low_q, high_q = nibble_pairs(blocks[:, 8:].reshape(n, 8, 16))
    values[:, :, 0], values[:, :, 1] = IQ4_VALUES[low_q], IQ4_VALUES[high_q]
    values *= (f16(blocks, 0) * scale)[:, :, None, None]

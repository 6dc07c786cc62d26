"""NumPy references of MXFP4 (OCP Microscaling Formats 1.0) and NVFP4, in ggml's packing.

E2M1 has the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. The table holds them doubled, as whole numbers, and the scales are
halved in return.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ggfw.plugins.quant_formats.blocks import Blocks, Floats, halves, nibble_pairs

_E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def _half_e8m0() -> Floats:
    """2^(e - 128) for all 256 exponents; the lowest two are subnormal. 255 is not NaN here, as in ggml."""
    return np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)


def _half_ue4m3() -> Floats:
    """Half the value of an unsigned E4M3 byte (bias 7) for all 256; 0x7F counts as zero, bit 7 is ignored otherwise."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    value = np.where(exponent == 0, np.ldexp(mantissa / 1.0, -9), np.ldexp(1 + mantissa / 8, exponent - 7))
    value[0x7F] = 0
    return (value / 2).astype(np.float32)


_MX_SCALE = _half_e8m0()
_NV_SCALE = _half_ue4m3()


def dequantize_mxfp4(blocks: Blocks, out: Floats) -> None:
    """Exponent byte E8M0, 16 bytes; low nibbles are elements 0-15, high nibbles 16-31."""
    scale = _MX_SCALE[blocks[:, :1]]
    for part, q in zip(halves(out), nibble_pairs(blocks[:, 1:]), strict=True):
        np.multiply(_E2M1_DOUBLED[q], scale, out=part)


def dequantize_nvfp4(blocks: Blocks, out: Floats) -> None:
    """Four scale bytes, 32 bytes: 8 per sub-block of 16, low nibbles its first half, high nibbles its second."""
    n = len(blocks)
    scale = _NV_SCALE[blocks[:, :4]][:, :, None]  # (n, 4, 1)
    values = out.reshape(n, 4, 2, 8)
    low, high = nibble_pairs(blocks[:, 4:].reshape(n, 4, 8))
    values[:, :, 0] = _E2M1_DOUBLED[low] * scale
    values[:, :, 1] = _E2M1_DOUBLED[high] * scale


def quantize_mxfp4(values: Floats, out: Blocks) -> None:
    """Exponent floor(log2(max)) - 2 (the largest value lands between 4 and 8 units), then the nearest E2M1 value."""
    largest = np.abs(values).max(axis=1)
    _, exponent = np.frexp(largest)  # largest = m * 2^exponent with 0.5 <= m < 1
    byte = np.where(largest > 0, np.clip(exponent - 1 - 2 + 127, 0, 254), 0).astype(np.uint8)
    scale = _MX_SCALE[byte][:, None]
    q = _nearest(np.abs(values) / scale)
    q |= ((values < 0) & (q > 0)).astype(np.uint8) << 3  # zero has one encoding
    out[:, 0] = byte
    out[:, 1:] = q[:, :16] | (q[:, 16:] << 4)


def _nearest(doubled: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Index of the nearest of the eight doubled magnitudes; halfway goes to the smaller."""
    magnitudes = _E2M1_DOUBLED[:8]
    return np.searchsorted((magnitudes[1:] + magnitudes[:-1]) / np.float32(2), doubled, side="left").astype(
        np.uint8
    )

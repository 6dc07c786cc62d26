"""NumPy references of the plain number types; one element per block, blocks (n, type_size) -> out (n, 1)."""

from __future__ import annotations

import numpy as np

from ggfw.plugins.quant_formats.blocks import Blocks, Floats


def dequantize_f32(blocks: Blocks, out: Floats) -> None:
    """Copy."""
    out[:] = blocks.view("<f4")


def dequantize_f16(blocks: Blocks, out: Floats) -> None:
    """Widen half precision; exact."""
    out[:] = blocks.view("<f2")


def dequantize_bf16(blocks: Blocks, out: Floats) -> None:
    """Put the 16 bits on top of 16 zeros; exact."""
    np.left_shift(blocks.view("<u2"), np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)


def dequantize_f64(blocks: Blocks, out: Floats) -> None:
    """Round double to single precision; beyond its range infinite."""
    out[:] = blocks.view("<f8")


def dequantize_i8(blocks: Blocks, out: Floats) -> None:
    """Exact."""
    out[:] = blocks.view("i1")


def dequantize_i16(blocks: Blocks, out: Floats) -> None:
    """Exact."""
    out[:] = blocks.view("<i2")


def dequantize_i32(blocks: Blocks, out: Floats) -> None:
    """Rounded to single precision beyond 2^24."""
    out[:] = blocks.view("<i4")


def dequantize_i64(blocks: Blocks, out: Floats) -> None:
    """Rounded to single precision beyond 2^24."""
    out[:] = blocks.view("<i8")


def quantize_f32(values: Floats, out: Blocks) -> None:
    """Copy."""
    out[:] = values.astype("<f4", copy=False).view(np.uint8)


def quantize_f16(values: Floats, out: Blocks) -> None:
    """Round to nearest even; beyond 65504 infinite."""
    out[:] = values.astype("<f2").view(np.uint8)


def quantize_bf16(values: Floats, out: Blocks) -> None:
    """Round to nearest even; NaN stays NaN (made quiet, so that its payload cannot be rounded away)."""
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    quiet = (bits >> 16) | 64
    out[:] = np.where(np.isnan(values), quiet, rounded).astype("<u2").view(np.uint8)


def quantize_f64(values: Floats, out: Blocks) -> None:
    """Widen; exact."""
    out[:] = values.astype("<f8").view(np.uint8)

"""Element types of the paged K/V cache: their numbers in the C API, their sizes, and a NumPy twin of their bytes.

``q8_0`` and ``q4_0`` mean what they mean in GGUF: blocks of 32 columns of one head at one position with an f16 scale.
The last block of a head whose width is no multiple of 32 is filled up with zeros. 16 positions are kept as one group,
numbers first, then scales (``ggfw_pool`` in ggfw_kernels.h).
"""

from __future__ import annotations

import numpy as np

from ggfw.errors import InvalidRequest, brief

#: Number of each type in ``enum ggfw_kv_type``.
KV_TYPES = {"f32": 0, "f16": 1, "bf16": 2, "q8_0": 3, "q4_0": 4}

#: Positions of a group, columns of a block.
GROUP, BLOCK = 16, 32

_ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
_BLOCK_BYTES = {"q8_0": 34, "q4_0": 18}


def check_kv_type(kv_type: str) -> str:
    """Return a known cache type.

    Raises:
        InvalidRequest: it is none.
    """
    if not isinstance(kv_type, str) or kv_type not in KV_TYPES:
        raise InvalidRequest(
            f"the cache type {brief(kv_type)} is unknown; {', '.join(KV_TYPES)} are known", "kv_type"
        )
    return kv_type


def kv_row_bytes(kv_type: str, d: int) -> int:
    """Bytes that ``d`` columns of K or V of one head take at one position, scales included."""
    if kv_type in _ELEMENT_BYTES:
        return d * _ELEMENT_BYTES[kv_type]
    return -(-d // BLOCK) * _BLOCK_BYTES[kv_type]


def encode_groups(x: np.ndarray, kv_type: str) -> np.ndarray:
    """Return the cache's bytes of K or V: (..., 16 g, d) float32 -> (..., g, group_bytes) uint8."""
    x = np.asarray(x, np.float32)
    *outer, n, d = x.shape
    x = x.reshape(*outer, n // GROUP, GROUP, d)
    if kv_type == "f32":
        return _bytes(x)
    if kv_type == "f16":
        with np.errstate(over="ignore"):
            return _bytes(x.astype(np.float16))
    if kv_type == "bf16":
        bits = x.view(np.uint32).astype(np.uint64)
        quiet = np.where(np.isnan(x), (bits | 0x400000) >> 16, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
        return _bytes(quiet.astype(np.uint16))
    numbers, scales = _quantise(x, kv_type)
    if kv_type == "q4_0":
        nibbles = (numbers + 8).astype(np.uint8)
        numbers = nibbles[..., :16] | nibbles[..., 16:] << 4
    # scales of one block of all 16 positions follow each other
    return np.concatenate([_bytes(numbers, 3), _bytes(scales.swapaxes(-1, -2), 2)], -1)


def decode_groups(data: np.ndarray, kv_type: str, d: int) -> np.ndarray:
    """Return the values of the cache's bytes: (..., g, group_bytes) uint8 -> (..., 16 g, d) float32."""
    *outer, g, _ = data.shape
    data = np.ascontiguousarray(data)
    if kv_type in _ELEMENT_BYTES:
        if kv_type == "bf16":
            values = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = data.view(np.float32 if kv_type == "f32" else np.float16).astype(np.float32)
        return values.reshape(*outer, g * GROUP, d)
    blocks = -(-d // BLOCK)
    split = GROUP * blocks * (_BLOCK_BYTES[kv_type] - 2)
    stored = data[..., :split].reshape(*outer, g, GROUP, blocks, -1)
    scales = np.ascontiguousarray(data[..., split:]).view(np.float16).reshape(*outer, g, blocks, GROUP)
    if kv_type == "q8_0":
        numbers = stored.view(np.int8).astype(np.float32)
    else:
        numbers = np.concatenate([stored & 15, stored >> 4], -1).astype(np.float32) - 8
    values = numbers * scales.swapaxes(-1, -2)[..., None].astype(np.float32)
    return values.reshape(*outer, g * GROUP, blocks * BLOCK)[..., :d]


def _bytes(x: np.ndarray, n_axes: int = 2) -> np.ndarray:
    """Return the last axes as one axis of bytes."""
    x = np.ascontiguousarray(x)
    return x.reshape(*x.shape[:-n_axes], -1).view(np.uint8)


def _quantise(x: np.ndarray, kv_type: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (..., 16, blocks, 32) int8 and scales (..., 16, blocks) float16 of (..., 16, d)."""
    *outer, d = x.shape
    blocks = -(-d // BLOCK)
    padded = np.zeros((*outer, blocks * BLOCK), np.float32)
    padded[..., :d] = x
    x = padded.reshape(*outer, blocks, BLOCK)
    largest = np.abs(x).max(-1)
    divisor, least, most = np.float32(127), -127, 127
    if kv_type == "q4_0":  # the first column of the largest magnitude becomes exactly -8
        at = np.abs(x).argmax(-1)[..., None]
        largest = np.take_along_axis(x, at, -1)[..., 0]
        divisor, least, most = np.float32(-8), -8, 7
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scales = (largest / divisor).astype(np.float16)
        scales[~np.isfinite(largest)] = np.nan
        scale = scales.astype(np.float32)[..., None]
        numbers = np.rint(np.clip(x / scale, least, most))
    numbers = np.where(np.isfinite(scale) & (scale != 0), numbers, 0)
    return numbers.astype(np.int8), scales

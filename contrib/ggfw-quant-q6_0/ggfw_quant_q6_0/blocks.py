"""What a block of Q6_0 means: 26 B: d f16, 8 B upper bits, 16 B lower bits; value d * (q - 32).

Byte j of the lower bits holds weights j (low nibble) and j + 16 (high nibble). Byte j of the upper bits holds two bits
each of weights j, j + 16, j + 8 and j + 24, from the low end.
"""

import numpy as np


def dequantize(blocks, out):
    """blocks: uint8 (n, 26) -> out: float32 (n, 32)."""
    d = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)  # (n, 1)
    high, low = blocks[:, 2:10], blocks[:, 10:]
    for half in (0, 1):  # weights 0-15, 16-31
        nibbles = low >> np.uint8(4 * half) & np.uint8(15)  # (n, 16)
        upper = np.concatenate([high >> np.uint8(2 * half), high >> np.uint8(2 * half + 4)], 1) & np.uint8(3)
        q = (nibbles | upper << np.uint8(4)).astype(np.int8) - np.int8(32)
        np.multiply(q, d, out=out[:, 16 * half : 16 * half + 16])


def quantize(values, out):
    """values: float32 (n, 32) -> out: uint8 (n, 26). The largest magnitude becomes -32, as in ggml's Q5_0."""
    at = np.abs(values).argmax(1)[:, None]
    d = np.take_along_axis(values, at, 1) / np.float32(-32)  # (n, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(d != 0, np.float32(1) / d, np.float32(0))
    q = np.clip(values * inverse + np.float32(32.5), 0, 63).astype(np.uint8)  # (n, 32)
    out[:, :2] = d.astype("<f2").view(np.uint8)
    low, high = q & np.uint8(15), q >> np.uint8(4)
    out[:, 10:] = low[:, :16] | low[:, 16:] << np.uint8(4)
    parts = (high[:, 0:8], high[:, 16:24], high[:, 8:16], high[:, 24:32])
    out[:, 2:10] = sum(part << np.uint8(2 * i) for i, part in enumerate(parts))

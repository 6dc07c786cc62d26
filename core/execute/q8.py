"""Quantised activations in NumPy, as ggfw_kernels.h defines them.

GGFW_Q8: int8 with one float scale per 16 columns; GGFW_Q16: 15 bits in two int8 planes with one scale per 32.
"""

from __future__ import annotations

import numpy as np

from ggfw.graph.plan import Q16, activation_row_bytes

#: Largest quantised values: 127, and 127 * 128.
MOST = {8: 127, 16: 16256}


def quantise_rows(x: np.ndarray, kind: int) -> np.ndarray:
    """Return rows (T, n) float32 as bytes (T, activation_row_bytes(kind, n)) uint8; n is a multiple of 32."""
    rows, n = x.shape
    wide = kind == Q16
    block = 32 if wide else 16
    blocks = x.astype(np.float32).reshape(rows, -1, block)
    d = np.abs(blocks).max(-1) / np.float32(MOST[16 if wide else 8])  # (T, n / block)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.rint(np.where(d[..., None] > 0, blocks / d[..., None], 0)).astype(np.int32).reshape(rows, n)
    sums = q.reshape(rows, n // 16, 16).sum(-1, dtype=np.int32)
    if wide:
        high = (q + 64) >> 7
        planes = np.stack([high, q - 128 * high]).astype(np.int8).reshape(2, rows, n // 32, 32)
        stored = planes.transpose(1, 2, 0, 3).reshape(rows, 2 * n)
        totals = (d.astype(np.float64) * sums.reshape(rows, -1, 2).sum(-1)).astype(np.float32)
    else:
        stored = np.zeros((rows, _padded(n)), np.int8)
        stored[:, :n] = q
        totals = (d.astype(np.float64) * sums).reshape(rows, -1, 2).sum(-1).astype(np.float32)
    parts = [np.ascontiguousarray(part).view(np.uint8) for part in (stored, d, sums, totals)]
    data = np.concatenate(parts, axis=1)
    return np.pad(data, ((0, 0), (0, activation_row_bytes(kind, n) - data.shape[1])))


def dequantise_rows(data: np.ndarray, n: int, kind: int) -> np.ndarray:
    """Return the values (T, n) float32 of rows made by :func:`quantise_rows`."""
    if kind == Q16:
        planes = data[:, : 2 * n].view(np.int8).reshape(len(data), n // 32, 2, 32).astype(np.int32)
        q = (128 * planes[:, :, 0] + planes[:, :, 1]).reshape(len(data), n)
        begin, block = 2 * n, 32
    else:
        q = data[:, :n].view(np.int8).astype(np.int32)
        begin, block = _padded(n), 16
    d = np.ascontiguousarray(data[:, begin : begin + n // block * 4]).view(np.float32)
    return q.astype(np.float32) * np.repeat(d, block, axis=1)


def _padded(n: int) -> int:
    return -(-n // 64) * 64

"""GGFW_Q8 in NumPy: int8 activations with one float scale per 16 columns (see ggfw_kernels.h)."""

from __future__ import annotations

import numpy as np

from ggfw.graph.plan import q8_row_bytes


def quantise_rows(x: np.ndarray) -> np.ndarray:
    """Return rows (T, n) float32 as bytes (T, q8_row_bytes(n)) uint8; n is a multiple of 32."""
    rows, n = x.shape
    blocks = x.astype(np.float32).reshape(rows, n // 16, 16)
    d = np.abs(blocks).max(-1) / np.float32(127)  # (T, n / 16)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.rint(np.where(d[..., None] > 0, blocks / d[..., None], 0)).astype(np.int8).reshape(rows, n)
    sums = q.reshape(rows, n // 16, 16).sum(-1, dtype=np.int32)
    totals = (d.astype(np.float64) * sums).reshape(rows, n // 32, 2).sum(-1).astype(np.float32)
    out = np.zeros((rows, q8_row_bytes(n)), np.uint8)
    out[:, :n] = q.view(np.uint8)
    begin = -(-n // 64) * 64
    for part in (d, sums, totals):
        data = np.ascontiguousarray(part).view(np.uint8)
        out[:, begin : begin + data.shape[1]] = data
        begin += data.shape[1]
    return out


def dequantise_rows(data: np.ndarray, n: int) -> np.ndarray:
    """Return the values (T, n) float32 of rows made by :func:`quantise_rows`."""
    padded = -(-n // 64) * 64
    q = data[:, :n].view(np.int8).astype(np.float32)
    d = np.ascontiguousarray(data[:, padded : padded + n // 16 * 4]).view(np.float32)
    return q * np.repeat(d, 16, axis=1)

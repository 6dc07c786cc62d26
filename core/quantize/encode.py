"""Floats into quantised blocks: the native search of a kernel backend, else the format's simple NumPy quantiser."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggfw import quants
from ggfw.descriptors import QuantFormat
from ggfw.errors import BackendError, InvalidRequest
from ggfw.execute.library import kernel_library, native
from ggfw.quants import Format
from ggfw.registry import default_registry

_F16_MAX = 65504.0  # what the scales of most formats can be


@cache
def _encoder() -> Any:
    """``ggfw_encode_blocks`` of the best backend that exports it, or None."""
    for descriptor in default_registry().backends():
        try:
            return kernel_library(descriptor).handle.ggfw_encode_blocks
        except (AttributeError, BackendError):  # the library of a third party need not have one
            continue
    return None


@cache
def _has_encoder(ggml_type: int) -> bool:
    encoder = _encoder()
    if encoder is None:
        return False
    ffi = native().ffi
    status: int = encoder(ggml_type, ffi.new("float[1]"), 0, 1, ffi.NULL, ffi.new("uint8_t[1]"))
    return status == 0


def encodable(fmt: Format) -> bool:
    """Whether floats can be turned into ``fmt`` here at all."""
    found = quants.get(fmt)
    return found.quantize is not None or _has_encoder(found.ggml_type)


def encode(
    fmt: Format,
    values: NDArray[Any],
    importance: NDArray[Any] | None = None,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Turn an array into quantised bytes whose weighted squared error is small.

    Scales are searched natively (``kernels_c/src/encode``), without the interpreter's lock; a format without such a
    search gets its simple NumPy quantiser. The weight of an element is ``importance * sqrt(mean square of its block +
    its square)``, and without ``importance`` ``root mean square + magnitude`` (ggml-quants.c weighs alike).

    Args:
        fmt: format to make.
        values: float array; the last dimension is the row and a multiple of the format's block size. Finite.
        importance: (n_cols,) weight of each column, for example the mean square of the activations it is multiplied
            with; None: by magnitude.
        out: C-contiguous uint8 array of the result's shape to write into; None makes one.

    Returns:
        uint8 array of shape ``(*values.shape[:-1], row_bytes)`` (``out`` if given).

    Raises:
        InvalidRequest: the row length, ``importance`` or ``out`` does not fit, a value is not finite or too large for
            the format's scales, or the format cannot be made.
        UnknownQuantFormat: no installed plugin knows the format.
    """
    found = quants.get(fmt)
    n_cols = values.shape[-1]
    row_bytes = quants.row_bytes(found, n_cols)
    if not encodable(found):
        raise InvalidRequest(
            f"the quant format {found.name} can be read but not made; choose another one", "fmt"
        )
    weights = None if importance is None else _weights(importance, n_cols)
    rows = np.require(values, np.float32, ("C", "ALIGNED")).reshape(-1, n_cols)
    top = max(rows.max(initial=0.0), -rows.min(initial=0.0))  # NaN where there is one
    if not np.isfinite(top):
        raise InvalidRequest(f"values hold an infinity or a NaN, which {found.name} cannot store", "values")
    shape = (*values.shape[:-1], row_bytes)
    if out is None:
        out = np.empty(shape, np.uint8)
    elif out.shape != shape or out.dtype != np.uint8 or not out.flags.c_contiguous:
        raise InvalidRequest(
            f"out must be a C-contiguous uint8 array of shape {shape}, it is {out.dtype} {out.shape}", "out"
        )
    if not _has_encoder(found.ggml_type):
        with np.errstate(over="ignore"):  # told below
            out[...] = quants.quantize(found, rows).reshape(shape)
    else:
        ffi, per_row = native().ffi, n_cols // found.block_size
        _encoder()(
            found.ggml_type, ffi.from_buffer("float[]", rows), len(rows) * per_row, per_row,
            ffi.NULL if weights is None else ffi.from_buffer("float[]", weights),
            ffi.from_buffer("uint8_t[]", out, require_writable=True),
        )  # fmt: skip
    if top > _F16_MAX:
        _check_large(found, rows, out)
    return out


def _check_large(fmt: QuantFormat, rows: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    """Refuse values that the scales of a format, mostly float16, could not take: they came out as infinite or as 0."""
    with np.errstate(all="ignore"):
        back = np.abs(quants.dequantize(fmt, out.reshape(-1), rows.shape)).reshape(-1, fmt.block_size).max(1)
    large = np.abs(rows).reshape(-1, fmt.block_size).max(1)
    if not np.isfinite(back).all() or (large[back == 0.0] > _F16_MAX).any():
        raise InvalidRequest(
            f"values up to {large.max():g} are too large for {fmt.name}; choose a format with larger scales (BF16)",
            "values",
        )


def _weights(importance: NDArray[Any], n_cols: int) -> NDArray[np.float32]:
    weights = np.ascontiguousarray(importance, np.float32)
    if weights.shape != (n_cols,):
        raise InvalidRequest(
            f"importance has the shape {weights.shape}, a row has {n_cols} columns", "importance"
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise InvalidRequest("importance must hold finite numbers that are not negative", "importance")
    if not weights.any():  # nothing was seen: all columns alike
        return np.ones(n_cols, np.float32)
    return weights

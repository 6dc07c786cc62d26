"""Floats into quantised blocks: the native search of a kernel backend, else the format's simple NumPy quantiser."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ggfw import quants
from ggfw.descriptors import QuantFormat
from ggfw.errors import BackendError, InvalidRequest
from ggfw.execute.library import kernel_library, native
from ggfw.quants import Format
from ggfw.registry import default_registry

_F16_MAX = 65504.0  # what the scales of most formats can be

#: Turns (n_rows, n_cols) C-contiguous float32 with a weight per column or None into (n_rows, row_bytes) uint8.
RowEncoder: TypeAlias = Callable[[NDArray[np.float32], NDArray[np.float32] | None, NDArray[np.uint8]], None]


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
    return status >= 0


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
    encode_rows = row_encoder(found)
    weights = None if importance is None else column_weights(importance, n_cols)
    rows = np.require(values, np.float32, ("C", "ALIGNED")).reshape(-1, n_cols)
    shape = (*values.shape[:-1], row_bytes)
    if out is None:
        out = np.empty(shape, np.uint8)
    elif out.shape != shape or out.dtype != np.uint8 or not out.flags.c_contiguous:
        raise InvalidRequest(
            f"out must be a C-contiguous uint8 array of shape {shape}, it is {out.dtype} {out.shape}", "out"
        )
    encode_rows(rows, weights, out.reshape(-1, row_bytes))
    return out


def row_encoder(fmt: Format) -> RowEncoder:
    """What :func:`encode` does to rows that fit, looked up once: for many pieces of a matrix.

    It raises InvalidRequest for values that the format cannot store, and looks at nothing else.

    Raises:
        InvalidRequest: the format cannot be made.
        UnknownQuantFormat: no installed plugin knows the format.
    """
    found = quants.get(fmt)
    if not encodable(found):
        raise InvalidRequest(
            f"the quant format {found.name} can be read but not made; choose another one", "fmt"
        )
    if not _has_encoder(found.ggml_type):

        def simple(rows: NDArray[np.float32], _: NDArray[np.float32] | None, out: NDArray[np.uint8]) -> None:
            top = max(rows.max(initial=0.0), -rows.min(initial=0.0))  # NaN where there is one
            with np.errstate(over="ignore"):  # told below
                out[...] = quants.quantize(found, rows)
            if not top <= _F16_MAX:
                _check(found, rows, out)

        return simple

    encoder, ffi, number, block_size = _encoder(), native().ffi, found.ggml_type, found.block_size

    def searched(
        rows: NDArray[np.float32], weights: NDArray[np.float32] | None, out: NDArray[np.uint8]
    ) -> None:
        per_row = rows.shape[1] // block_size
        large = encoder(
            number, ffi.from_buffer("float[]", rows), len(rows) * per_row, per_row,
            ffi.NULL if weights is None else ffi.from_buffer("float[]", weights),
            ffi.from_buffer("uint8_t[]", out, require_writable=True),
        )  # fmt: skip
        if large:
            _check(found, rows, out)

    return searched


def _check(fmt: QuantFormat, rows: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    """Refuse values that are not finite, and those that the scales of a format, mostly float16, could not take: they
    came out as infinite or as 0."""
    if not np.isfinite(rows).all():
        raise InvalidRequest(f"values hold an infinity or a NaN, which {fmt.name} cannot store", "values")
    with np.errstate(all="ignore"):
        back = np.abs(quants.dequantize(fmt, out.reshape(-1), rows.shape)).reshape(-1, fmt.block_size).max(1)
    large = np.abs(rows).reshape(-1, fmt.block_size).max(1)
    if not np.isfinite(back).all() or (large[back == 0.0] > _F16_MAX).any():
        raise InvalidRequest(
            f"values up to {large.max():g} are too large for {fmt.name}; choose a format with larger scales (BF16)",
            "values",
        )


def column_weights(importance: NDArray[Any], n_cols: int) -> NDArray[np.float32]:
    """The importance of columns as encoders take it.

    Raises:
        InvalidRequest: it is not ``n_cols`` finite numbers from zero on.
    """
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

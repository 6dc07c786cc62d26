"""Matrix products of quantised rows without a model: the installed kernel backends behind NumPy arrays.

For tools and for checks; a model packs its weights once, these functions do so in every call. Formats that no backend
has are dequantised first and multiplied in float32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggfw import quants
from ggfw.arguments import floats, text
from ggfw.errors import BackendError, InvalidRequest
from ggfw.execute.kernel_set import F32_FORMAT, KernelSet
from ggfw.quants import Buffer, Format

__all__ = ["dot", "matvec"]


@cache
def _kernel_set(backend: str | None) -> KernelSet:
    return KernelSet(backend)


def matvec(
    fmt: Format,
    rows: Buffer,
    x: NDArray[Any],
    out: NDArray[np.float32] | None = None,
    *,
    backend: str | None = None,
) -> NDArray[np.float32]:
    """Multiply a quantised matrix with one vector, or with several.

    Kernels of quantised formats first round ``x`` to 15 bits as ``GGFW_Q16`` in ``ggfw_kernels.h`` says (about 1e-4 of
    relative noise); those of F32, F16 and BF16 do not.

    Args:
        fmt: format of the matrix: name, ggml type id or descriptor.
        rows: the matrix' bytes as they stand in a GGUF file, (n_out, n_in) with ``n_in = x.shape[-1]``.
        x: (n_in,), or (n, n_in) for n products at once.
        out: C-contiguous float32 array of shape (n_out,) or (n, n_out) to write into; None makes one.
        backend: a kernel backend's name; None = the best one here.

    Returns:
        float32 array of shape (n_out,) or (n, n_out): ``x @ dequantize(rows).T``.

    Raises:
        InvalidRequest: shapes or sizes do not fit.
        UnknownQuantFormat: no installed plugin knows the format.
        BackendError: no kernel backend can be used.
    """
    fmt = quants.get(fmt)
    vectors = np.ascontiguousarray(floats("x", x, np.float32))
    if vectors.ndim not in (1, 2) or vectors.shape[-1] == 0:
        raise InvalidRequest(f"x must have the shape (n_in,) or (n, n_in), it has {vectors.shape}", "x")
    n_in = vectors.shape[-1]
    data = quants.as_bytes("rows", rows)
    row = quants.row_bytes(fmt, n_in)
    if data.size == 0 or data.size % row:
        raise InvalidRequest(
            f"{fmt.name} rows of {n_in} columns have {row} bytes each, the buffer has {data.size}", "rows"
        )
    n_out = data.size // row
    shape = (*vectors.shape[:-1], n_out)
    if out is None:
        out = np.empty(shape, np.float32)
    else:
        quants.check_out(out, shape)
    if out.size == 0:
        return out
    kernels = _kernel_set(None if backend is None else text("backend", backend))
    found = kernels.find("linear", fmt.ggml_type, n_in)
    if found is None:
        data = quants.dequantize(fmt, data, (n_out, n_in)).reshape(-1).view(np.uint8)
        found = kernels.pair("linear", F32_FORMAT)
    quantize, _ = kernels.pair("quantize", None)
    ffi, lib = kernels.native.ffi, kernels.native.lib
    status = lib.ggfw_linear_once(
        found[0], quantize, ffi.from_buffer(data), n_out, n_in, ffi.from_buffer("float[]", vectors),
        vectors.size // n_in, ffi.from_buffer("float[]", out),
    )  # fmt: skip
    if status == lib.GGFW_ERR_MEMORY:
        raise BackendError(f"memory is short for a product of {n_out} x {n_in}; use fewer rows at a time")
    if status:
        raise BackendError(f"the kernel for {fmt.name} refused {n_out} x {n_in} (status {status})")
    return out


def dot(fmt: Format, row: Buffer, x: NDArray[Any], *, backend: str | None = None) -> float:
    """Multiply one quantised row with a vector; see :func:`matvec` for arguments, precision and errors.

    Args:
        fmt: format of the row.
        row: its bytes.
        x: (n_in,).
    """
    vector = floats("x", x, np.float32)
    if vector.ndim != 1:
        raise InvalidRequest(f"x must have the shape (n_in,), it has {vector.shape}", "x")
    result = matvec(fmt, row, vector, backend=backend)
    if result.size != 1:
        raise InvalidRequest(
            f"the buffer holds {result.size} rows of {vector.size} columns; one is expected", "row"
        )
    return float(result[0])

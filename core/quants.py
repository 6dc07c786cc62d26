"""Quantised buffers and float32 arrays: the NumPy reference, through whatever quant formats are installed.

A format is named by its name (``"Q4_K"``), by its ggml type number, or by the
:class:`~ggfw.descriptors.QuantFormat` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ggfw.arguments import as_integer, floats, integer
from ggfw.descriptors import QuantFormat, resolve
from ggfw.errors import GgfwError, InvalidRequest, PluginError, UnknownQuantFormat, brief, kind_and_text
from ggfw.registry import default_registry

__all__ = ["dequantize", "get", "quantize", "row_bytes"]

Format: TypeAlias = str | int | QuantFormat
Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]

#: Elements handled at once: temporary arrays stay within a few megabytes, and near the processor's cache.
_CHUNK = 1 << 18


def get(fmt: Format) -> QuantFormat:
    """Look a format up.

    Raises:
        UnknownQuantFormat: no installed plugin knows it.
    """
    if isinstance(fmt, QuantFormat):
        return fmt
    registry = default_registry()
    if isinstance(fmt, str):
        found = registry.quant_formats.get(fmt) or registry.quant_formats.get(fmt.upper())
        if found is None:
            raise UnknownQuantFormat(
                f"unknown quant format {brief(fmt)}; installed: {', '.join(sorted(registry.quant_formats)) or 'none'}; "
                "a quant format plugin can add it"
            )
        return found
    number = as_integer(fmt)
    if number is None:
        raise InvalidRequest(
            f"fmt is {brief(fmt)}; the name or the number of a quant format was expected", "fmt"
        )
    return registry.quant_format_by_type(number)


def row_bytes(fmt: Format, n_cols: int) -> int:
    """Bytes of one row of ``n_cols`` elements.

    Raises:
        InvalidRequest: ``n_cols`` is not a multiple of the format's block size.
        UnknownQuantFormat: see :func:`get`.
    """
    fmt = get(fmt)
    n_cols = integer("n_cols", n_cols, 0, 2**63 - 1)
    if n_cols % fmt.block_size:
        raise InvalidRequest(
            f"rows of {n_cols} elements cannot be stored as {fmt.name}, which packs {fmt.block_size} at a time",
            "n_cols",
        )
    return n_cols // fmt.block_size * fmt.type_size


def dequantize(
    fmt: Format, buffer: Buffer, shape: Sequence[int], out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Turn quantised bytes into float32.

    Args:
        fmt: format of the bytes.
        buffer: the bytes of the whole array, rows one after the other; not copied.
        shape: slowest dimension first; the last one is the row.
        out: C-contiguous float32 array of that shape to write into; None makes one.

    Returns:
        float32 array of ``shape`` (``out`` if given). Values equal ggml's ``dequantize_row_*``, not rounded otherwise;
        blocks with infinite or NaN scales give what IEEE arithmetic gives.

    Raises:
        InvalidRequest: sizes do not match.
        UnknownQuantFormat: see :func:`get`.
    """
    fmt = get(fmt)
    try:
        shape = tuple(integer("shape", n, 0, 2**63 - 1) for n in shape)
    except TypeError:
        raise InvalidRequest(f"shape is {brief(shape)}; several sizes were expected", "shape") from None
    data = as_bytes("buffer", buffer)
    expected = prod(shape[:-1]) * row_bytes(fmt, shape[-1] if shape else 1)
    if len(data) != expected:
        raise InvalidRequest(
            f"{fmt.name} of shape {shape} has {expected} bytes, the buffer has {len(data)}", "buffer"
        )
    if out is None:
        out = np.empty(shape, np.float32)
    else:
        check_out(out, shape)
    _in_chunks(fmt, fmt.dequantize, data.reshape(-1, fmt.type_size), out.reshape(-1, fmt.block_size))
    return out


def quantize(fmt: Format, array: NDArray[Any]) -> NDArray[np.uint8]:
    """Turn an array into quantised bytes with the format's simple reference quantiser.

    Args:
        fmt: format to make.
        array: any float array; the last dimension is the row and must be a multiple of the block size.

    Returns:
        uint8 array of shape ``(*array.shape[:-1], row_bytes)``.

    Raises:
        InvalidRequest: the row length does not fit, or the format has no quantiser.
        UnknownQuantFormat: see :func:`get`.
    """
    fmt = get(fmt)
    if fmt.quantize is None:
        raise InvalidRequest(
            f"the quant format {fmt.name} can be read but not made; choose another one", "fmt"
        )
    values = np.ascontiguousarray(floats("array", array, np.float32))
    out = np.empty((*values.shape[:-1], row_bytes(fmt, values.shape[-1])), np.uint8)
    _in_chunks(fmt, fmt.quantize, values.reshape(-1, fmt.block_size), out.reshape(-1, fmt.type_size))
    return out


def _in_chunks(
    fmt: QuantFormat, load: str | Callable[..., None], source: NDArray[Any], target: NDArray[Any]
) -> None:
    """Call a format's ``function(source blocks, target blocks)`` on pieces, so that its temporary arrays stay small.

    Raises:
        PluginError: it fails.
    """
    function = resolve(load)
    step = max(1, _CHUNK // max(source.shape[1], target.shape[1]))
    try:
        with np.errstate(all="ignore"):  # infinite and NaN scales are data here
            for begin in range(0, len(source), step):
                function(source[begin : begin + step], target[begin : begin + step])
    except (GgfwError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as exc:
        raise PluginError(f"the quant format {fmt.name} failed: {kind_and_text(exc)}") from exc


def check_out(out: Any, shape: tuple[int, ...]) -> None:
    """Refuse an array that no results of ``shape`` can be written into.

    Raises:
        InvalidRequest: it is one; ``param`` is ``out``.
    """
    what = f"out must be a C-contiguous float32 array of shape {shape}, it is"
    if not isinstance(out, np.ndarray):
        raise InvalidRequest(f"{what} {brief(out)}", "out")
    if out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise InvalidRequest(f"{what} {out.dtype} {out.shape}", "out")
    if not out.flags.writeable:
        raise InvalidRequest("out cannot be written to; give an array of your own", "out")


def as_bytes(name: str, buffer: Any) -> NDArray[np.uint8]:
    """The bytes of a buffer or an array, (n,) uint8, not copied where they lie together.

    Raises:
        InvalidRequest: it has none; ``param`` is ``name``.
    """
    try:
        if isinstance(buffer, np.ndarray):
            return np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
        return np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)
    except (TypeError, ValueError, BufferError):  # no bytes, objects of Python, gaps between the bytes
        raise InvalidRequest(f"{name} is {brief(buffer)}; bytes were expected", name) from None

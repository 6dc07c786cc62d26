"""Plain numbers: floats and integers without blocks."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.descriptors import QuantFormat
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

_CODE = "ggfw.plugins.quant_formats.plain_numpy"


@hookimpl
def ggfw_register_quant_formats() -> Iterable[QuantFormat]:
    """F32, F16, BF16, F64 and the integers."""
    floats = [
        QuantFormat(
            name=name,
            ggml_type=number,
            block_size=1,
            type_size=size,
            dequantize=f"{_CODE}:dequantize_{name.lower()}",
            quantize=f"{_CODE}:quantize_{name.lower()}",
            vec_dot_type=name if name != "F64" else None,
            summary=summary,
        )
        for name, number, size, summary in (
            ("F32", 0, 4, "IEEE single precision"),
            ("F16", 1, 2, "IEEE half precision"),
            ("BF16", 30, 2, "the upper half of a single"),
            ("F64", 28, 8, "IEEE double precision, rounded to single"),
        )
    ]
    integers = [
        QuantFormat(
            name=f"I{bits}",
            ggml_type=number,
            block_size=1,
            type_size=bits // 8,
            dequantize=f"{_CODE}:dequantize_i{bits}",
            summary=f"signed integers of {bits} bits",
        )
        for bits, number in ((8, 24), (16, 25), (32, 26), (64, 27))
    ]
    return [*floats, *integers]

"""K-quants: super-blocks of 256 whose sub-blocks have quantised scales."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.descriptors import QuantFormat
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

_CODE = "ggfw.plugins.quant_formats.k_quants_numpy"


@hookimpl
def ggfw_register_quant_formats() -> Iterable[QuantFormat]:
    """Q2_K to Q6_K, and Q8_K, the activation format they are multiplied with."""
    return [
        QuantFormat(
            name=name,
            ggml_type=number,
            block_size=256,
            type_size=size,
            dequantize=f"{_CODE}:dequantize_{name.lower()}",
            vec_dot_type="Q8_K" if name != "Q8_K" else None,
            summary=summary,
        )
        for name, number, size, summary in (
            ("Q2_K", 10, 84, "2 bits, 4-bit scales and minima per 16"),
            ("Q3_K", 11, 110, "3 bits, 6-bit scales per 16"),
            ("Q4_K", 12, 144, "4 bits, 6-bit scales and minima per 32"),
            ("Q5_K", 13, 176, "5 bits, 6-bit scales and minima per 32"),
            ("Q6_K", 14, 210, "6 bits, 8-bit scales per 16"),
            ("Q8_K", 15, 292, "8 bits, scale and sums; for activations"),
        )
    ]

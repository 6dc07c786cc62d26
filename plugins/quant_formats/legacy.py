"""Blocks of 32 with one scale (and one minimum): Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.descriptors import QuantFormat
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

_CODE = "ggfw.plugins.quant_formats.legacy_numpy"


@hookimpl
def ggfw_register_quant_formats() -> Iterable[QuantFormat]:
    """The formats of the first generation."""
    return [
        QuantFormat(
            name=name,
            ggml_type=number,
            block_size=32,
            type_size=size,
            dequantize=f"{_CODE}:dequantize_{name.lower()}",
            quantize=f"{_CODE}:quantize_{name.lower()}" if name != "Q8_1" else None,
            vec_dot_type=partner,
            summary=summary,
        )
        for name, number, size, partner, summary in (
            ("Q4_0", 2, 18, "Q8_0", "4 bits, scale"),
            ("Q4_1", 3, 20, "Q8_1", "4 bits, scale and minimum"),
            ("Q5_0", 6, 22, "Q8_0", "5 bits, scale"),
            ("Q5_1", 7, 24, "Q8_1", "5 bits, scale and minimum"),
            ("Q8_0", 8, 34, "Q8_0", "8 bits, scale"),
            ("Q8_1", 9, 36, None, "8 bits, scale and sum; for activations"),
        )
    ]

"""Codebook formats: IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.descriptors import QuantFormat
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

_CODE = "ggfw.plugins.quant_formats.iq_numpy"


@hookimpl
def ggfw_register_quant_formats() -> Iterable[QuantFormat]:
    """Formats that select groups of 4 or 8 weights from a fixed grid."""
    return [
        QuantFormat(
            name=name,
            ggml_type=number,
            block_size=256,
            type_size=size,
            dequantize=f"{_CODE}:dequantize_{name.lower()}",
            vec_dot_type="Q8_K",
            summary=summary,
        )
        for name, number, size, summary in (
            ("IQ1_S", 19, 50, "1.56 bits, ternary grid of 2048"),
            ("IQ1_M", 29, 56, "1.75 bits, ternary grid of 2048, scales per 16"),
            ("IQ2_XXS", 16, 66, "2.06 bits, grid of 256"),
            ("IQ2_XS", 17, 74, "2.31 bits, grid of 512, scales per 16"),
            ("IQ2_S", 22, 82, "2.56 bits, grid of 1024, scales per 16"),
            ("IQ3_XXS", 18, 98, "3.06 bits, grid of 256"),
            ("IQ3_S", 21, 110, "3.44 bits, grid of 512"),
        )
    ]

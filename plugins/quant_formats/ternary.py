"""Very few bits: ternary TQ1_0 and TQ2_0, one-bit Q1_0, two-bit Q2_0."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.descriptors import QuantFormat
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

_CODE = "ggfw.plugins.quant_formats.ternary_numpy"


@hookimpl
def ggfw_register_quant_formats() -> Iterable[QuantFormat]:
    """Formats whose quants are a handful of whole numbers times one scale."""
    return [
        QuantFormat(
            name=name,
            ggml_type=number,
            block_size=block,
            type_size=size,
            dequantize=f"{_CODE}:dequantize_{name.lower()}",
            vec_dot_type=partner,
            summary=summary,
        )
        for name, number, block, size, partner, summary in (
            ("TQ1_0", 34, 256, 54, "Q8_K", "-1, 0, 1; five to a byte"),
            ("TQ2_0", 35, 256, 66, "Q8_K", "-1, 0, 1; four to a byte"),
            ("Q1_0", 41, 128, 18, "Q8_0", "-1, 1; eight to a byte"),
            ("Q2_0", 42, 64, 18, "Q8_0", "-1, 0, 1, 2; four to a byte"),
        )
    ]

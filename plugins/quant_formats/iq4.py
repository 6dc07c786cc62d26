"""4-bit quants on a fixed non-linear scale: IQ4_NL and IQ4_XS."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.descriptors import QuantFormat
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

_CODE = "ggfw.plugins.quant_formats.iq4_numpy"


@hookimpl
def ggfw_register_quant_formats() -> Iterable[QuantFormat]:
    """Both forms share the table of 16 values."""
    return [
        QuantFormat(
            name="IQ4_NL",
            ggml_type=20,
            block_size=32,
            type_size=18,
            dequantize=f"{_CODE}:dequantize_iq4_nl",
            vec_dot_type="Q8_0",
            summary="4 bits on a non-linear scale",
        ),
        QuantFormat(
            name="IQ4_XS",
            ggml_type=23,
            block_size=256,
            type_size=136,
            dequantize=f"{_CODE}:dequantize_iq4_xs",
            vec_dot_type="Q8_K",
            summary="4 bits on a non-linear scale, 6-bit scales per 32",
        ),
    ]

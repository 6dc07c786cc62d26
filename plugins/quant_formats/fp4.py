"""4-bit floats (E2M1) with shared scales: MXFP4 and NVFP4."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.descriptors import QuantFormat
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

_CODE = "ggfw.plugins.quant_formats.fp4_numpy"


@hookimpl
def ggfw_register_quant_formats() -> Iterable[QuantFormat]:
    """The OCP microscaling format and NVIDIA's."""
    return [
        QuantFormat(
            name="MXFP4",
            ggml_type=39,
            block_size=32,
            type_size=17,
            dequantize=f"{_CODE}:dequantize_mxfp4",
            quantize=f"{_CODE}:quantize_mxfp4",
            vec_dot_type="Q8_0",
            summary="E2M1, one power of two per 32",
        ),
        QuantFormat(
            name="NVFP4",
            ggml_type=40,
            block_size=64,
            type_size=36,
            dequantize=f"{_CODE}:dequantize_nvfp4",
            vec_dot_type="Q8_0",
            summary="E2M1, one unsigned E4M3 scale per 16",
        ),
    ]

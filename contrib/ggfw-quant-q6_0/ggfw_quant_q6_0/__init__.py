"""Q6_0: 6 bits and a scale for 32 weights; the format and a kernel library for it."""

from pathlib import Path

from ggfw.descriptors import KernelBackend, QuantFormat
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


def _library() -> str:
    return str(Path(__file__).with_name("kernels.so"))


def _probe() -> int:
    from ggfw.kernels_c import usable

    return 1 if usable(_library()) else 0  # fills a gap; never preferred to a backend that has everything


@hookimpl
def ggfw_register_quant_formats():
    return [
        QuantFormat(
            name="Q6_0",
            ggml_type=133,
            block_size=32,
            type_size=26,
            dequantize="ggfw_quant_q6_0.blocks:dequantize",
            quantize="ggfw_quant_q6_0.blocks:quantize",
            vec_dot_type="Q8_0",
            summary="6 bits, scale",
        )
    ]


@hookimpl
def ggfw_register_kernel_backends():
    return [
        KernelBackend(
            name="q6_0", probe=_probe, library=_library, priority=-1, summary="matrix products of Q6_0"
        )
    ]

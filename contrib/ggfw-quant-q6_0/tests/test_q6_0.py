"""The format and its kernels by ggfw's own rules, and its error beside the neighbours'."""

import numpy as np
import pytest
from ggfw_quant_q6_0 import ggfw_register_kernel_backends, ggfw_register_quant_formats

import ggfw
from ggfw import quants
from ggfw.registry import default_registry
from ggfw.testing import check_kernel_backend, check_quant_format, tiny_gguf


def test_conforms() -> None:
    for fmt in ggfw_register_quant_formats():
        check_quant_format(fmt)
    for backend in ggfw_register_kernel_backends():
        check_kernel_backend(backend)


def test_the_error_lies_between_five_and_eight_bits() -> None:
    x = np.random.default_rng(0).standard_normal((64, 256), np.float32)
    error = {
        n: np.linalg.norm(quants.dequantize(n, quants.quantize(n, x), x.shape) - x)
        for n in ("Q5_0", "Q6_0", "Q8_0")
    }
    assert error["Q8_0"] < error["Q6_0"] < 0.6 * error["Q5_0"]


@pytest.mark.parametrize("backend", [None, "reference"])
def test_a_model_runs_from_the_packed_bytes(backend: str | None) -> None:
    data = tiny_gguf(fmt=default_registry().quant_formats["Q6_0"])
    with ggfw.load(data, backend=backend) as model:
        assert len(model.generate("hello", max_tokens=6, temperature=0, ignore_eos=True).token_ids) == 6
        if backend is None:  # not dequantised at load: the plan reads the file's own type
            types = {w.ggml_type for s in model.loaded.executor.plan.steps for w in s.weights}
            assert 133 in types

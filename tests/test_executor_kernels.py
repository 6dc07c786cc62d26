"""``ggfw.kernels``: products of quantised rows behind NumPy arrays."""

from __future__ import annotations

import numpy as np
import pytest

from ggfw import kernels, quants
from ggfw.errors import BackendError, InvalidRequest, UnknownQuantFormat
from ggfw.registry import default_registry

BACKENDS = [descriptor.name for descriptor in default_registry().backends()]
FORMATS = [name for name, f in default_registry().quant_formats.items() if f.quantize is not None]


def matrix(fmt: str, n_out: int, n_in: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of a random matrix, and what they mean."""
    values = np.random.default_rng(3).standard_normal((n_out, n_in)).astype(np.float32)
    data = quants.quantize(fmt, values)
    return data, quants.dequantize(fmt, data, (n_out, n_in)).astype(np.float64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fmt", FORMATS)
def test_matvec(fmt: str, backend: str) -> None:
    n_in = 512
    data, w = matrix(fmt, 37, n_in)
    x = np.random.default_rng(4).standard_normal((3, n_in))
    expected = x @ w.T
    exact = (
        fmt in ("F32", "F16", "BF16")
        or kernels._kernel_set(backend).find("linear", quants.get(fmt).ggml_type) is None
    )
    bound = 1e-6 if exact else 1.5e-2
    together = kernels.matvec(fmt, data, x, backend=backend)
    assert together.shape == (3, 37) and together.dtype == np.float32
    assert np.linalg.norm(together - expected) <= bound * np.linalg.norm(expected)
    out = np.empty(37, np.float32)
    alone = kernels.matvec(fmt, data.tobytes(), x[1], out, backend=backend)
    assert alone is out
    np.testing.assert_array_equal(alone, together[1])
    assert kernels.dot(fmt, data[5], x[1], backend=backend) == together[1, 5]


def test_odd_widths_and_types() -> None:
    rng = np.random.default_rng(5)
    w, x = rng.standard_normal((3, 7)).astype(np.float32), rng.standard_normal(7)
    np.testing.assert_allclose(kernels.matvec("F32", w, x), w @ x, rtol=1e-5)
    np.testing.assert_allclose(
        kernels.matvec(1, w.astype(np.float16), x), w.astype(np.float16) @ x, rtol=1e-3
    )
    assert kernels.matvec("F32", w, np.empty((0, 7))).shape == (0, 3)


def test_wrong_arguments() -> None:
    w, x = np.ones((3, 8), np.float32), np.ones(8, np.float32)
    for call in (
        lambda: kernels.matvec("F32", w, np.ones(9)),
        lambda: kernels.matvec("F32", w, np.ones((1, 1, 8))),
        lambda: kernels.matvec("F32", b"", x),
        lambda: kernels.matvec("Q4_0", w, x),
        lambda: kernels.matvec("F32", w, x, np.empty(4, np.float32)),
        lambda: kernels.matvec("F32", w, x, np.empty(3)),
        lambda: kernels.dot("F32", w, x),
        lambda: kernels.dot("F32", w[0], x[None]),
    ):
        with pytest.raises(InvalidRequest):
            call()
    with pytest.raises(UnknownQuantFormat):
        kernels.matvec("Q99", w, x)
    with pytest.raises(BackendError):
        kernels.matvec("F32", w, x, backend="abacus")

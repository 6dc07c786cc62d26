"""The library by ggfw's own rules, and a ternary model that is not dequantised."""

import numpy as np
from ggfw_kernels_ternary import ggfw_register_kernel_backends

from ggfw import kernels, quants
from ggfw.execute.kernel_set import KernelSet
from ggfw.testing import check_kernel_backend


def test_conforms() -> None:
    for backend in ggfw_register_kernel_backends():
        check_kernel_backend(backend)


def test_the_gap_is_filled() -> None:
    found = KernelSet()
    assert found.name != "ternary", "the backend must not take the others' place"
    assert found.find("linear", 35, 512) is not None
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (16 * 2, 66), np.uint8)
    blocks[:, :64] &= 0xAA  # 0 or 2: -1 or 1
    blocks[:, 64:] = np.full(1, 0.5, "<f2").view(np.uint8)
    x = rng.standard_normal(512, np.float32)
    wanted = quants.dequantize("TQ2_0", blocks.reshape(-1), (16, 512)).astype(np.float64) @ x
    assert np.allclose(kernels.matvec("TQ2_0", blocks.reshape(-1), x), wanted, rtol=1e-4, atol=1e-3)

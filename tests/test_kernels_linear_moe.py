"""MOE_LINEAR of every built unit against a float64 twin."""

from __future__ import annotations

import kernels_linear_twin as twin
import numpy as np
import pytest

UNITS = twin.units()
pytestmark = pytest.mark.skipif(not UNITS, reason="no kernel library is built; run python kernels_c/build.py")


def choose(rng: np.random.Generator, n_rows: int, n_expert: int, k: int) -> np.ndarray:
    return np.stack([rng.permutation(n_expert)[:k] for _ in range(n_rows)]).astype(np.int32)


def want(name: str, rows: np.ndarray, n_expert: int, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """(rows, k, n_out) in float64."""
    n_rows, k = ids.shape
    per_slot = np.broadcast_to(x if x.ndim == 3 else x[:, None], (n_rows, k, x.shape[-1]))
    flat = twin.seen(name, np.ascontiguousarray(per_slot).reshape(n_rows * k, -1))
    experts = twin.values_of(name, rows).astype(np.float64).reshape(n_expert, -1, x.shape[-1])
    return np.einsum("pi,poi->po", flat, experts[ids.reshape(-1)]).reshape(n_rows, k, -1)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", twin.KERNELS)
def test_moe(unit: str, name: str) -> None:
    rng = np.random.default_rng(1)
    n_expert, k, n_out, n_in = 6, 2, 40, 256
    rows = twin.random_rows(name, n_expert * n_out, n_in, rng)
    matrices = twin.Matrices(twin.library(unit), name, n_in, [rows], twin.MOE_LINEAR, n_expert)
    for n_rows in (1, 2, 3, 9):
        ids = choose(rng, n_rows, n_expert, k)
        for shape in ((n_rows, n_in), (n_rows, k, n_in)):
            x = rng.standard_normal(shape).astype(np.float32)
            got = twin.moe_linear(matrices, x, ids, shuffle=n_rows)
            assert twin.error(got, want(name, rows, n_expert, x, ids)) < 1e-6


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", ["F32", "Q8_0", "Q8_0:Q16", "Q8_0:F32"])
def test_without_ids_each_slot_has_its_matrix(unit: str, name: str) -> None:
    rng = np.random.default_rng(6)
    n_head, n_out, n_in = 5, 40, 64
    rows = twin.random_rows(name, n_head * n_out, n_in, rng)
    matrices = twin.Matrices(twin.library(unit), name, n_in, [rows], twin.MOE_LINEAR, n_head)
    for n_rows in (1, 3, 300):
        x = rng.standard_normal((n_rows, n_head, n_in)).astype(np.float32)
        got = twin.moe_linear(matrices, x, None, shuffle=n_rows)
        ids = np.tile(np.arange(n_head, dtype=np.int32), (n_rows, 1))
        assert twin.error(got, want(name, rows, n_head, x, ids)) < 1e-6
        np.testing.assert_array_equal(twin.moe_linear(matrices, x, ids), got)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", ["F32", "Q4_K", "Q4_K:Q16", "Q4_K:F32"])
def test_company_bias_and_scale(unit: str, name: str) -> None:
    """Bias and scale are the expert's; a row's result has the same bits alone and among 300 rows."""
    rng = np.random.default_rng(2)
    n_expert, k, n_out, n_in = 5, 3, 17, 256
    rows = twin.random_rows(name, n_expert * n_out, n_in, rng)
    matrices = twin.Matrices(twin.library(unit), name, n_in, [rows], twin.MOE_LINEAR, n_expert)
    bias = rng.standard_normal((n_expert, n_out)).astype(np.float32)
    scale = rng.uniform(0.5, 2, n_expert).astype(np.float32)
    ids = choose(rng, 300, n_expert, k)
    ids[:290, 0] = 4  # more rows of one expert than one block of rows holds
    ids[:290, 1:] = [0, 2]
    x = rng.standard_normal((300, k, n_in)).astype(np.float32)
    got = twin.moe_linear(matrices, x, ids, bias=bias, expert_scale=scale, shuffle=4)
    plain = want(name, rows, n_expert, x, ids)
    assert twin.error(got, (plain + bias[ids]) * scale[ids][..., None]) < 1e-6
    for r in (0, 1, 150, 299):
        alone = twin.moe_linear(matrices, x[r : r + 1], ids[r : r + 1], bias=bias, expert_scale=scale)
        np.testing.assert_array_equal(alone[0], got[r])

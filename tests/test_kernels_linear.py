"""The matrix products of every built unit against a float64 twin: all formats, shapes, row counts and epilogues."""

from __future__ import annotations

import kernels_linear_twin as twin
import numpy as np
import pytest

UNITS = twin.units()
pytestmark = pytest.mark.skipif(not UNITS, reason="no kernel library is built; run python kernels_c/build.py")

#: Relative L2 against the float64 product of the activations that the kernel sees: only float32 rounding is left.
BOUND = 1e-6


@pytest.fixture(params=UNITS)
def lib(request: pytest.FixtureRequest) -> twin.Library:
    return twin.library(request.param)


def columns(name: str, n: int) -> int:
    block = twin.FORMATS[twin.base(name)][1]
    return n if block == 1 else twin.ceil_div(n, block) * block


@pytest.mark.parametrize("name", twin.KERNELS)
@pytest.mark.parametrize(("n_out", "n_in"), [(1, 32), (16, 96), (33, 288), (64, 512), (50, 1536)])
def test_product(lib: twin.Library, name: str, n_out: int, n_in: int) -> None:
    n_in = columns(name, n_in)
    rng = np.random.default_rng([n_out, n_in])
    rows = twin.random_rows(name, n_out, n_in, rng)
    x = rng.standard_normal((5, n_in)).astype(np.float32)
    [got] = twin.linear(twin.Matrices(lib, name, n_in, [rows]), x)
    assert twin.error(got, twin.product(name, rows, x)) < BOUND


@pytest.mark.parametrize("name", twin.KERNELS)
def test_row_count_changes_no_bit(lib: twin.Library, name: str) -> None:
    """Alone, in tiles of every size, in several row blocks, whatever the threads and the order of chunks."""
    n_in, n_out = columns(name, 256), 40
    rng = np.random.default_rng(7)
    matrices = twin.Matrices(lib, name, n_in, [twin.random_rows(name, n_out, n_in, rng)])
    x = rng.standard_normal((300, n_in)).astype(np.float32)
    alone = np.concatenate([twin.linear(matrices, x[i : i + 1])[0] for i in range(40)])
    for n in [*range(2, 41), 300]:
        [together] = twin.linear(matrices, x[:n], n_threads=1 + n % 3, prefetch=n % 2 * 512, shuffle=n)
        np.testing.assert_array_equal(together[:40], alone[:n])
        if n == 300:
            assert twin.error(together, twin.product(name, matrices.rows[0], x)) < BOUND


@pytest.mark.parametrize("name", [n for n in twin.KERNELS if n not in twin.FLOATS])
@pytest.mark.parametrize("kind", ["ones", "zero", "denormal", "large"])
def test_extreme_blocks(lib: twin.Library, name: str, kind: str) -> None:
    """The largest codes meet the largest activations of both signs: no integer may overflow."""
    n_in = columns(name, 512)
    rng = np.random.default_rng(11)
    rows = twin.random_rows(name, 20, n_in, rng, kind)
    x = rng.standard_normal((10, n_in)).astype(np.float32)
    x[0], x[1] = 1, -1
    x[2, ::2], x[2, 1::2] = 1, -1
    x[3] = 0
    x[4] *= 1e4
    got = twin.linear(twin.Matrices(lib, name, n_in, [rows]), x)[0]
    # the row of zeros is exactly zero; of the others the sizes that were added up are the yardstick
    sizes = np.abs(twin.seen(name, x)) @ np.abs(twin.values_of(name, rows).astype(np.float64)).T
    want = twin.product(name, rows, x)
    assert (got[3] == 0).all()
    # where all products are equal, float sums are rounded the same way again and again
    bound = 4 * BOUND if name.endswith(":F32") else BOUND
    for r in range(len(x)):
        assert twin.error(got[r], want[r], sizes[r] + 1e-300) < bound


@pytest.mark.parametrize("name", twin.FLOATS)
@pytest.mark.parametrize("n_in", [1, 2, 48, 63, 96, 577])
def test_float_columns_are_free(lib: twin.Library, name: str, n_in: int) -> None:
    rng = np.random.default_rng(n_in)
    rows = twin.random_rows(name, 37, n_in, rng)
    x = rng.standard_normal((11, n_in)).astype(np.float32)
    got = twin.linear(twin.Matrices(lib, name, n_in, [rows]), x)[0]
    sizes = np.abs(x) @ np.abs(twin.values_of(name, rows)).T
    assert twin.error(got, twin.product(name, rows, x), sizes) < BOUND


@pytest.mark.parametrize("name", ["F32", "Q4_1", "Q4_1:Q16", "Q4_1:F32", "Q6_K", "Q6_K:Q16"])
@pytest.mark.parametrize("n_rows", [1, 6, 70])
def test_epilogue_and_parts(lib: twin.Library, name: str, n_rows: int) -> None:
    n_in = columns(name, 256)
    rng = np.random.default_rng(3)
    sizes = [48, 17, 1, 200]
    parts = [twin.random_rows(name, n, n_in, rng) for n in sizes]
    matrices = twin.Matrices(lib, name, n_in, parts)
    x = rng.standard_normal((n_rows, n_in)).astype(np.float32)
    bias = [rng.standard_normal(n).astype(np.float32) if i % 2 else None for i, n in enumerate(sizes)]
    added = [
        rng.standard_normal((n_rows, n)).astype(np.float32) if i < 2 else None for i, n in enumerate(sizes)
    ]
    for softcap in (0.0, 2.0):
        for in_place in (False, True):
            got = twin.linear(
                matrices,
                x,
                bias=bias,
                scale=0.5,
                softcap=softcap,
                residual=added,
                in_place=in_place,
                shuffle=1,
            )
            for i, rows in enumerate(parts):
                plain = (twin.product(name, rows, x) + (0 if bias[i] is None else bias[i])) * 0.5
                want = twin.softcapped(plain, softcap) + (0 if added[i] is None else added[i])
                assert twin.error(got[i], want) < 2 * BOUND


@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_softcap_over_the_whole_range(lib: twin.Library, softcap: float) -> None:
    """cap * tanh(y / cap) from far below to far above the cap, each value by itself."""
    rows = np.ones((1, 1), np.float32).view(np.uint8)
    x = np.concatenate([np.geomspace(1e-6, 1e6, 500), [0], -np.geomspace(1e-6, 1e6, 500)]).astype(np.float32)
    got = twin.linear(twin.Matrices(lib, "F32", 1, [rows]), x[:, None], softcap=softcap)[0][:, 0]
    want = softcap * np.tanh(x.astype(np.float64) / softcap)
    assert (np.abs(got - want) <= 1e-6 * np.abs(want)).all()


def test_chunks_are_of_the_right_size(lib: twin.Library) -> None:
    """A decode step is cut into pieces of 64 to 96 KB, a prompt into at least 4 chunks per thread."""
    f = twin.ffi()
    matrices = twin.Matrices(lib, "Q4_1", 576, [np.zeros((1536, 360), np.uint8)])
    step, run = f.new("ggfw_step *"), f.new("ggfw_run *")
    step.params.linear.n_parts, step.weight[0] = 1, matrices.weights[0]
    run.n_threads, run.max_rows, run.max_outputs = 2, 512, 1
    decode = matrices.kernel.n_chunks(step, run, 0, 1)
    assert 64 * 1024 <= matrices.packed[0].size / decode <= 96 * 1024
    assert matrices.kernel.n_chunks(step, run, 5, 5) == 0
    assert matrices.kernel.n_chunks(step, run, 0, 512) >= 8

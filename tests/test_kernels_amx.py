"""The AMX unit's products, with its tile instructions modelled in C: bf16 tiles against their float64 twin."""

from __future__ import annotations

import kernels_linear_twin as twin
import numpy as np
import pytest
from kernels_variants import variant

NAMES = [n for n in twin.KERNELS if n == "BF16" or n.endswith((":Q8", ":Q16"))]

#: Relative L2 against the exact product, by activations (see linear_amx.h): one plane of bf16, two, three.
BOUND = {twin.Q8: 4e-3, twin.Q16: 3e-5, twin.F32: 1e-6}
#: The same against the product of the numbers that the tiles hold: sums in float32 are left, and for one plane the
#: weights that lie in the middle between two bf16 and fall to the other one.
SUMS = {twin.Q8: 1e-4, twin.Q16: 4e-6, twin.F32: 1e-6}


def matrices(
    name: str, n_in: int, parts: list[np.ndarray], op: int = twin.LINEAR, n_expert: int = 1
) -> twin.Matrices:
    model = twin.library("amx-model", variant("amx-model"))
    return twin.Matrices(model, name, n_in, parts, op, n_expert, twin.library("avx512"))


def columns(name: str, n: int) -> int:
    return twin.ceil_div(n, twin.FORMATS[twin.base(name)][1]) * twin.FORMATS[twin.base(name)][1]


def planes(x: np.ndarray, n: int) -> list[np.ndarray]:
    """The bf16 of x, the bf16 of the rest, ...; denormals are zero."""
    found = []
    rest = x.astype(np.float32)
    for _ in range(n):
        bits = rest.view(np.uint32)
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
        plane = bits.view(np.float32).copy()
        plane[np.abs(plane) < np.finfo(np.float32).tiny] = 0
        found.append(plane.astype(np.float64))
        rest = rest - plane
    return found


def product_of_planes(name: str, rows: np.ndarray, x: np.ndarray) -> np.ndarray:
    n_x, n_w = {twin.Q8: (1, 1), twin.Q16: (2, 2), twin.F32: (3, 1)}[twin.activation(name)]
    xs, ws = planes(twin.seen(name, x), n_x), planes(twin.values_of(name, rows), n_w)
    pairs = [(a, w) for i, a in enumerate(xs) for j, w in enumerate(ws) if i + j < max(n_x, n_w)]
    return np.sum([a @ w.T for a, w in pairs], axis=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("n_out", "n_in", "n_rows"), [(1, 32, 1), (33, 288, 17), (80, 1024, 40)])
def test_product(name: str, n_out: int, n_in: int, n_rows: int) -> None:
    n_in = columns(name, n_in)
    rng = np.random.default_rng([n_out, n_in])
    rows = twin.random_rows(name, n_out, n_in, rng)
    x = rng.standard_normal((n_rows, n_in)).astype(np.float32)
    [got] = twin.linear(matrices(name, n_in, [rows]), x)
    sizes = np.abs(twin.seen(name, x)) @ np.abs(twin.values_of(name, rows).astype(np.float64)).T
    exact, tiles = twin.product(name, rows, x), product_of_planes(name, rows, x)
    assert twin.error(got, exact, None if n_out > 1 else sizes) < BOUND[twin.activation(name)]
    assert twin.error(got, tiles, sizes) < SUMS[twin.activation(name)]


@pytest.mark.parametrize("name", ["BF16", "Q4_1:Q8", "Q4_1:Q16", "Q6_K:Q16"])
def test_row_count_changes_no_bit(name: str) -> None:
    """Alone, in one tile or two, in several blocks of rows, whatever the threads and the order of chunks."""
    n_in, n_out = columns(name, 544), 40
    rng = np.random.default_rng(7)
    made = matrices(name, n_in, [twin.random_rows(name, n_out, n_in, rng)])
    x = rng.standard_normal((300, n_in)).astype(np.float32)
    alone = np.concatenate([twin.linear(made, x[i : i + 1])[0] for i in range(34)])
    for n in [2, 16, 17, 32, 33, 34, 256, 257, 300]:
        [together] = twin.linear(made, x[:n], n_threads=1 + n % 3, shuffle=n)
        np.testing.assert_array_equal(together[:34], alone[:n])


@pytest.mark.parametrize("name", [n for n in NAMES if n != "BF16"])
@pytest.mark.parametrize("kind", ["ones", "zero", "denormal", "large"])
def test_extreme_blocks(name: str, kind: str) -> None:
    n_in = columns(name, 512)
    rng = np.random.default_rng(11)
    rows = twin.random_rows(name, 20, n_in, rng, kind)
    x = rng.standard_normal((10, n_in)).astype(np.float32)
    x[0], x[1] = 1, -1
    x[2, ::2], x[2, 1::2] = 1, -1
    x[3] = 0
    x[4] *= 1e4
    got = twin.linear(matrices(name, n_in, [rows]), x)[0]
    sizes = np.abs(twin.seen(name, x)) @ np.abs(twin.values_of(name, rows).astype(np.float64)).T
    tiles, exact = product_of_planes(name, rows, x), twin.product(name, rows, x)
    assert (got[3] == 0).all()
    for r in range(len(x)):
        if twin.base(name) == "MXFP4" and kind == "denormal":  # below 2^-126, tiles have zeros
            assert twin.error(got[r], tiles[r], sizes[r] + 1e-300) < 4e-3
            continue
        assert twin.error(got[r], tiles[r], sizes[r] + 1e-300) < SUMS[twin.activation(name)]
        assert twin.error(got[r], exact[r], sizes[r] + 1e-300) < BOUND[twin.activation(name)]


@pytest.mark.parametrize("n_in", [1, 2, 31, 63, 577])
def test_bf16_columns_are_free(n_in: int) -> None:
    rng = np.random.default_rng(n_in)
    rows = twin.random_rows("BF16", 37, n_in, rng)
    x = rng.standard_normal((11, n_in)).astype(np.float32)
    got = twin.linear(matrices("BF16", n_in, [rows]), x)[0]
    sizes = np.abs(x) @ np.abs(twin.values_of("BF16", rows)).T
    assert twin.error(got, twin.product("BF16", rows, x), sizes) < BOUND[twin.F32]


@pytest.mark.parametrize("name", ["BF16", "Q4_1:Q16"])
@pytest.mark.parametrize("n_rows", [1, 70])
def test_epilogue_and_parts(name: str, n_rows: int) -> None:
    n_in = columns(name, 256)
    rng = np.random.default_rng(3)
    counts = [48, 17, 1, 200]
    parts = [twin.random_rows(name, n, n_in, rng) for n in counts]
    made = matrices(name, n_in, parts)
    x = rng.standard_normal((n_rows, n_in)).astype(np.float32)
    bias = [rng.standard_normal(n).astype(np.float32) if i % 2 else None for i, n in enumerate(counts)]
    added = [
        rng.standard_normal((n_rows, n)).astype(np.float32) if i < 2 else None for i, n in enumerate(counts)
    ]
    for softcap in (0.0, 2.0):
        for in_place in (False, True):
            got = twin.linear(
                made, x, bias=bias, scale=0.5, softcap=softcap, residual=added, in_place=in_place, shuffle=1
            )
            for i, rows in enumerate(parts):
                plain = (twin.product(name, rows, x) + (0 if bias[i] is None else bias[i])) * 0.5
                want = twin.softcapped(plain, softcap) + (0 if added[i] is None else added[i])
                assert twin.error(got[i], want) < BOUND[twin.activation(name)]


def test_not_a_number_is_seen() -> None:
    """A row with a NaN gives NaN, the others beside it do not."""
    rng = np.random.default_rng(2)
    made = matrices("Q4_0:Q16", 64, [twin.random_rows("Q4_0", 16, 64, rng)])
    x = rng.standard_normal((3, 64)).astype(np.float32)
    x[1, 40] = np.nan
    [got] = twin.linear(made, x)
    assert np.isnan(got[1]).all() and np.isfinite(got[[0, 2]]).all()


@pytest.mark.parametrize("name", ["BF16", "Q4_1:Q16", "Q6_K:Q8"])
@pytest.mark.parametrize("by_slot", [False, True])
def test_experts(name: str, by_slot: bool) -> None:
    """Rows go through the experts they chose, however many choose the same; alone they have the same bits."""
    n_expert, k, n_out, n_in = 6, 2, 88, columns(name, 288)
    rng = np.random.default_rng(1)
    rows = twin.random_rows(name, n_expert * n_out, n_in, rng)
    made = matrices(name, n_in, [rows], twin.MOE_LINEAR, n_expert)
    bias = rng.standard_normal((n_expert, n_out)).astype(np.float32)
    scale = rng.uniform(0.5, 2, n_expert).astype(np.float32)
    values = twin.values_of(name, rows).astype(np.float64).reshape(n_expert, n_out, n_in)
    x = rng.standard_normal((200, k, n_in) if by_slot else (200, n_in)).astype(np.float32)
    ids = np.stack([rng.permutation(n_expert)[:k] for _ in range(200)]).astype(np.int32)
    ids[:150, 0], ids[:150, 1] = 3, 1  # more than fit one block of rows
    slots = x if by_slot else np.repeat(x[:, None], k, 1)
    kept = twin.seen(name, np.ascontiguousarray(slots).reshape(-1, n_in)).reshape(200, k, n_in)
    want = (np.einsum("rki,rkoi->rko", kept, values[ids]) + bias[ids]) * scale[ids][..., None]
    for n in (1, 2, 40, 200):
        got = twin.moe_linear(made, x[:n], ids[:n], bias=bias, expert_scale=scale, shuffle=n)
        assert twin.error(got, want[:n]) < BOUND[twin.activation(name)]
        np.testing.assert_array_equal(
            got[:1], twin.moe_linear(made, x[:1], ids[:1], bias=bias, expert_scale=scale)
        )


def test_each_slot_has_its_matrix_without_ids() -> None:
    rng = np.random.default_rng(6)
    rows = twin.random_rows("Q8_0", 5 * 40, 64, rng)
    made = matrices("Q8_0:Q16", 64, [rows], twin.MOE_LINEAR, 5)
    x = rng.standard_normal((70, 5, 64)).astype(np.float32)
    ids = np.tile(np.arange(5, dtype=np.int32), (70, 1))
    got = twin.moe_linear(made, x, None)
    np.testing.assert_array_equal(got, twin.moe_linear(made, x, ids))
    values = twin.values_of("Q8_0", rows).astype(np.float64).reshape(5, 40, 64)
    kept = twin.seen("Q8_0:Q16", x.reshape(-1, 64)).reshape(x.shape)
    assert twin.error(got, np.einsum("rsi,soi->rso", kept, values)) < BOUND[twin.Q16]

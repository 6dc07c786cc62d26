"""Attention on every unit against NumPy in float64: shapes, masks, cache types, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from executor_rig import (
    KV_BF16,
    KV_F16,
    KV_F32,
    KV_Q4_0,
    KV_Q8_0,
    Q8,
    UNITS,
    Pages,
    Part,
    Rig,
    fill_pages,
    rounded,
)
from hypothesis import given, settings
from hypothesis import strategies as st

RNG = np.random.default_rng(11)


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest) -> str:
    return request.param


class Setup:
    """Sequences with filled caches, and one attention step over them."""

    def __init__(self, *, n_head: int, n_kv: int, d_k: int, d_v: int | None = None, lengths: Sequence[int],
                 kv_type: int = KV_F32, page_size: int = 16, spread: float = 1.0, **params: Any) -> None:  # fmt: skip
        self.n_head, self.n_kv, self.d_k, self.d_v = n_head, n_kv, d_k, d_v or d_k
        self.kv_type, self.page_size, self.params = kv_type, page_size, params
        self.n_pages = sum(-(-n // page_size) for n in lengths) + 3
        pages = Pages(self.n_pages, page_size, seed=sum(lengths))
        self.tables = [pages.take(n) for n in lengths]
        rng = np.random.default_rng(sum(lengths) + n_head)
        self.k = [spread * rng.standard_normal((n, n_kv, d_k)).astype(np.float32) for n in lengths]
        self.v = [rng.standard_normal((n, n_kv, self.d_v)).astype(np.float32) for n in lengths]
        self.q = [spread * rng.standard_normal((n, n_head, d_k)).astype(np.float32) for n in lengths]

    def fill(self, rig: Rig, pool: int) -> None:
        cache = rig.pools[pool]
        for name in "kv":
            cache[name].view(np.uint8)[:] = 0xFF  # NaN in every type: what nobody wrote must not matter
        for table, k, v in zip(self.tables, self.k, self.v, strict=True):
            fill_pages(cache["k"][1], table, k, self.kv_type)
            fill_pages(cache["v"][1], table, v, self.kv_type)

    def run(self, unit: str, rows: Sequence[tuple[int, int, int, bool]], threads: int = 2, floats: bool = True,
            q8: bool = False) -> Any:  # fmt: skip
        """rows: (sequence, first position, n, prompt); returns (n_rows, n_head, d_v), or q, d, sum when not floats."""
        total = sum(n for _, _, n, _ in rows)
        width = self.n_head * self.d_v
        with Rig(unit, max_rows=total, threads=threads) as rig:
            pool = rig.pool(n_pages=self.n_pages, page_size=self.page_size, n_head_kv=self.n_kv, d_k=self.d_k,
                            d_v=self.d_v, n_layers=2, type=self.kv_type)  # fmt: skip
            self.fill(rig, pool)
            q, out = rig.buffer(self.n_head * self.d_k), rig.buffer(width)
            out8 = rig.buffer(width, Q8) if q8 else None
            params = {
                name: rig.keep(v) if isinstance(v, np.ndarray) else v for name, v in self.params.items()
            }
            rig.step("attention", [q], [out if floats else None, out8], union="attention",
                     params={"n_head": self.n_head, "n_head_kv": self.n_kv, "d_k": self.d_k, "d_v": self.d_v,
                             "pool": pool, "layer": 1, "scale": self.d_k**-0.5, **params})  # fmt: skip
            rig.start()
            rig.write(q, np.concatenate([self.q[s][p : p + n] for s, p, n, _ in rows]).reshape(total, -1))
            status = rig.run([Part(n, p, prompt=prompt, tables=[self.tables[s]]) for s, p, n, prompt in rows])
            assert status == 0
            y = rig.read(out, total).reshape(total, self.n_head, self.d_v)
            eight = rig.read_q8(out8, total) if out8 is not None else None
        return y if not q8 else (y, eight) if floats else eight

    def oracle(self, sequence: int, position: int, n: int) -> np.ndarray:
        """float64, key by key."""
        p = {
            "scale": self.d_k**-0.5,
            "window": 0,
            "bidirectional": 0,
            "softcap": 0.0,
            "sinks": None,
            "alibi": None,
        }
        p |= self.params
        end = position + n
        k = rounded(self.k[sequence][:end], self.kv_type).astype(np.float64)
        v = rounded(self.v[sequence][:end], self.kv_type).astype(np.float64)
        group = self.n_head // self.n_kv
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        q = self.q[sequence][position:end].astype(np.float64)
        s = np.einsum("thd,nhd->htn", q, k) * p["scale"]
        if p["softcap"]:
            s = p["softcap"] * np.tanh(s / p["softcap"])
        distance = np.arange(position, end)[:, None] - np.arange(end)[None]
        if p["alibi"] is not None:
            s = s - p["alibi"][:, None, None].astype(np.float64) * distance
        hidden = (distance < 0) & (not p["bidirectional"])
        if p["bidirectional"] == 2:
            hidden |= np.abs(distance) > p["window"] // 2
        elif p["window"]:
            hidden |= distance >= p["window"]
        s = np.where(hidden, -np.inf, s)
        top = s.max(-1, keepdims=True)
        if p["sinks"] is not None:
            sink = p["sinks"][:, None, None].astype(np.float64)
            top = np.maximum(top, sink)
        e = np.exp(s - top)
        total = e.sum(-1, keepdims=True) + (np.exp(sink - top) if p["sinks"] is not None else 0)
        return np.einsum("htn,nhd->thd", e / total, v)

    def check(
        self, unit: str, rows: Sequence[tuple[int, int, int, bool]], tolerance: float = 3e-6, **kw: Any
    ) -> None:
        y = self.run(unit, rows, **kw)
        at = 0
        for s, p, n, _ in rows:
            np.testing.assert_allclose(y[at : at + n], self.oracle(s, p, n), rtol=tolerance, atol=tolerance)
            at += n


MIXED = [
    (0, 40, 1, False),
    (1, 0, 1, False),
    (2, 290, 3, False),
    (3, 0, 70, True),
    (4, 33, 40, True),
    (5, 600, 1, True),
]
LENGTHS = [41, 1, 293, 70, 73, 601]


@pytest.mark.parametrize("kv_type", [KV_F32, KV_F16, KV_BF16, KV_Q8_0, KV_Q4_0])
@pytest.mark.parametrize(
    ("n_head", "n_kv", "d_k", "d_v"),
    [
        (9, 3, 64, 64),
        (4, 1, 256, 256),
        (2, 2, 16, 16),
        (8, 1, 40, 24),
        (5, 1, 8, 8),
        (6, 3, 96, 128),
        (16, 2, 100, 12),
    ],
)
def test_shapes(unit: str, n_head: int, n_kv: int, d_k: int, d_v: int, kv_type: int) -> None:
    Setup(n_head=n_head, n_kv=n_kv, d_k=d_k, d_v=d_v, lengths=LENGTHS, kv_type=kv_type).check(unit, MIXED)


@pytest.mark.parametrize("kv_type", [KV_F32, KV_Q4_0])
@pytest.mark.parametrize("page_size", [16, 32, 48, 256])
def test_page_sizes(unit: str, page_size: int, kv_type: int) -> None:
    Setup(n_head=4, n_kv=2, d_k=32, lengths=LENGTHS, page_size=page_size, kv_type=kv_type).check(unit, MIXED)


@pytest.mark.parametrize(
    "params",
    [
        {"window": 1},
        {"window": 4},
        {"window": 20},
        {"window": 64},
        {"window": 300},
        {"softcap": 2.5},
        {"scale": 1.0},
        {"sinks": np.array([0.5, -3.0, 8.0, 0.0], np.float32)},
        {"sinks": np.array([60.0, -60.0, 1.0, 0.0], np.float32), "window": 37},
        {"alibi": np.array([0.5, 0.25, 0.0, 0.0625], np.float32)},
        {"alibi": np.array([0.5, 0.25, 0.1, 0.0625], np.float32), "softcap": 5.0, "window": 100},
        {"bidirectional": 1},
        {"bidirectional": 1, "window": 30},
        {"bidirectional": 2, "window": 30},
        {"bidirectional": 2, "window": 31},
    ],
    ids=str,
)
@pytest.mark.parametrize("kv_type", [KV_F32, KV_Q8_0])
def test_masks_and_score_functions(unit: str, params: dict[str, Any], kv_type: int) -> None:
    s = Setup(n_head=4, n_kv=2, d_k=32, lengths=LENGTHS, kv_type=kv_type, **params)
    s.check(unit, MIXED, tolerance=1e-5)


def test_window_counts_the_token_itself(unit: str) -> None:
    """Window 4, equal scores, one-hot values: query p sees max(0, p - 3) .. p, whole, in chunks and one by one."""
    s = Setup(n_head=1, n_kv=1, d_k=16, lengths=[7], window=4)
    s.q[0][:] = 0
    s.v[0][:] = np.eye(7, 16, dtype=np.float32)[:, None]
    expected = np.zeros((7, 16))
    for p in range(7):
        seen = range(max(0, p - 3), p + 1)
        expected[p, seen] = 1 / len(seen)
    ways = [
        [(0, 0, 7, True)],
        [(0, 0, 3, True)],
        [(0, 3, 4, True)],
        *([[(0, p, 1, False)] for p in range(7)]),
    ]
    for way in ways:
        _, p, n, _ = way[0]
        np.testing.assert_allclose(s.run(unit, way)[:, 0], expected[p : p + n], atol=1e-7)


@pytest.mark.parametrize("prompt", [True, False])
def test_extreme_scores(unit: str, prompt: bool) -> None:
    s = Setup(n_head=1, n_kv=1, d_k=16, lengths=[2], scale=1.0)
    s.q[0][:] = 0
    s.q[0][:, 0, 0] = 1
    s.k[0][:] = 0
    s.k[0][:, 0, 0] = [-100000, -99999]
    s.v[0][:] = np.eye(2, 16, dtype=np.float32)[:, None]
    np.testing.assert_allclose(s.run(unit, [(0, 1, 1, prompt)])[0, 0, :2], [0.2689414, 0.7310586], rtol=1e-6)
    s = Setup(n_head=2, n_kv=1, d_k=128, lengths=[40], kv_type=KV_F16)
    s.q[0][:] = s.k[0][:] = 300
    s.v[0][:] = 60000
    y = s.run(unit, [(0, 39, 1, prompt)])
    np.testing.assert_allclose(y, 60000 - 60000 % 32, rtol=1e-6)
    s = Setup(n_head=2, n_kv=2, d_k=32, lengths=[500], spread=30.0)
    s.check(unit, [(0, 499, 1, prompt)], tolerance=2e-4)  # scores of some thousands have an ulp of 1e-4


def test_long_context(unit: str) -> None:
    """Beyond 4096 positions the parts grow; rows of one segment may stand on both sides of the border."""
    s = Setup(n_head=4, n_kv=2, d_k=16, lengths=[4100, 9000], kv_type=KV_F16)
    rows = [(0, 4094, 4, False), (1, 8999, 1, False)]
    s.check(unit, rows)
    both = s.run(unit, rows)
    for i in range(4):
        np.testing.assert_array_equal(s.run(unit, [(0, 4094 + i, 1, False)])[0], both[i])
    Setup(n_head=4, n_kv=2, d_k=16, lengths=[4100, 9000], window=700).check(unit, rows)
    s.check(unit, [(1, 8950, 50, True)])


@pytest.mark.parametrize(("n_head", "n_kv", "d"), [(9, 3, 64), (4, 4, 8), (6, 2, 16), (2, 1, 16)])
def test_quantised_results(unit: str, n_head: int, n_kv: int, d: int) -> None:
    """Q8 beside the floats, and instead of them; whole blocks per kv head (9/3 x 64) or not (4/4 x 8, 6/2 x 16)."""
    s = Setup(n_head=n_head, n_kv=n_kv, d_k=d, lengths=LENGTHS, kv_type=KV_F16)
    y, beside = s.run(unit, MIXED, q8=True)
    alone = s.run(unit, MIXED, q8=True, floats=False)
    blocks = y.reshape(len(y), -1, 16)
    scale = (np.abs(blocks).max(-1) / np.float32(127)).astype(np.float32)
    np.testing.assert_array_equal(beside[1], scale)
    np.testing.assert_array_equal(
        beside[0].reshape(blocks.shape), np.rint(blocks / scale[..., None]).astype(np.int8)
    )
    for a, b in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(a, b)


def test_pages_outside_the_window_may_be_gone(unit: str) -> None:
    for prompt in (True, False):
        s = Setup(n_head=2, n_kv=1, d_k=32, lengths=[300], window=50)
        expected = s.run(unit, [(0, 280, 20 if prompt else 1, prompt)])
        gone = (280 - 49) // 16
        s.tables[0][:gone] = [-1] * gone
        s.fill = lambda rig, pool: None  # type: ignore[method-assign]
        filled = Setup(n_head=2, n_kv=1, d_k=32, lengths=[300], window=50)
        s.fill = filled.fill  # type: ignore[method-assign]
        np.testing.assert_array_equal(s.run(unit, [(0, 280, 20 if prompt else 1, prompt)]), expected)
        s.tables[0][gone] = -1
        with pytest.raises(AssertionError):
            s.run(unit, [(0, 280, 1, prompt)])


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_company_chunks_and_threads_change_no_bit(data: st.DataObject) -> None:
    """Every row of a ragged batch equals the same row computed alone, in other chunks, with other threads."""
    unit = data.draw(st.sampled_from(UNITS))
    n_head, n_kv, d = data.draw(st.sampled_from([(3, 1, 16), (4, 2, 32), (9, 3, 24)]))
    window = data.draw(st.sampled_from([0, 5, 70]))
    lengths = data.draw(st.lists(st.integers(1, 330), min_size=2, max_size=4))
    kv_type = data.draw(st.sampled_from([KV_F16, KV_BF16, KV_Q8_0, KV_Q4_0]))
    s = Setup(n_head=n_head, n_kv=n_kv, d_k=d, lengths=lengths, window=window, kv_type=kv_type)
    rows = []
    for i, n in enumerate(lengths):
        count = data.draw(st.integers(1, n))
        rows.append((i, n - count, count, data.draw(st.booleans()) or count > 8))
    rows.sort(key=lambda r: r[3])
    whole = s.run(unit, rows, threads=data.draw(st.integers(1, 4)))
    at = 0
    for i, position, n, prompt in rows:
        done = 0
        while done < n:
            size = data.draw(st.integers(1, n - done))
            part = s.run(unit, [(i, position + done, size, prompt)], threads=data.draw(st.integers(1, 3)))
            np.testing.assert_array_equal(part, whole[at + done : at + done + size])
            done += size
        at += n


@pytest.mark.parametrize(("window", "kv_type"), [(0, KV_F16), (300, KV_F16), (0, KV_Q8_0)])
def test_chunks_of_several_parts_change_no_bit(unit: str, window: int, kv_type: int) -> None:
    """Where many rows decode, a chunk takes several parts of a context; alone, each part is a chunk."""
    lengths = [700 + 53 * i for i in range(12)]
    s = Setup(n_head=4, n_kv=2, d_k=32, lengths=lengths, window=window, kv_type=kv_type)
    rows = [(i, n - 1 - i % 2, 1 + i % 2, False) for i, n in enumerate(lengths)]
    whole = [s.run(unit, rows, threads=threads) for threads in (1, 3)]
    np.testing.assert_array_equal(*whole)
    at = 0
    for row in rows:
        np.testing.assert_array_equal(s.run(unit, [row], threads=2), whole[0][at : at + row[2]])
        at += row[2]

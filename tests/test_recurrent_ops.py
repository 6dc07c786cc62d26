"""Recurrent ops on every unit: against NumPy in float64, and the same bits however rows are cut, in any company."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from executor_rig import UNITS, Part, Rig, View
from hypothesis import given, settings
from hypothesis import strategies as st

OK = 0
#: Rows of the test's batch: decode rows with and without history, and prompts.
LENGTHS = [1, 1, 9, 30]


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@dataclass
class Op:
    """One op with its parameters: how to run it, and what it means."""

    name: str
    widths: Sequence[int]
    out: int
    params: dict[str, Any]
    state_shape: tuple[int, ...]
    twin: Callable[[list[np.ndarray], np.ndarray], tuple[np.ndarray, np.ndarray]]
    draw: Callable[[np.random.Generator, int], list[np.ndarray]]
    pointers: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def state_floats(self) -> int:
        return int(np.prod(self.state_shape))


def short_conv(n: int, kernel: int, bias: bool, silu: bool, seed: int = 0) -> Op:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((kernel, n)).astype(np.float32)
    b = rng.standard_normal(n).astype(np.float32) if bias else None

    def twin(arrays: list[np.ndarray], state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = np.concatenate([state, arrays[0]])
        y = np.stack([(rows[t : t + kernel] * weight).sum(0) for t in range(len(arrays[0]))])
        y = y + (0 if b is None else b)
        return (y / (1 + np.exp(-y)) if silu else y), rows[len(arrays[0]) :]

    return Op(
        "short_conv", [n], n, {"kernel": kernel, "activation": int(silu)}, (kernel - 1, n), twin,
        lambda r, t: [r.standard_normal((t, n))], {"weight": weight} | ({"bias": b} if b is not None else {}),
    )  # fmt: skip


def ssm_scan(n_head: int, head_dim: int, n_group: int, n_state: int, seed: int = 0) -> Op:
    rng = np.random.default_rng(seed)
    a = -np.exp(rng.uniform(-1, 2, n_head)).astype(np.float32)
    d = rng.standard_normal(n_head).astype(np.float32)
    group = np.arange(n_head) // (n_head // n_group)

    def twin(arrays: list[np.ndarray], state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, dt, b, c = arrays
        x = x.reshape(-1, n_head, head_dim)
        b, c = (m.reshape(-1, n_group, n_state)[:, group] for m in (b, c))
        out = np.empty_like(x)
        for t in range(len(x)):
            state = np.exp(dt[t] * a)[:, None, None] * state + np.einsum(
                "hn,hp->hnp", b[t], dt[t][:, None] * x[t]
            )
            out[t] = np.einsum("hnp,hn->hp", state, c[t]) + d[:, None] * x[t]
        return out.reshape(len(x), -1), state

    def draw(r: np.random.Generator, t: int) -> list[np.ndarray]:
        bc = r.standard_normal((2, t, n_group * n_state))
        return [
            r.standard_normal((t, n_head * head_dim)),
            np.exp(r.uniform(-6, 0, (t, n_head))),
            bc[0],
            bc[1],
        ]

    n_bc = n_group * n_state
    return Op(
        "ssm_scan", [n_head * head_dim, n_head, n_bc, n_bc], n_head * head_dim,
        {"n_head": n_head, "head_dim": head_dim, "n_group": n_group, "n_state": n_state},
        (n_head, n_state, head_dim), twin, draw, {"a": a, "d": d},
    )  # fmt: skip


def delta_rule(n_k: int, n_v: int, d_k: int, d_v: int, mod: bool) -> Op:
    pair = np.arange(n_v) % n_k if mod else np.arange(n_v) // (n_v // n_k)
    scale = float(np.float32(d_k**-0.5))

    def twin(arrays: list[np.ndarray], state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        q, k, v, decay, beta = arrays
        q, k = (m.reshape(-1, n_k, d_k)[:, pair] for m in (q, k))
        v = v.reshape(-1, n_v, d_v)
        out = np.empty_like(v)
        for t in range(len(v)):
            state = np.exp(decay[t])[:, None, None] * state
            delta = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state = state + np.einsum("hk,hv->hkv", k[t], delta)
            out[t] = scale * np.einsum("hkv,hk->hv", state, q[t])
        return out.reshape(len(v), -1), state

    def draw(r: np.random.Generator, t: int) -> list[np.ndarray]:
        q, k = r.standard_normal((2, t, n_k, d_k))
        q, k = (m / np.sqrt((m * m).sum(-1, keepdims=True) + 1e-6) for m in (q, k))
        return [
            q.reshape(t, -1), k.reshape(t, -1), r.standard_normal((t, n_v * d_v)),
            -np.exp(r.uniform(-5, 1, (t, n_v))), r.uniform(0, 1, (t, n_v)),
        ]  # fmt: skip

    params = {"n_head_k": n_k, "n_head_v": n_v, "d_k": d_k, "d_v": d_v, "pairing": int(mod), "scale": scale}
    return Op(
        "delta_rule",
        [n_k * d_k, n_k * d_k, n_v * d_v, n_v, n_v],
        n_v * d_v,
        params,
        (n_v, d_k, d_v),
        twin,
        draw,
    )


OPS = {
    "conv-4-silu": short_conv(192, 4, True, True),
    "conv-3": short_conv(64, 3, False, False),
    "conv-2-ragged": short_conv(37, 2, True, False),
    "conv-7-silu": short_conv(80, 7, False, True),
    "ssm-small": ssm_scan(8, 16, 2, 16),
    "ssm-wide": ssm_scan(4, 64, 1, 128),
    "ssm-80": ssm_scan(6, 80, 3, 32),
    "ssm-ragged": ssm_scan(3, 20, 1, 7),
    "delta-div": delta_rule(2, 4, 16, 16, False),
    "delta-mod": delta_rule(2, 4, 16, 16, True),
    "delta-wide": delta_rule(2, 4, 128, 128, True),
    "delta-uneven": delta_rule(1, 3, 18, 40, False),
}


@pytest.fixture(params=OPS)
def op(request: pytest.FixtureRequest) -> Op:
    return OPS[request.param]


class Bench:
    """An executor with one recurrent step; sequences alternate between the two halves of their slot."""

    def __init__(self, unit: str, op: Op, n_sequences: int = 4, threads: int = 2) -> None:
        self.op, self.half, self.position = op, [0] * n_sequences, [0] * n_sequences
        self.rig = Rig(unit, max_rows=128, threads=threads)
        self.inputs = [self.rig.buffer(width) for width in op.widths]
        self.out: View = self.rig.buffer(op.out)
        params = dict(op.params) | {k: self.rig.keep(v) for k, v in op.pointers.items()}
        params["state"] = self.rig.state(2 * n_sequences, op.state_floats)
        self.rig.step(op.name, self.inputs, [self.out], union=op.name, params=params)
        self.rig.start()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exc: object) -> None:
        self.rig.__exit__(*exc)

    def run(self, work: Sequence[tuple[int, list[np.ndarray]]]) -> list[np.ndarray]:
        """Run rows of several sequences in one batch: (sequence, input arrays); returns their results."""
        work = sorted(work, key=lambda w: len(w[1][0]) > 1)  # decode rows first
        parts = []
        for s, arrays in work:
            read = 2 * s + self.half[s] if self.position[s] else -1
            n = len(arrays[0])
            state = (read, 2 * s + 1 - self.half[s])
            parts.append(Part(n, self.position[s], prompt=n > 1, state=state))
        for i, view in enumerate(self.inputs):
            self.rig.write(view, np.concatenate([arrays[i] for _, arrays in work]))
        assert self.rig.run(parts) == OK
        total = sum(p.n_rows for p in parts)
        got = np.split(self.rig.read(self.out, total), np.cumsum([p.n_rows for p in parts])[:-1])
        for (s, arrays), _ in zip(work, parts, strict=True):
            self.half[s] = 1 - self.half[s]
            self.position[s] += len(arrays[0])
        return got

    def state(self, s: int) -> np.ndarray:
        """The state that the last step left."""
        return self.rig.states[0][2 * s + self.half[s]].reshape(self.op.state_shape).copy()


def draw(op: Op, n: int, seed: int = 1) -> list[np.ndarray]:
    return [a.astype(np.float32) for a in op.draw(np.random.default_rng(seed), n)]


def cut(arrays: list[np.ndarray], lengths: Sequence[int]) -> Iterator[list[np.ndarray]]:
    begin = 0
    for n in lengths:
        yield [a[begin : begin + n] for a in arrays]
        begin += n


def check(got: np.ndarray, want: np.ndarray) -> None:
    size = np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=4e-6 * max(size, 1e-3))


def test_against_float64(unit: str, op: Op) -> None:
    """Two steps of a ragged batch: from zero state, then from what the first step left."""
    arrays = [draw(op, 2 * n, seed) for seed, n in enumerate(LENGTHS)]
    states = [np.zeros(op.state_shape) for _ in LENGTHS]
    with Bench(unit, op) as bench:
        for i in range(2):
            work = [(s, [a[i * n : (i + 1) * n] for a in arrays[s]]) for s, n in enumerate(LENGTHS)]
            got = bench.run(work)
            for (s, part), y in zip(work, got, strict=True):
                want, states[s] = op.twin([a.astype(np.float64) for a in part], states[s])
                check(y, want)
                check(bench.state(s), states[s])


@pytest.mark.parametrize("lengths", [[1] * 10, [3, 7], [4, 4, 2], [9, 1]], ids=str)
def test_chunks_change_no_bit(unit: str, op: Op, lengths: list[int]) -> None:
    arrays = draw(op, 10)
    with Bench(unit, op) as bench:
        whole = bench.run([(0, arrays)])[0]
        parts = [bench.run([(1, part)])[0] for part in cut(arrays, lengths)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        np.testing.assert_array_equal(bench.state(1), bench.state(0))


def test_company_and_threads_change_no_bit(unit: str, op: Op) -> None:
    arrays = draw(op, 10)
    with Bench(unit, op, threads=1) as bench:
        alone = bench.run([(0, arrays)])[0]
        state = bench.state(0)
    with Bench(unit, op) as bench:
        company = [(0, draw(op, 1, 7)), (2, draw(op, 25, 8)), (1, arrays), (3, draw(op, 14, 9))]
        got = bench.run(company)
        np.testing.assert_array_equal(got[2], alone)
        np.testing.assert_array_equal(bench.state(1), state)


def test_used_slot_starts_from_zero(unit: str, op: Op) -> None:
    arrays = draw(op, 6)
    with Bench(unit, op) as bench:
        first = bench.run([(0, arrays)])[0]
        bench.run([(0, draw(op, 5, 3))])
        bench.position[0] = 0  # another sequence gets the slot
        np.testing.assert_array_equal(bench.run([(0, arrays)])[0], first)


def test_step_can_be_repeated(unit: str, op: Op) -> None:
    """It reads one half of the slot and writes the other, all of it and nothing else."""
    with Bench(unit, op) as bench:
        bench.run([(1, draw(op, 5))])
        before = bench.rig.states[0].copy()
        arrays = draw(op, 4, 2)
        first, written = bench.run([(1, arrays)])[0], bench.half[1]
        after = bench.rig.states[0].copy()
        bench.half[1], bench.position[1] = 1 - written, 5
        np.testing.assert_array_equal(bench.run([(1, arrays)])[0], first)
        np.testing.assert_array_equal(bench.rig.states[0], after)
        target = 2 + written
        assert np.isfinite(after[target]).all()
        others = [i for i in range(8) if i != target]
        np.testing.assert_array_equal(after[others], before[others])


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_any_cut_changes_no_bit(data: st.DataObject) -> None:
    op = OPS[data.draw(st.sampled_from(sorted(OPS)))]
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    arrays = draw(op, sum(lengths))
    with Bench(UNITS[0], op) as bench:
        whole = bench.run([(0, arrays)])[0]
        parts = [bench.run([(1, part)])[0] for part in cut(arrays, lengths)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize(("name", "change"), [
    ("conv-3", {"kernel": 4}), ("conv-3", {"kernel": 1}), ("conv-3", {"state": 3}),
    ("ssm-small", {"n_state": 8}), ("ssm-small", {"n_group": 3}), ("ssm-small", {"head_dim": 15}),
    ("delta-div", {"d_v": 17}), ("delta-div", {"n_head_k": 3}), ("delta-div", {"state": -1}),
])  # fmt: skip
def test_plan_that_does_not_fit_its_state_is_refused(name: str, change: dict[str, int]) -> None:
    op = OPS[name]
    with Rig(UNITS[0]) as rig:
        inputs, out = [rig.buffer(width) for width in op.widths], rig.buffer(op.out)
        params = dict(op.params) | {k: rig.keep(v) for k, v in op.pointers.items()}
        params |= {"state": rig.state(2, op.state_floats)} | change
        rig.step(op.name, inputs, [out], union=op.name, params=params)
        with pytest.raises(AssertionError, match="refused"):
            rig.start()

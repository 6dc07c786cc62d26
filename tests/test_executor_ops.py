"""Every op that is not a matrix product or attention, on every unit, against NumPy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from executor_rig import (
    DECODE,
    F32,
    I32,
    KV_BF16,
    KV_F16,
    KV_F32,
    OUTPUTS,
    PROMPT,
    Q8,
    ROWS,
    SEQUENCES,
    UNITS,
    Pages,
    Part,
    Rig,
    View,
    decode_kv,
    encode_kv,
    ffi,
    kernels_of,
)

RNG = np.random.default_rng(7)
OK = 0
ROWS_MANY = [Part(1, 5), Part(3, 0), Part(9, 2, prompt=True)]


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest) -> str:
    return request.param


def quantise(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The header's rule in NumPy, bit for bit."""
    blocks = x.astype(np.float32).reshape(len(x), -1, 16)
    d = (np.abs(blocks).max(-1) / np.float32(127)).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(d[..., None] > 0, np.rint(blocks / d[..., None]), 0).astype(np.int8)
    return q.reshape(len(x), -1), d, q.reshape(len(x), -1, 16).sum(-1, dtype=np.int32)


def apply(unit: str, op: str, arrays: list[np.ndarray], out_width: int, parts: list[Part] | None = None,
          q8: bool = False, threads: int = 2, **kw: Any) -> Any:  # fmt: skip
    """Run one op over the rows of ``arrays``; returns the floats, and q, d, sum when ``q8``."""
    n = len(arrays[0])
    parts = parts or [Part(n)]
    with Rig(unit, max_rows=n, max_outputs=n, threads=threads) as rig:
        views = [rig.buffer(a.shape[1]) for a in arrays]
        out, out8 = rig.buffer(out_width), rig.buffer(out_width, Q8) if q8 else None
        rig.step(op, views, [out, out8], **kw)
        rig.start()
        for view, a in zip(views, arrays, strict=True):
            rig.write(view, a)
        assert rig.run(parts) == OK
        y = rig.read(out, n)
        return (y, *rig.read_q8(out8, n)) if out8 is not None else y


# -- quantising --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [32, 64, 96, 576, 1536])
def test_quantize_is_exact(unit: str, width: int) -> None:
    x = RNG.standard_normal((13, width)).astype(np.float32) * np.exp(RNG.uniform(-20, 20, (13, 1))).astype(
        np.float32
    )
    x[3] = 0
    x[4, :32] = 0
    x[5] = np.round(x[5] * 4) / 4 if width < 100 else x[5]
    x[6] = (
        np.tile(np.arange(32) - 15.5, width // 32) * np.float32(127 / 15.5) / np.float32(2)
    )  # halves: to even
    with Rig(unit, max_rows=13) as rig:
        a, b = rig.buffer(width), rig.buffer(width, Q8)
        rig.step("quantize", [a], [b], union="quantize", params={"slots": 1})
        rig.start()
        rig.write(a, x)
        assert rig.run(ROWS_MANY) == OK
        for got, expected in zip(rig.read_q8(b, 13), quantise(x), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_quantize_shows_what_is_not_finite(unit: str) -> None:
    x = np.ones((3, 64), np.float32)
    x[0, 5], x[1, 40] = np.nan, np.inf
    with Rig(unit) as rig:
        a, b = rig.buffer(64), rig.buffer(64, Q8)
        rig.step("quantize", [a], [b], union="quantize", params={"slots": 1})
        rig.start()
        rig.write(a, x)
        assert rig.run([Part(3)]) == OK
        d = rig.read_q8(b, 3)[1]
    where = [[True, False, False, False], [False, False, True, False], [False] * 4]  # per 16 columns
    np.testing.assert_array_equal(np.isnan(d), where)


def test_quantize_by_slots(unit: str) -> None:
    x = RNG.standard_normal((5, 3 * 32)).astype(np.float32)
    with Rig(unit) as rig:
        a = rig.buffer(96)
        slot = 64 + 4 + 8 + 52  # one row of 32 columns, padded to 64
        b = View(rig.bytes, 3 * slot, 96, Q8)
        rig.bytes += 3 * slot * 64
        rig.step("quantize", [a], [b], union="quantize", params={"slots": 3})
        rig.start()
        rig.write(a, x)
        assert rig.run([Part(5)]) == OK
        for s in range(3):
            got = rig.read_q8(View(b.offset + s * slot, b.stride, 32, Q8), 5)
            for g, e in zip(got, quantise(x[:, 32 * s : 32 * s + 32]), strict=True):
                np.testing.assert_array_equal(g, e)


# -- norms -------------------------------------------------------------------------------------------------------------


def norm_oracle(
    x: np.ndarray, kind: int, group: int, eps: float, scale: float, weight: Any, bias: Any
) -> np.ndarray:
    w = x.astype(np.float64).reshape(len(x), -1, group)
    if kind == 1:
        w = w - w.mean(-1, keepdims=True)
    total = (w * w).sum(-1, keepdims=True) if kind == 2 else (w * w).mean(-1, keepdims=True)
    y = (w / np.sqrt(total + eps)).reshape(x.shape)
    reps = 1 if weight is None else x.shape[1] // len(weight)
    if weight is not None:
        y = y * np.tile(weight, reps)
    if bias is not None:
        y = y + np.tile(bias, reps)
    return y * scale


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize(("width", "group", "weight_width"), [(576, 576, 576), (96, 24, 24), (96, 24, 96), (40, 40, 40),
                                                              (7, 7, 7), (128, 64, 0)])  # fmt: skip
def test_norm(unit: str, kind: int, width: int, group: int, weight_width: int) -> None:
    x = RNG.standard_normal((13, width)).astype(np.float32) * 3 + 1
    weight = RNG.standard_normal(weight_width).astype(np.float32) if weight_width else None
    bias = RNG.standard_normal(weight_width).astype(np.float32) if weight_width and kind == 1 else None
    q8 = width % 32 == 0
    with Rig(unit, max_rows=13) as rig:
        params = {
            "kind": kind,
            "group": group,
            "weight_width": weight_width or group,
            "eps": 1e-5,
            "scale": 1.5,
        }
        if weight is not None:
            params["weight"] = rig.keep(weight)
        if bias is not None:
            params["bias"] = rig.keep(bias)
        a, y = rig.buffer(width), rig.buffer(width)
        y8, only8 = (rig.buffer(width, Q8), rig.buffer(width, Q8)) if q8 else (None, None)
        rig.step("norm", [a], [y, y8], union="norm", params=params)
        if q8:
            rig.step("norm", [a], [None, only8], union="norm", params=params)
        rig.step("norm", [a], [a], union="norm", params=params)  # in place
        rig.start()
        rig.write(a, x)
        assert rig.run(ROWS_MANY) == OK
        got = rig.read(y, 13)
        expected = norm_oracle(x, kind, group, 1e-5, 1.5, weight, bias)
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=3e-6)
        np.testing.assert_array_equal(rig.read(a, 13), got)
        if q8:
            for view in (y8, only8):
                for g, e in zip(rig.read_q8(view, 13), quantise(got), strict=True):
                    np.testing.assert_array_equal(g, e)


@pytest.mark.parametrize("width", [64, 50])
def test_norm_adds_the_residual(unit: str, width: int) -> None:
    x, r = RNG.standard_normal((2, 9, width)).astype(np.float32)
    with Rig(unit) as rig:
        a, b, y, total = (rig.buffer(width) for _ in range(4))
        params = {"group": width, "weight_width": width, "eps": 1e-6, "scale": 1.0}
        rig.step("norm", [a, b], [y, None, total], union="norm", params=params)
        rig.step("norm", [a, b], [None, None, b], union="norm", params=params)  # the sum onto the residual
        rig.start()
        rig.write(a, x)
        rig.write(b, r)
        assert rig.run([Part(9)]) == OK
        np.testing.assert_array_equal(rig.read(total, 9), x + r)
        np.testing.assert_array_equal(rig.read(b, 9), x + r)
        np.testing.assert_allclose(
            rig.read(y, 9), norm_oracle(x + r, 0, width, 1e-6, 1, None, None), rtol=2e-6, atol=1e-6
        )


# -- elementwise -------------------------------------------------------------------------------------------------------


def sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def gelu_erf(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * np.vectorize(math.erfc)(-x / math.sqrt(2))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(2 * 0.7978845608028654 * (x + 0.044715 * x**3))


UNARY = {
    2: lambda a: a * 1.25 + -0.5,
    3: lambda a: a * sigmoid(a),
    4: gelu_tanh,
    5: gelu_erf,
    6: lambda a: np.maximum(a, 0),
    7: lambda a: np.maximum(a, 0) ** 2,
    8: sigmoid,
    9: lambda a: np.where(a > 20, a, np.log1p(np.exp(np.minimum(a, 20)))),
    10: np.exp,
    11: np.tanh,
    12: lambda a: 1.25 * np.tanh(a / 1.25),
}
BINARY = {
    0: lambda a, b: a + b,
    1: lambda a, b: a * b,
    32: lambda a, b: a * sigmoid(a) * b,
    33: lambda a, b: gelu_tanh(a) * b,
    34: lambda a, b: gelu_erf(a) * b,
    35: lambda a, b: np.maximum(a, 0) ** 2 * b,
    36: lambda a, b: sigmoid(a) * b,
}


def spread(shape: tuple[int, ...]) -> np.ndarray:
    """Values of all sizes, the interesting ones among them."""
    x = (RNG.standard_normal(shape) * np.exp(RNG.uniform(-8, 3, shape))).astype(np.float32)
    special = [0.0, -0.0, 1.0, -1.0, 0.624, 0.626, 20.0, 20.1, -9.9, -15.0, 10.0, 88.0, -87.0]
    x.reshape(-1)[: len(special)] = special
    return x


@pytest.mark.parametrize("kind", UNARY)
@pytest.mark.parametrize("width", [1536, 77])
def test_unary(unit: str, kind: int, width: int) -> None:
    x = spread((9, width))
    y = apply(
        unit,
        "elementwise",
        [x],
        width,
        union="elementwise",
        params={"kind": kind, "alpha": 1.25, "beta": -0.5},
    )
    expected = UNARY[kind](x.astype(np.float64))
    # gelu of tanh form multiplies an error of its argument (up to some 100) by e^-argument
    rtol = 2e-6 if kind != 4 else 2e-5
    np.testing.assert_allclose(y, expected, rtol=rtol, atol=2e-37 if kind not in (2, 12) else 1e-7)


def test_exp_is_good_to_the_last_place(unit: str) -> None:
    x = np.linspace(-87, 88, 200_000, dtype=np.float32).reshape(8, -1)
    y = apply(unit, "elementwise", [x], x.shape[1], union="elementwise", params={"kind": 10})
    np.testing.assert_allclose(y, np.exp(x.astype(np.float64)), rtol=2e-7)


@pytest.mark.parametrize("kind", [3, 4, 5, 8, 10, 11])
def test_limits(unit: str, kind: int) -> None:
    x = np.array([[-1e30, -1000, -150, -110, 150, 1000, 1e30, np.nan]], np.float32)
    y = apply(unit, "elementwise", [x], 8, union="elementwise", params={"kind": kind})[0]
    assert np.isnan(y[7])
    with np.errstate(over="ignore"):
        expected = UNARY[kind](x[0, :7].astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(y[:7], expected, atol=1e-37)


def test_clamp_and_position_scale(unit: str) -> None:
    x = spread((7, 40)) * 10
    clamped = apply(
        unit, "elementwise", [x], 40, union="elementwise", params={"kind": 13, "alpha": -2.0, "beta": 5.0}
    )
    np.testing.assert_array_equal(clamped, np.clip(x, -2, 5))
    y = apply(unit, "elementwise", [x], 40, parts=[Part(7, 8190)], union="elementwise",
              params={"kind": 14, "alpha": 8192.0, "beta": 0.1, "gamma": 1.0})  # fmt: skip
    factor = 1 + 0.1 * np.log(1 + np.floor((np.arange(8190, 8197) + 1.0) / 8192))
    np.testing.assert_allclose(y, x * factor[:, None], rtol=3e-7)


@pytest.mark.parametrize("kind", BINARY)
@pytest.mark.parametrize("width", [4096 + 96, 64, 33])
def test_binary(unit: str, kind: int, width: int) -> None:
    a, b = spread((5, width)), RNG.standard_normal((5, width)).astype(np.float32)
    rtol = 2e-6 if kind != 33 else 2e-5
    q8 = width % 32 == 0
    result = apply(unit, "elementwise", [a, b], width, q8=q8, union="elementwise", params={"kind": kind})
    y = result[0] if q8 else result
    np.testing.assert_allclose(
        y, BINARY[kind](a.astype(np.float64), b.astype(np.float64)), rtol=rtol, atol=1e-36 if kind else 1e-6
    )
    if q8:
        for got, expected in zip(result[1:], quantise(y), strict=True):
            np.testing.assert_array_equal(got, expected)
    one = apply(unit, "elementwise", [a, b[:, :1]], width, union="elementwise", params={"kind": kind})
    np.testing.assert_allclose(
        one,
        BINARY[kind](a.astype(np.float64), b[:, :1].astype(np.float64)),
        rtol=rtol,
        atol=1e-36 if kind else 1e-6,
    )


@pytest.mark.parametrize("vector_width", [48, 16, 10, 240, 1])
def test_vector(unit: str, vector_width: int) -> None:
    a, v = spread((5, 240)), RNG.standard_normal(vector_width).astype(np.float32)
    with Rig(unit) as rig:
        x = rig.buffer(240)
        rig.step("elementwise", [x], [x], union="elementwise",
                 params={"kind": 1, "vector": rig.keep(v), "vector_width": vector_width})  # fmt: skip
        rig.start()
        rig.write(x, a)
        assert rig.run([Part(5)]) == OK
        np.testing.assert_array_equal(rig.read(x, 5), a * np.tile(v, 240 // vector_width))


def test_gpt_oss(unit: str) -> None:
    a, b = spread((5, 64)) * 3, spread((5, 64)) * 3
    y = apply(
        unit, "elementwise", [a, b], 64, union="elementwise", params={"kind": 37, "alpha": 1.702, "beta": 7.0}
    )
    g, u = np.minimum(a.astype(np.float64), 7), np.clip(b.astype(np.float64), -7, 7)
    np.testing.assert_allclose(
        y, g * sigmoid(np.float64(np.float32(1.702)) * g) * (u + 1), rtol=1e-5, atol=1e-6
    )


# -- rope and the cache ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_rot", [64, 20, 128])
def test_rope_table(unit: str, n_rot: int) -> None:
    inv_freq = (10000.0 ** (-np.arange(n_rot // 2) * 2 / n_rot)).astype(np.float32)
    starts = [0, 1, 4095, 131_070, 1_000_000]
    with Rig(unit) as rig:
        table = rig.buffer(n_rot)
        rig.step("rope_table", [], [table], union="rope",
                 params={"n_rot": n_rot, "magnitude": 1.25, "inv_freq": rig.keep(inv_freq)})  # fmt: skip
        rig.start()
        assert rig.run([Part(2, start) for start in starts]) == OK
        got = rig.read(table, 10).reshape(10, -1, 2)
    positions = np.array([p + i for p in starts for i in range(2)], np.float64)
    angle = positions[:, None] * inv_freq.astype(np.float64)
    np.testing.assert_allclose(got[..., 0], 1.25 * np.cos(angle), atol=2.5e-7)
    np.testing.assert_allclose(got[..., 1], 1.25 * np.sin(angle), atol=2.5e-7)


def rotate(x: np.ndarray, angle: np.ndarray, n_rot: int, pairing: int) -> np.ndarray:
    """x (T, heads, d), angle (T, n_rot / 2)."""
    y, half = x.copy(), n_rot // 2
    first, second = (
        (slice(0, n_rot, 2), slice(1, n_rot, 2)) if pairing == 0 else (slice(0, half), slice(half, n_rot))
    )
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., first] * s + x[..., second] * c
    return y


@pytest.mark.parametrize("pairing", [0, 1])
@pytest.mark.parametrize("kv_type", [KV_F32, KV_F16, KV_BF16])
@pytest.mark.parametrize(
    ("d", "d_v", "n_rot", "norms"), [(64, 64, 64, False), (24, 40, 16, True), (80, 16, 80, True)]
)
def test_rope_store(unit: str, pairing: int, kv_type: int, d: int, d_v: int, n_rot: int, norms: bool) -> None:
    n_head, n_kv, page = 6, 2, 16
    parts = [Part(1, 37), Part(2, 15), Part(20, 30, prompt=True)]
    pages = Pages(12, page)
    for p in parts:
        p.tables = [pages.take(p.position + p.n_rows)]
    n = sum(p.n_rows for p in parts)
    q, k = (RNG.standard_normal((n, h, d)).astype(np.float32) for h in (n_head, n_kv))
    v = RNG.standard_normal((n, n_kv, d_v)).astype(np.float32)
    inv_freq = (500.0 ** (-np.arange(n_rot // 2) * 2 / n_rot)).astype(np.float32)
    q_norm, k_norm = RNG.standard_normal((2, d)).astype(np.float32)
    with Rig(unit) as rig:
        pool = rig.pool(n_pages=12, page_size=page, n_head_kv=n_kv, d_k=d, d_v=d_v, n_layers=3, type=kv_type)
        views = [rig.buffer(a.shape[1] * a.shape[2]) for a in (q, k, v)]
        table, out = rig.buffer(n_rot), rig.buffer(n_head * d)
        params = {"n_head": n_head, "n_head_kv": n_kv, "d_k": d, "d_v": d_v, "n_rot": n_rot, "pairing": pairing,
                  "pool": pool, "layer": 1, "eps": 1e-6, "q_scale": 0.5}  # fmt: skip
        if norms:
            params |= {"q_norm": rig.keep(q_norm), "k_norm": rig.keep(k_norm), "norm_flags": 4}
        rig.step("rope_table", [], [table], union="rope",
                 params={"n_rot": n_rot, "magnitude": 1.0, "inv_freq": rig.keep(inv_freq)})  # fmt: skip
        rig.step("rope_store", [*views, table], [out], union="rope_store", params=params)
        rig.step("rope_store", [views[0], None, None, table], [views[0]], union="rope_store", params=params)
        rig.start()
        for view, a in zip(views, (q, k, v), strict=True):
            rig.write(view, a)
        assert rig.run(parts) == OK
        got = rig.read(out, n).reshape(n, n_head, d)
        np.testing.assert_array_equal(rig.read(views[0], n).reshape(got.shape), got)
        cache = rig.pools[pool]
    positions = np.concatenate([np.arange(p.position, p.position + p.n_rows) for p in parts])
    angle = positions[:, None] * inv_freq.astype(np.float64)
    if norms:
        q = norm_oracle(q.reshape(-1, d), 0, d, 1e-6, 1, q_norm, None).reshape(q.shape)
        k = norm_oracle(k.reshape(-1, d), 0, d, 1e-6, 1, k_norm, None).reshape(k.shape)
        v = norm_oracle(v.reshape(-1, d_v), 0, d_v, 1e-6, 1, None, None).reshape(v.shape)
    np.testing.assert_allclose(
        got, 0.5 * rotate(q.astype(np.float64), angle, n_rot, pairing), rtol=1e-5, atol=2e-6
    )
    k = rotate(k.astype(np.float64), angle, n_rot, pairing)
    tolerance = {KV_F32: 2e-6, KV_F16: 6e-4, KV_BF16: 5e-3}[kv_type]
    written = np.zeros(cache["k"].shape[1:4:2], bool)
    row = 0
    for p in parts:
        for i in range(p.n_rows):
            at, slot = p.tables[0][(p.position + i) // page], (p.position + i) % page
            written[at, slot] = True
            np.testing.assert_allclose(
                decode_kv(cache["k"][1, at, :, slot], kv_type), k[row], rtol=tolerance, atol=tolerance
            )
            np.testing.assert_allclose(
                decode_kv(cache["v"][1, at, :, slot], kv_type), v[row], rtol=tolerance, atol=tolerance
            )
            row += 1
    assert not cache["k"][[0, 2]].any() and not cache["v"][[0, 2]].any()
    assert not cache["k"][1].transpose(0, 2, 1, 3)[~written].any()


def test_cache_rounds_to_nearest_even(unit: str) -> None:
    """f16 and bf16 of hard cases equal NumPy's bits: ties, subnormals, overflow, NaN."""
    x = np.concatenate([
        np.array([65519, 65520, 65536, 1e9, -1e9, 6.1e-5, 6.0e-5, 5.97e-8, 2.98e-8, 2.99e-8, 1e-9, -0.0, np.inf,
                  -np.inf, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 3.3895e38, 1e-30], np.float32),
        spread((1, 44))[0],
    ]).astype(np.float32)  # fmt: skip
    for kv_type in (KV_F16, KV_BF16):
        with Rig(unit) as rig:
            pool = rig.pool(n_pages=1, d_k=64, type=kv_type)
            k = rig.buffer(64)
            params = {"n_head_kv": 1, "d_k": 64, "d_v": 64, "pool": pool, "q_scale": 1.0}
            rig.step("rope_store", [None, k, k], [], union="rope_store", params=params)
            rig.start()
            rig.write(k, x[None])
            assert rig.run([Part(1, tables=[[0]])]) == OK
            with np.errstate(over="ignore"):
                expected = encode_kv(x, kv_type)
            np.testing.assert_array_equal(rig.pools[pool]["k"][0, 0, 0, 0], expected)
            np.testing.assert_array_equal(rig.pools[pool]["v"][0, 0, 0, 0], expected)


# -- rows --------------------------------------------------------------------------------------------------------------


def f32_table(rig: Rig, unit: str, table: np.ndarray) -> Any:
    weight = ffi.new("ggfw_weight *")
    weight.data, weight.n_out, weight.n_in, weight.n_expert = rig.keep(table), *table.shape, 1
    weight.kernel = kernels_of(unit)[1, 0][0]
    rig.kept.append(weight)
    return weight


def test_embed(unit: str) -> None:
    table, positions = (RNG.standard_normal((50, 40)).astype(np.float32) for _ in range(2))
    tokens = RNG.integers(0, 50, 13)
    with Rig(unit) as rig:
        by_token, by_position, by_text = rig.buffer(40), rig.buffer(40), rig.buffer(40)
        rig.step(
            "embed", [], [by_token], union="embed", params={"scale": 3.0}, weight=f32_table(rig, unit, table)
        )
        rig.step(
            "embed",
            [],
            [by_position],
            union="embed",
            params={"scale": 1.0, "by": 1},
            weight=f32_table(rig, unit, positions),
        )
        rig.step("embed", [], [by_text], union="embed", params={"scale": 2.0, "by": 2},
                 weight=f32_table(rig, unit, table))  # fmt: skip
        rig.start()
        assert rig.run(ROWS_MANY, tokens=tokens) == OK
        np.testing.assert_array_equal(rig.read(by_token, 13), table[tokens] * np.float32(3))
        np.testing.assert_array_equal(rig.read(by_text, 13), table[tokens] * np.float32(2))
        np.testing.assert_array_equal(rig.read(by_position, 13), positions[[5, 0, 1, 2, *range(2, 11)]])
        given = RNG.standard_normal((13, 40)).astype(np.float32)
        assert rig.run(ROWS_MANY, embeddings=given) == OK
        np.testing.assert_array_equal(rig.read(by_token, 13), given * np.float32(3))
        np.testing.assert_array_equal(rig.read(by_text, 13), np.tile(table[0] * np.float32(2), (13, 1)))
        assert rig.run(ROWS_MANY) == -3  # neither tokens nor embeddings
        assert rig.run(ROWS_MANY, tokens=[50] * 13) == -3
        assert rig.run([Part(1, 50)], tokens=[0]) == -3  # no such position


def test_gather_copy_pool(unit: str) -> None:
    x = RNG.standard_normal((13, 40)).astype(np.float32)
    parts = [Part(1, 5, n_outputs=1), Part(3, 0, n_outputs=2), Part(9, 2, prompt=True, n_outputs=4)]
    out_rows = [0, 2, 3, 9, 10, 11, 12]
    with Rig(unit, max_rows=16, max_outputs=8) as rig:
        a, wide, out = rig.buffer(40), rig.buffer(100), rig.buffer(40)
        pooled = {(kind, dom): rig.buffer(40) for kind in range(3) for dom in (ROWS, OUTPUTS)}
        rig.step("copy", [a], [wide.columns(7, 40)])
        rig.step("gather", [a], [out], domain=OUTPUTS)
        for (kind, dom), view in pooled.items():
            rig.step("pool", [a if dom == ROWS else out], [view], domain=SEQUENCES, union="pooling",
                     params={"kind": kind, "input_domain": dom})  # fmt: skip
        rig.start()
        rig.write(a, x)
        assert rig.run(parts) == OK
        np.testing.assert_array_equal(rig.read(wide, 13)[:, 7:47], x)
        assert not rig.read(wide, 13)[:, 47:].any() and not rig.read(wide, 13)[:, :7].any()
        np.testing.assert_array_equal(rig.read(out, 7), x[out_rows])
        for (kind, dom), view in pooled.items():
            groups = np.split(x, [1, 4]) if dom == ROWS else np.split(x[out_rows], [1, 3])
            pick = [lambda g: g.astype(np.float64).mean(0), lambda g: g[0], lambda g: g[-1]][kind]
            np.testing.assert_allclose(rig.read(view, 3), [pick(g) for g in groups], rtol=1e-6, atol=1e-7)
        assert rig.run([Part(2, prompt=True)]) == OK  # no outputs at all
        np.testing.assert_array_equal(rig.read(pooled[0, OUTPUTS], 1), np.zeros((1, 40)))


@pytest.mark.parametrize(("width", "group"), [(576, 576), (96, 24), (7, 7), (33, 11)])
def test_reduce(unit: str, width: int, group: int) -> None:
    x = np.random.default_rng(4).standard_normal((13, width)).astype(np.float32) + 1
    wide = x.astype(np.float64).reshape(13, -1, group)
    for kind, expected in ((0, wide.mean(-1)), (1, np.sqrt((wide**2).sum(-1)))):
        params = {"kind": kind, "group": group}
        y = apply(unit, "reduce", [x], width // group, union="reduce", params=params)
        np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_copy_of_slots(unit: str) -> None:
    """Columns 2..4 of each of five slots of six columns; and back."""
    x = np.random.default_rng(3).standard_normal((13, 30)).astype(np.float32)
    with Rig(unit, max_rows=13) as rig:
        a, part, back = rig.buffer(30), rig.buffer(15), rig.buffer(30)
        rig.step("copy", [a.columns(2, 15)], [part], union="copy", params={"slots": 5, "from": 6, "to": 3})
        rig.step("copy", [part], [back.columns(2, 15)], union="copy", params={"slots": 5, "from": 3, "to": 6})
        rig.start()
        rig.write(a, x)
        assert rig.run([Part(13)]) == OK
        wanted = x.reshape(13, 5, 6)[:, :, 2:5]
        np.testing.assert_array_equal(rig.read(part, 13), wanted.reshape(13, 15))
        np.testing.assert_array_equal(rig.read(back, 13).reshape(13, 5, 6)[:, :, 2:5], wanted)
        assert not rig.read(back, 13).reshape(13, 5, 6)[:, :, [0, 1, 5]].any()


def test_copy_of_one_block_to_every_slot(unit: str) -> None:
    x = np.random.default_rng(4).standard_normal((5, 3)).astype(np.float32)
    with Rig(unit, max_rows=5) as rig:
        a, all_slots = rig.buffer(3), rig.buffer(16)
        params = {"slots": 4, "from": 0, "to": 4}
        rig.step("copy", [a], [all_slots.columns(1, 12)], union="copy", params=params)
        rig.start()
        rig.write(a, x)
        assert rig.run([Part(5)]) == OK
        np.testing.assert_array_equal(
            rig.read(all_slots, 5).reshape(5, 4, 4)[:, :, 1:], np.repeat(x[:, None], 4, 1)
        )


# -- experts -----------------------------------------------------------------------------------------------------------


def route(unit: str, logits: np.ndarray, n_used: int, **params: Any) -> tuple[np.ndarray, np.ndarray]:
    n, n_expert = logits.shape
    with Rig(unit, max_rows=n) as rig:
        a, ids, weights = rig.buffer(n_expert), rig.buffer(n_used, I32), rig.buffer(n_used)
        for name in ("selection_bias",):
            if name in params:
                params[name] = rig.keep(params[name])
        rig.step("moe_route", [a], [ids, weights], union="moe",
                 params={"n_expert": n_expert, "n_used": n_used, "scale": 1.0, "n_group": 1, **params})  # fmt: skip
        rig.start()
        rig.write(a, logits)
        assert rig.run([Part(n)]) == OK
        return rig.read(ids, n), rig.read(weights, n)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"gate": 0, "renormalise": 1}, [0.7310586, 0.2689414]),
        ({"gate": 0}, [0.6439143, 0.2368828]),
        ({"gate": 2}, [0.7310586, 0.2689414]),
    ],
)
def test_route_known_values(unit: str, params: dict[str, Any], expected: list[float]) -> None:
    ids, weights = route(unit, np.array([[1, 2, 3, 4]], np.float32), 2, **params)
    assert ids.tolist() == [[3, 2]]
    np.testing.assert_allclose(weights[0], expected, rtol=1e-6)


@pytest.mark.parametrize("gate", [0, 1, 2])
@pytest.mark.parametrize("groups", [(1, 1), (4, 2)])
def test_route(unit: str, gate: int, groups: tuple[int, int]) -> None:
    # Multiples of 1/8: there are ties, and sums of them are exact.
    logits = (np.round(RNG.standard_normal((40, 24)) * 16) / 8).astype(np.float32)
    bias = RNG.standard_normal(24).astype(np.float32) if gate == 1 else None
    extra = {} if bias is None else {"selection_bias": bias}
    ids, weights = route(unit, logits, 6, gate=gate, renormalise=1, scale=2.5, n_group=groups[0],
                         n_group_used=groups[1], **extra)  # fmt: skip
    x = logits.astype(np.float64)
    e = np.exp(x - x.max(-1, keepdims=True))
    score = [e / e.sum(-1, keepdims=True), sigmoid(x), x][gate]
    choice = (score if bias is None else score + bias).reshape(40, groups[0], -1)
    if groups[0] > 1:
        best = np.sort(choice, -1)[..., -2:].sum(-1)
        order = np.argsort(-best.round(6), -1, kind="stable")[:, groups[1] :]
        for row, out in enumerate(order):
            choice[row, out] = -np.inf
    chosen = np.argsort(-choice.reshape(40, 24).round(6), -1, kind="stable")[:, :6]
    np.testing.assert_array_equal(ids, chosen)
    w = np.take_along_axis(score, chosen, 1)
    if gate == 2:
        w = np.exp(w - w.max(-1, keepdims=True))
    np.testing.assert_allclose(weights, 2.5 * w / w.sum(-1, keepdims=True), rtol=2e-6)


def test_route_gives_valid_ids_for_nan(unit: str) -> None:
    ids, _ = route(unit, np.full((2, 8), np.nan, np.float32), 4, gate=0)
    assert sorted(ids[0].tolist()) == sorted(set(ids[0].tolist())) and ids.min() >= 0 and ids.max() < 8


@pytest.mark.parametrize("residual", [False, True])
def test_moe_sum(unit: str, residual: bool) -> None:
    x, w = RNG.standard_normal((9, 4 * 50)).astype(np.float32), RNG.random((9, 4)).astype(np.float32)
    r = RNG.standard_normal((9, 50)).astype(np.float32)
    y = apply(unit, "moe_sum", [x, w, *([r] if residual else [])], 50, union="moe", params={"n_used": 4})
    expected = np.einsum("tkn,tk->tn", x.reshape(9, 4, 50).astype(np.float64), w) + (r if residual else 0)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_bits_do_not_depend_on_threads_or_company(unit: str) -> None:
    """A row of every op above gives the same bits alone, among others, and with 1, 2 or 5 threads."""
    x = RNG.standard_normal((60, 192)).astype(np.float32)
    b = RNG.standard_normal((60, 192)).astype(np.float32)
    params = {"group": 192, "weight_width": 192, "eps": 1e-6, "scale": 1.0}
    for op, arrays, kw in [
        ("norm", [x, b], {"union": "norm", "params": params}),
        ("elementwise", [x, b], {"union": "elementwise", "params": {"kind": 33}}),
    ]:
        whole = apply(unit, op, arrays, 192, q8=True, threads=1, **kw)
        for threads in (2, 5):
            again = apply(unit, op, arrays, 192, q8=True, threads=threads, **kw)
            assert all(np.array_equal(g, w) for g, w in zip(again, whole, strict=True))
        for row in (0, 31, 59):
            alone = apply(unit, op, [a[row : row + 1] for a in arrays], 192, q8=True, **kw)
            assert all(np.array_equal(g[0], w[row]) for g, w in zip(alone, whole, strict=True))


def test_every_unit_has_every_op(unit: str) -> None:
    kernels = kernels_of(unit)
    for op in range(3, 15):
        if op == 12:
            continue  # experts' products have formats
        found = kernels[op, -1]
        assert any(k.row_classes & DECODE for k in found) and any(k.row_classes & PROMPT for k in found)
    assert F32 == 0

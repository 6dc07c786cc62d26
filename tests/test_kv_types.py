"""Cache types: every unit writes the bytes of the NumPy twin, with GGUF's meaning; models run on each type."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from executor_rig import KV_NAMES, UNITS, Part, Rig, fill_pages, rounded
from hypothesis import given, settings
from hypothesis import strategies as st

import ggfw
from ggfw import quants
from ggfw.cli.settings import KV_TYPE_NAMES
from ggfw.errors import InvalidRequest
from ggfw.execute.kv_types import GROUP, KV_TYPES, decode_groups, encode_groups, kv_row_bytes
from ggfw.verify import verify

DATA = Path(__file__).parent / "data" / "models"
QUANTISED = ["q8_0", "q4_0"]
EXTREME = [
    [0.0],
    [1e-30, -1e-30],
    [5.9e-8 * 127, 3e-7],  # scales that are the smallest f16
    [6.0e-5, -6.1e-5, 1e-3],
    [65504.0 * 127, 1.0],  # the largest scale
    [1e9, -1e9],  # beyond it: infinite
    [np.inf, 1.0],
    [np.nan, 1.0],
    [-3.0, 3.0],  # a tie: the first one is exact in q4_0
    [3.0, -3.0],
    [127.0, 0.5, 1.5, 2.5, -0.5],  # halves go to even
    [np.float32(3e38), 1.0],
]


def write(unit: str, x: np.ndarray, kv_type: str) -> np.ndarray:
    """Rows x (16, d) through rope_store into one page of K, and of V; returns the page's bytes."""
    d = x.shape[1]
    with Rig(unit) as rig:
        pool = rig.pool(n_pages=1, d_k=d, type=KV_TYPES[kv_type])
        k = rig.buffer(d)
        params = {"n_head_kv": 1, "d_k": d, "d_v": d, "pool": pool, "q_scale": 1.0}
        rig.step("rope_store", [None, k, k], [], union="rope_store", params=params)
        rig.start()
        rig.write(k, x)
        assert rig.run([Part(16, prompt=True, tables=[[0]])]) == 0
        page = rig.pools[pool]["k"].view(np.uint8).ravel().copy()
        np.testing.assert_array_equal(page, rig.pools[pool]["v"].view(np.uint8).ravel())
    return page


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("d", [8, 32, 40, 64, 100, 256])
def test_units_write_the_twins_bytes(unit: str, kv_type: str, d: int) -> None:
    rng = np.random.default_rng(d)
    x = (rng.standard_normal((16, d)) * np.exp(rng.uniform(-8, 8, (16, 1)))).astype(np.float32)
    page = write(unit, x, kv_type)
    assert len(page) == 16 * kv_row_bytes(kv_type, d)
    np.testing.assert_array_equal(page, encode_groups(x, kv_type).ravel())


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kv_type", QUANTISED)
def test_extreme_blocks(unit: str, kv_type: str) -> None:
    x = np.zeros((16, 32), np.float32)
    for row, values in zip(x, EXTREME, strict=False):
        row[: len(values)] = values
    page = write(unit, x, kv_type)
    np.testing.assert_array_equal(page, encode_groups(x, kv_type).ravel())
    with np.errstate(invalid="ignore"):
        kept = decode_groups(page.reshape(1, -1), kv_type, 32)
    assert not kept[[0, 1]].any()
    assert np.isnan(kept[6]).all() and np.isnan(kept[7]).all()  # what is no number stays visible
    finite = kept[[2, 3, 8, 9, 10]]
    assert np.isfinite(finite).all()
    if kv_type == "q8_0":
        assert not np.isfinite(kept[5, :2]).any()  # beyond the largest scale
    else:
        assert kept[8, 0] == -3 and kept[9, 0] == 3
    assert not np.isfinite(kept[11, 0])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_errors_stay_within_half_a_step(data: st.DataObject) -> None:
    """Of the block's largest magnitude: 1/254 for q8_0, 1/8 (the missing +8) for q4_0, and the scale's rounding."""
    kv_type = data.draw(st.sampled_from(QUANTISED))
    d = data.draw(st.integers(1, 130))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x = (rng.standard_normal((16, d)) * 10.0 ** data.draw(st.integers(-2, 3))).astype(np.float32)
    kept = decode_groups(encode_groups(x, kv_type), kv_type, d)
    blocks = -(-d // 32)
    error, magnitude = np.zeros((16, blocks * 32)), np.zeros((16, blocks * 32))
    error[:, :d], magnitude[:, :d] = np.abs(kept - x), np.abs(x)
    largest = magnitude.reshape(16, blocks, 32).max(-1)
    # half a step, the scale's 11 bits (2^-25 when it is subnormal) times the number, and q4_0's missing +8
    bound = largest * ((1 / 254 if kv_type == "q8_0" else 1 / 8) * 1.002 + 2**-11) + 2.0**-25 * 128
    assert (error.reshape(16, blocks, 32).max(-1) <= bound).all()


@pytest.mark.parametrize("kv_type", QUANTISED)
def test_values_are_those_of_gguf_blocks(kv_type: str) -> None:
    """The same rows in the file format of that name differ by at most one step, and almost nowhere."""
    x = np.random.default_rng(3).standard_normal((16, 256)).astype(np.float32)
    kept = decode_groups(encode_groups(x, kv_type), kv_type, 256)
    blocks = x.reshape(-1, 32)
    if kv_type == "q8_0":
        d = np.abs(blocks).max(-1) / 127
        q = np.rint(blocks / d[:, None]).astype(np.int8).view(np.uint8)
    else:
        top = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[:, None], 1)[:, 0]
        d = top / -8
        n = np.clip(np.floor(blocks / d[:, None] + 8.5), 0, 15).astype(np.uint8)
        q = n[:, :16] | n[:, 16:] << 4
    raw = np.concatenate([d.astype(np.float16)[:, None].view(np.uint8), q], 1)
    file = quants.dequantize(quants.get(kv_type.upper()), raw.ravel(), (16, 256))
    steps = np.abs(kept - file) / np.repeat(np.abs(d), 32).reshape(16, 256)
    assert steps.max() < 1.01 and (steps > 0.5).mean() < 0.02


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kv_type", KV_NAMES)
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize(("d_k", "d_v"), [(576, 512), (40, 32), (72, 20)])
def test_v_inside_k(unit: str, kv_type: str, prompt: bool, d_k: int, d_v: int) -> None:
    """Latent attention: V is the first columns of K, quantised once, and read with K's rows and scales."""
    n_head, n = 4, 45
    rng = np.random.default_rng(d_k)
    k = rng.standard_normal((n, 1, d_k)).astype(np.float32)
    q = rng.standard_normal((n, n_head, d_k)).astype(np.float32)
    first = 20 if prompt else n - 1
    with Rig(unit, max_rows=n) as rig:
        pool = rig.pool(n_pages=4, page_size=16, d_k=d_k, d_v=d_v, type=KV_TYPES[kv_type])
        fill_pages(rig.pools[pool]["k"][0], [2, 0, 3], k, KV_TYPES[kv_type])
        del rig.pools[pool]["v"]
        view, out = rig.buffer(n_head * d_k), rig.buffer(n_head * d_v)
        rig.step("attention", [view], [out, None], union="attention",
                 params={"n_head": n_head, "n_head_kv": 1, "d_k": d_k, "d_v": d_v, "pool": pool, "layer": 0,
                         "scale": d_k**-0.5})  # fmt: skip
        rig.start()
        rig.write(view, q[first:])
        assert rig.run([Part(n - first, first, prompt=prompt, tables=[[2, 0, 3]])]) == 0
        got = rig.read(out, n - first).reshape(n - first, n_head, d_v)
    kept = rounded(k, KV_TYPES[kv_type])[:, 0].astype(np.float64)
    s = np.einsum("thd,nd->htn", q[first:].astype(np.float64), kept) * d_k**-0.5
    s = np.where(np.arange(n) > np.arange(first, n)[:, None], -np.inf, s)
    e = np.exp(s - s.max(-1, keepdims=True))
    expected = np.einsum("htn,nd->thd", e / e.sum(-1, keepdims=True), kept[:, :d_v])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


# -- whole models ------------------------------------------------------------------------------------------------------

#: GQA, latent attention with V in K, windows, soft caps, sinks, shared K/V, recurrent layers.
MODELS = ["llama", "deepseek2", "gemma3", "gemma2", "gpt-oss-f32", "gemma4-e2b", "nemotron_h"]


@pytest.mark.parametrize("kv_type", QUANTISED)
@pytest.mark.parametrize("name", MODELS)
def test_models_run_on_quantised_caches(name: str, kv_type: str) -> None:
    path = DATA / f"{name}.gguf"
    ids = json.loads(path.with_suffix(".json").read_text())["prompts"]["p12"]
    found = verify(path, ids, kv_type=kv_type, threads=2)
    assert found.ok, found.first_bad
    assert found.free_run is not None and found.free_run.max_abs > 1e-4  # it was not kept as floats


@pytest.mark.parametrize("kv_type", QUANTISED)
def test_whole_and_in_steps_agree(kv_type: str) -> None:
    """A prompt read at once and the same tokens one by one: the cache holds the same values."""
    path = DATA / "llama.gguf"
    ids = json.loads(path.with_suffix(".json").read_text())["prompts"]["p12"]
    with ggfw.load(path, ctx=64, kv_type=kv_type) as model, ggfw.load(path, ctx=64, kv_type="f32") as exact:
        whole, reference = model.logits(ids), exact.logits(ids)
        greedy = model.greedy(ids, 8)
        np.testing.assert_allclose(model.logits(ids + greedy)[: len(ids)], whole, atol=1e-5)
    p = np.exp(reference - reference.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    q = np.exp(whole - whole.max(-1, keepdims=True))
    q /= q.sum(-1, keepdims=True)
    kl = (p * np.log(p / q)).sum(-1).mean()
    assert 0 < kl < (1e-3 if kv_type == "q8_0" else 0.2)


def test_pages_shrink() -> None:
    assert [kv_row_bytes(t, 64) for t in KV_TYPES] == [256, 128, 128, 68, 36]
    assert kv_row_bytes("q8_0", 40) == 68 and kv_row_bytes("q4_0", 8) == 18
    x = np.zeros((3, 2 * GROUP, 40), np.float32)
    assert encode_groups(x, "q4_0").shape == (3, 2, 16 * 36)


def test_the_command_line_knows_every_type() -> None:
    from ggfw.cli.main import cli

    assert list(KV_TYPE_NAMES) == list(KV_TYPES)
    for verb in ("run", "bench", "serve", "verify", "trace"):
        assert "q8_0|q4_0" in CliRunner().invoke(cli, [verb, "--help"]).output.replace("\n", "")


def test_an_unknown_type_is_named_with_those_known() -> None:
    with pytest.raises(InvalidRequest, match="'q5_1' is unknown; f32, f16, bf16, q8_0, q4_0 are known"):
        ggfw.load(DATA / "llama.gguf", ctx=64, kv_type="q5_1")


@pytest.mark.slow
@pytest.mark.parametrize("kv_type", ["f16", "bf16", "q8_0"])
def test_long_contexts_cost_in_proportion(smollm2_path: Path, kv_type: str) -> None:
    """32,768 positions on SmolLM2's weights: logits stay finite, and a token's cost grows with the length, no faster.

    One page of real keys and values is copied to all pages, since reading such a prompt takes minutes.
    """
    from ggfw.cache import PAGE_SIZE
    from ggfw.execute.batch import Batch, Segment, Wants
    from ggfw.model import LoadedModel

    model = LoadedModel.load(smollm2_path, ctx=32768, kv_type=kv_type)
    sequence, executor = model.cache.sequence(), model.executor
    ids = list(range(1000, 1000 + PAGE_SIZE))
    executor.step(Batch([Segment(sequence, ids, 0, True)], Wants(0)))
    page = executor.memory.read_page(0, sequence.tables[0][0])
    seconds = []
    for length in (8192, 16384, 32768):
        n = length - 16 - sequence.n_positions
        first = sequence.n_positions // PAGE_SIZE
        sequence.reserve(n)
        for target in sequence.tables[0][first:]:
            executor.memory.write_page(0, target, page)
        sequence.advance(n)
        times = []
        for i in range(16):
            begin = time.perf_counter()
            result = executor.step(Batch([Segment(sequence, [ids[i]], 1, False)]))
            times.append(time.perf_counter() - begin)
            assert result.logits is not None and np.isfinite(result.logits).all()
        seconds.append(min(times))
    sequence.close()
    model.close()
    # twice the growth for twice the positions; a quadratic cost would be four times
    assert seconds[2] - seconds[1] < 2.8 * (seconds[1] - seconds[0]), seconds

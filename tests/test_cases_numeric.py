"""Numbers that real runtimes got wrong: rotary divisors, expert weights, extreme scores, windows; on both executors."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggfw
from ggfw.cache import PAGE_SIZE, Cache
from ggfw.execute.batch import Batch, Segment, Wants
from ggfw.execute.kernel_set import KernelSet
from ggfw.execute.native import NativeExecutor
from ggfw.execute.reference import ReferenceExecutor
from ggfw.gguf import GGUF, write_gguf
from ggfw.graph import Graph, Rope, Tensor, Weights
from ggfw.graph.cache_layout import cache_layout

MODELS = Path(__file__).parent / "data" / "models"
EXECUTORS = ["reference", "native"]

Run = Callable[..., np.ndarray]


@contextmanager
def graph(executor: str, width: int, describe: Callable[[Graph, Tensor, Weights], Tensor], kv_type: str = "f32",
          tensors: dict[str, np.ndarray] | None = None, n_ctx: int = 64,
          max_rows: int = 64) -> Iterator[Run]:  # fmt: skip
    """Yield ``run(rows, chunks)``: what ``describe`` makes of given rows (T, width) of one sequence, (T, n)."""
    data = io.BytesIO()
    table = {"token_embd.weight": np.zeros((1, width), np.float32)}
    write_gguf(data, {"general.architecture": "none"}, (table | (tensors or {})).items())
    with GGUF.open(data.getvalue()) as gguf:
        w = Weights(gguf.tensors)
        g = Graph()
        g.output(hidden=g.select_outputs(describe(g, g.embed(w["token_embd"]), w)))
        layout = cache_layout(g)
        cache = Cache(layout.pools, n_ctx)
        if executor == "reference":
            runner: Any = ReferenceExecutor(g, layout, gguf, cache, max_rows=max_rows)
        else:
            runner = NativeExecutor(
                g, gguf, cache, kernels=KernelSet(), kv_type=kv_type, max_rows=max_rows, threads=2
            )

        def run(rows: np.ndarray, chunks: list[int] | None = None) -> np.ndarray:
            sequence, done, results = cache.sequence(), 0, []
            for n in chunks or [len(rows)]:
                part = np.ascontiguousarray(rows[done : done + n], np.float32)
                segment = Segment(sequence, [0] * n, n, prompt=n > 1, embeddings=part)
                hidden = runner.step(Batch([segment], Wants.HIDDEN)).hidden
                results.append(hidden.copy())
                done += n
            sequence.close()
            return np.concatenate(results)

        yield run
        runner.close()


# -- rotary frequencies ------------------------------------------------------------------------------------------------


def llama3_divisors(
    dims: int, base: float, factor: float, low: float, high: float, original: int
) -> np.ndarray:
    """What converters write into ``rope_freqs`` (Llama 3.1's scaling of wavelengths)."""
    divisors = []
    for pair in range(dims // 2):
        turns = original / (2 * math.pi * base ** (2 * pair / dims))
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


#: numeric-3
DIVISORS = [*[1.0] * 29, 1.207484, 1.553415, 2.026313, 2.694530, 3.684253, 5.257327, *[8.0] * 29]


def rotated(executor: str, factors: np.ndarray | None, n_rows: int) -> np.ndarray:
    """A head of 128 columns, (1, 0) in each pair, at positions 0 .. n_rows - 1: cos and sin of each angle."""

    def describe(g: Graph, x: Tensor, w: Weights) -> Tensor:
        return g.rope(x.heads(1, 128), Rope(128, 500000.0, "norm", w.get("rope_freqs"))).flat()

    tensors = {} if factors is None else {"rope_freqs.weight": factors}
    with graph(executor, 128, describe, tensors=tensors, n_ctx=n_rows, max_rows=n_rows) as run:
        return run(np.tile(np.array([1, 0], np.float32), (n_rows, 64)))


def test_llama3_divisors_are_those_of_the_reference_library() -> None:
    np.testing.assert_allclose(llama3_divisors(128, 500000.0, 8.0, 1.0, 4.0, 8192), DIVISORS, rtol=1e-6)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_factors_divide_the_frequencies(executor: str) -> None:
    divisors = np.array(DIVISORS, np.float32)
    plain, scaled = rotated(executor, None, 9000), rotated(executor, divisors, 9000)
    position = 8999
    angles = position * (500000.0 ** (-np.arange(64) / 64)).astype(np.float32).astype(np.float64) / divisors
    # One float32 step of a frequency is about 5e-4 radians at this position.
    np.testing.assert_allclose(scaled[position, 0::2], np.cos(angles), atol=2e-3)
    np.testing.assert_allclose(scaled[position, 1::2], np.sin(angles), atol=2e-3)
    np.testing.assert_array_equal(scaled[:, : 2 * 29], plain[:, : 2 * 29])
    assert np.abs(scaled[position, 2 * 29 :] - plain[position, 2 * 29 :]).max() > 0.1


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_factor_of_two_halves_the_positions(executor: str) -> None:
    plain, halved = rotated(executor, None, 11), rotated(executor, np.full(64, 2.0, np.float32), 11)
    np.testing.assert_allclose(halved[10], plain[5], atol=1e-6)
    assert np.abs(halved[10] - plain[10]).max() > 0.1


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_file_with_factors_has_other_logits(executor: str) -> None:
    """The same llama, with rope_freqs all 1 and all 2."""
    logits = []
    with GGUF.open(MODELS / "llama.gguf") as gguf:
        for factor in (None, 1.0, 2.0):
            factors = (
                {} if factor is None else {"rope_freqs.weight": np.full(gguf_pairs(gguf), factor, np.float32)}
            )
            data = io.BytesIO()
            write_gguf(data, gguf.metadata, [*gguf.tensors.items(), *factors.items()])
            backend = None if executor == "native" else executor
            with ggfw.load(data.getvalue(), ctx=64, threads=2, backend=backend) as model:
                logits.append(model.logits([1, 20, 30, 40, 50]))
    np.testing.assert_allclose(logits[1], logits[0], atol=1e-5)
    assert np.abs(logits[2] - logits[0]).max() > 0.1
    np.testing.assert_allclose(logits[2][0], logits[0][0], atol=1e-5)  # position 0 does not turn


def gguf_pairs(gguf: GGUF) -> int:
    return int(gguf.metadata["llama.rope.dimension_count"]) // 2


# -- expert weights ----------------------------------------------------------------------------------------------------


def expert_weights(executor: str, logits: list[list[float]], **how: Any) -> np.ndarray:
    """Weights of four experts per row, 0 for those that were not chosen: expert e writes 1 into column e."""
    experts = np.zeros((4, 32, 32), np.float32)
    experts[np.arange(4), np.arange(4), 4] = 1

    def describe(g: Graph, x: Tensor, w: Weights) -> Tensor:
        scores, _ = g.split(x, 4, 28)
        ids, weights = g.moe_route(scores, 2, **how)
        return g.moe_sum(g.moe_linear(x, ids, w["experts"]), weights)

    rows = np.zeros((len(logits), 32), np.float32)
    rows[:, :4], rows[:, 4] = logits, 1
    with graph(executor, 32, describe, tensors={"experts.weight": experts}) as run:
        return run(rows)[:, :4]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"renormalise": True}, (0.2689414, 0.7310586)),  # mixtral, qwen3moe
        ({"renormalise": False}, (0.2368828, 0.6439143)),  # qwen2moe
        ({"gate": "softmax_weight", "renormalise": False}, (0.2689414, 0.7310586)),  # gpt-oss
    ],
)
def test_expert_weights_follow_the_rule(
    executor: str, how: dict[str, Any], expected: tuple[float, float]
) -> None:
    """numeric-4, and ties go to the lower index."""
    got = expert_weights(executor, [[1, 2, 3, 4], [4, 4, 4, 4], [1, 3, 3, 3]], **how)
    np.testing.assert_allclose(got[0], [0, 0, *expected], atol=1e-6)
    assert (got[1] > 0).tolist() == [True, True, False, False]
    assert (got[2] > 0).tolist() == [False, True, True, False]


# -- attention ---------------------------------------------------------------------------------------------------------


def attend(executor: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, chunks: list[int] | None = None,
           kv_type: str = "f32", scale: float = 1.0, window: int = 0) -> np.ndarray:  # fmt: skip
    """One head over rows (T, d) of q, k and v."""
    widths = (q.shape[1], k.shape[1], v.shape[1])

    def describe(g: Graph, x: Tensor, w: Weights) -> Tensor:
        heads = [t.heads(1, t.width) for t in g.split(x, *widths)]
        return g.attention(*heads, layer=0, scale=scale, window=window)

    with graph(executor, sum(widths), describe, kv_type, n_ctx=128) as run:
        return run(np.concatenate([q, k, v], axis=1), chunks)


#: Where the two keys that count stand: on one page, and on two with a crowd of hopeless ones between them.
PLACES = [(0, 1), (PAGE_SIZE - 1, PAGE_SIZE), (1, PAGE_SIZE + 8)]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("whole", [True, False])
def test_large_negative_scores(executor: str, places: tuple[int, int], whole: bool) -> None:
    """numeric-5: scores -100000 and -99999 give 0.2689414 and 0.7310586."""
    n = places[1] + 1
    q, k, v = (np.zeros((n, 16), np.float32) for _ in range(3))
    q[:, 0], q[:, 1] = 100, 1
    k[:, 0] = -3000
    k[places, 0], k[places[1], 1] = -1000, 1
    v[places, (0, 1)] = 1
    out = attend(executor, q, k, v, None if whole else [n - 1, 1])
    np.testing.assert_allclose(out[-1, :2], [0.2689414, 0.7310586], atol=1e-6)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("n", [2, PAGE_SIZE + 3])
def test_huge_products_stay_finite(executor: str, kv_type: str, n: int) -> None:
    """numeric-5: q and k of 128 elements, all 300: a product of 11520000 before scaling."""
    q = k = np.full((n, 128), 300, np.float32)
    v = np.tile(np.arange(n, dtype=np.float32)[:, None] % 2, (1, 128))
    for scale in (1.0, 128**-0.5):
        out = attend(executor, q, k, v, kv_type=kv_type, scale=scale)
        expected = [np.mean(np.arange(p + 1) % 2) for p in range(n)]
        np.testing.assert_allclose(out, np.tile(np.array(expected)[:, None], (1, 128)), atol=2e-3)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("n", [2, PAGE_SIZE + 3])
@pytest.mark.parametrize("whole", [True, False])
def test_sums_of_large_halves_are_kept_in_float(executor: str, n: int, whole: bool) -> None:
    """numeric-5: two equal scores with f16 values of 60000 give 60000, although their sum passes 65504."""
    q = k = np.zeros((n, 16), np.float32)
    v = np.full((n, 16), 60000, np.float32)
    out = attend(executor, q, k, v, None if whole else [1] * n, kv_type="f16")
    np.testing.assert_allclose(out, 60000, rtol=1e-5)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("chunks", [[7], [3, 4], [1] * 7])
def test_a_window_counts_the_token_itself(executor: str, chunks: list[int]) -> None:
    """kv-context-2: window 4, equal scores, one-hot values: query p sees max(0, p - 3) .. p."""
    q = k = np.zeros((7, 16), np.float32)
    v = np.eye(7, 16, dtype=np.float32)
    out = attend(executor, q, k, v, chunks, window=4)
    for p in range(7):
        expected = np.zeros(16)
        expected[max(0, p - 3) : p + 1] = 1 / min(p + 1, 4)
        np.testing.assert_allclose(out[p], expected, atol=1e-6)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("chunks", [[60, 9], [33, 36], [1] * 69])
def test_a_window_may_begin_on_another_page(executor: str, chunks: list[int]) -> None:
    n = sum(chunks)
    q = k = np.zeros((n, 16), np.float32)
    v = np.tile(np.arange(n, dtype=np.float32)[:, None], (1, 16))
    out = attend(executor, q, k, v, chunks, window=6)
    np.testing.assert_allclose(out[:, 0], [np.mean(range(max(0, p - 5), p + 1)) for p in range(n)], rtol=1e-6)

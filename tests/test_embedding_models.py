"""Encoders without a reference file against plain NumPy in float64; pooling; decoders that see both ways."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import metadata, vocabulary

import ggfw
from ggfw.errors import GraphError, InvalidRequest, ModelFileError, UnsupportedError
from ggfw.evaluate import evaluate, pooled
from ggfw.execute.batch import Wants
from ggfw.gguf import GGUF, write_gguf
from ggfw.graph import Graph, WeightRef

MODELS = Path(__file__).parent / "data" / "models"
EXECUTORS = ["reference", "native"]
N_EMBD, N_HEAD, D, N_FF, N_LAYER, N_EXPERT, N_CTX, EPS = 32, 4, 8, 48, 4, 4, 64, 1e-5
N_VOCAB = len(vocabulary()["tokenizer.ggml.tokens"])
PROMPTS = [[1, 40, 41, 99, 7, 200, 13], [5], list(range(60, 110))]
Arrays = dict[str, np.ndarray]


# -- models ------------------------------------------------------------------------------------------------------------


def matrix(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def around(rng: np.random.Generator, middle: float, *shape: int) -> np.ndarray:
    return (middle + 0.3 * rng.standard_normal(shape)).astype(np.float32)


def encoder(kind: str) -> tuple[dict[str, Any], Arrays]:
    """Metadata and tensors of a nomic-bert, a nomic-bert-moe or a bert with a classifier."""
    rng = np.random.default_rng(7)
    t: Arrays = {"token_embd.weight": rng.standard_normal((N_VOCAB, N_EMBD)).astype(np.float32)}
    t["token_types.weight"] = matrix(rng, 2, N_EMBD)
    if kind == "bert":
        t["position_embd.weight"] = matrix(rng, N_CTX, N_EMBD)

    def norm(name: str) -> None:
        t[f"{name}.weight"], t[f"{name}.bias"] = around(rng, 1, N_EMBD), around(rng, 0, N_EMBD)

    norm("token_embd_norm")
    for i in range(N_LAYER):
        b = f"blk.{i}."
        t[f"{b}attn_qkv.weight"] = 2 * matrix(rng, 3 * N_EMBD, N_EMBD)
        t[f"{b}attn_output.weight"] = matrix(rng, N_EMBD, N_EMBD)
        if kind != "nomic-bert":
            t[f"{b}attn_qkv.bias"], t[f"{b}attn_output.bias"] = (
                around(rng, 0, 3 * N_EMBD),
                around(rng, 0, N_EMBD),
            )
        norm(f"{b}attn_output_norm")
        if kind == "nomic-bert-moe" and i % 2 == 1:
            t[f"{b}ffn_gate_inp.weight"] = 4 * matrix(rng, N_EXPERT, N_EMBD)
            t[f"{b}ffn_up_exps.weight"] = matrix(rng, N_EXPERT, N_FF, N_EMBD)
            t[f"{b}ffn_down_exps.weight"] = matrix(rng, N_EXPERT, N_EMBD, N_FF)
        else:
            t[f"{b}ffn_up.weight"], t[f"{b}ffn_down.weight"] = (
                matrix(rng, N_FF, N_EMBD),
                matrix(rng, N_EMBD, N_FF),
            )
            if kind == "nomic-bert":
                t[f"{b}ffn_gate.weight"] = matrix(rng, N_FF, N_EMBD)
            else:
                t[f"{b}ffn_up.bias"], t[f"{b}ffn_down.bias"] = around(rng, 0, N_FF), around(rng, 0, N_EMBD)
        norm(f"{b}layer_output_norm")
    keys: dict[str, Any] = {
        "block_count": N_LAYER, "context_length": N_CTX, "embedding_length": N_EMBD, "feed_forward_length": N_FF,
        "attention.head_count": N_HEAD, "attention.layer_norm_epsilon": EPS, "attention.causal": False,
        "pooling_type": 1,
    }  # fmt: skip
    if kind != "bert":
        keys["rope.freq_base"] = 1000.0
    if kind == "nomic-bert-moe":
        keys |= {"expert_count": N_EXPERT, "expert_used_count": 2, "moe_every_n_layers": 2}
    return {f"{kind}.{k}": v for k, v in keys.items()}, t


WINDOW = 12


def gemma() -> tuple[dict[str, Any], Arrays]:
    """Metadata and tensors of a gemma-embedding with two dense layers; layers 0, 1 and 3 see a window."""
    rng = np.random.default_rng(8)
    t: Arrays = {
        "token_embd.weight": matrix(rng, N_VOCAB, N_EMBD),
        "output_norm.weight": around(rng, 1, N_EMBD),
    }
    t["dense_2.weight"], t["dense_3.weight"] = matrix(rng, 40, N_EMBD), matrix(rng, N_EMBD, 40)
    for i in range(N_LAYER):
        b = f"blk.{i}."
        for name, n in (("attn_norm", N_EMBD), ("attn_q_norm", D), ("attn_k_norm", D), ("ffn_norm", N_EMBD),
                        ("post_attention_norm", N_EMBD), ("post_ffw_norm", N_EMBD)):  # fmt: skip
            t[f"{b}{name}.weight"] = around(rng, 1, n)
        for name, shape in (("attn_q", (N_EMBD, N_EMBD)), ("attn_k", (D, N_EMBD)), ("attn_v", (D, N_EMBD)),
                            ("attn_output", (N_EMBD, N_EMBD)), ("ffn_gate", (N_FF, N_EMBD)),
                            ("ffn_up", (N_FF, N_EMBD)), ("ffn_down", (N_EMBD, N_FF))):  # fmt: skip
            t[f"{b}{name}.weight"] = matrix(rng, *shape)
    keys = {
        "block_count": N_LAYER, "context_length": N_CTX, "embedding_length": N_EMBD, "feed_forward_length": N_FF,
        "attention.head_count": N_HEAD, "attention.head_count_kv": 1, "attention.key_length": D,
        "attention.value_length": D, "attention.layer_norm_rms_epsilon": EPS, "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": 3, "rope.freq_base": 1000000.0, "pooling_type": 1,
    }  # fmt: skip
    return {f"gemma-embedding.{k}": v for k, v in keys.items()}, t


def file(kind: str, model: tuple[dict[str, Any], Arrays], **keys: Any) -> bytes:
    """The model as a file; ``keys`` of the architecture are added."""
    meta = {**metadata(kind), **model[0], **{f"{kind}.{k}": v for k, v in keys.items()}}
    out = io.BytesIO()
    write_gguf(out, meta, list(model[1].items()))
    return out.getvalue()


# -- the same in float64 -----------------------------------------------------------------------------------------------


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight + bias


def rms_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rotated(x: np.ndarray, base: float) -> np.ndarray:
    """(T, n_head, D), pairs (i, i + D / 2)."""
    angle = np.arange(len(x))[:, None] * base ** (-2 * np.arange(D // 2) / D)
    turn = np.exp(1j * angle)[:, None]
    z = (x[..., : D // 2] + 1j * x[..., D // 2 :]) * turn
    return np.concatenate([z.real, z.imag], -1)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, side: int | None = None) -> np.ndarray:
    """All positions, or those at most ``side`` away."""
    k, v = (np.broadcast_to(t, (len(t), N_HEAD, D)) for t in (k, v))
    s = np.einsum("thd,nhd->htn", q, k) / np.sqrt(D)
    if side is not None:
        at = np.arange(len(q))
        s = np.where(abs(at[:, None] - at[None]) > side, -np.inf, s)
    return np.einsum("htn,nhd->thd", softmax(s), v).reshape(len(q), -1)


def run_encoder(kind: str, t: Arrays, ids: list[int]) -> np.ndarray:
    w = {name: array.astype(np.float64) for name, array in t.items()}
    x = w["token_embd.weight"][ids] + w["token_types.weight"][0]
    if kind == "bert":
        x = x + w["position_embd.weight"][: len(ids)]
    x = layer_norm(x, w["token_embd_norm.weight"], w["token_embd_norm.bias"])
    for i in range(N_LAYER):
        b = {name.removeprefix(f"blk.{i}."): a for name, a in w.items()}
        qkv = x @ b["attn_qkv.weight"].T + b.get("attn_qkv.bias", 0)
        q, k, v = (part.reshape(-1, N_HEAD, D) for part in np.split(qkv, 3, -1))
        if kind != "bert":
            q, k = rotated(q, 1000.0), rotated(k, 1000.0)
        a = attention(q, k, v) @ b["attn_output.weight"].T + b.get("attn_output.bias", 0)
        x = layer_norm(x + a, b["attn_output_norm.weight"], b["attn_output_norm.bias"])
        if "ffn_gate_inp.weight" in b:
            p = softmax(x @ b["ffn_gate_inp.weight"].T)
            h = np.zeros_like(x)
            for row, chosen in enumerate(np.argsort(-p, -1)[:, :2]):
                for e in chosen:
                    up = gelu(b["ffn_up_exps.weight"][e] @ x[row])
                    h[row] += p[row, e] * (b["ffn_down_exps.weight"][e] @ up)
        elif "ffn_gate.weight" in b:
            h = (silu(x @ b["ffn_gate.weight"].T) * (x @ b["ffn_up.weight"].T)) @ b["ffn_down.weight"].T
        else:
            h = (
                gelu(x @ b["ffn_up.weight"].T + b["ffn_up.bias"]) @ b["ffn_down.weight"].T
                + b["ffn_down.bias"]
            )
        x = layer_norm(x + h, b["layer_output_norm.weight"], b["layer_output_norm.bias"])
    return x


def run_gemma(t: Arrays, ids: list[int]) -> np.ndarray:
    w = {name: array.astype(np.float64) for name, array in t.items()}
    x = w["token_embd.weight"][ids] * np.sqrt(N_EMBD)
    for i in range(N_LAYER):
        b = {name.removeprefix(f"blk.{i}."): a for name, a in w.items()}
        local = i % 3 < 2
        base = 10000.0 if local else 1000000.0
        h = rms_norm(x, b["attn_norm.weight"])
        q, k, v = ((h @ b[f"attn_{n}.weight"].T).reshape(len(ids), -1, D) for n in "qkv")
        q = rotated(rms_norm(q, b["attn_q_norm.weight"]), base)
        k = rotated(rms_norm(k, b["attn_k_norm.weight"]), base)
        a = attention(q, k, v, WINDOW // 2 if local else None) @ b["attn_output.weight"].T
        x = x + rms_norm(a, b["post_attention_norm.weight"])
        h = rms_norm(x, b["ffn_norm.weight"])
        h = (gelu(h @ b["ffn_gate.weight"].T) * (h @ b["ffn_up.weight"].T)) @ b["ffn_down.weight"].T
        x = x + rms_norm(h, b["post_ffw_norm.weight"])
    return rms_norm(x, w["output_norm.weight"])


# -- comparisons -------------------------------------------------------------------------------------------------------


def results(
    data: bytes | Path, executor: str, wants: Wants, prompts: list[list[int]] = PROMPTS, **options: Any
) -> list[np.ndarray]:
    """Hidden states or pooled vectors, which are the same alone and together."""
    backend = None if executor == "native" else executor
    with ggfw.load(data, backend=backend, threads=2, n_parallel=3, **options) as model:
        found = []
        for together in (False, True):
            job: Any = (
                pooled(model.loaded, prompts, together=together)
                if wants & Wants.POOLED
                else evaluate(model.loaded, prompts, wants, together=together)
            )
            found.append(model.engine.run(job).result())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5 if executor == "reference" else 0)
    return found[0]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", ["bert", "nomic-bert", "nomic-bert-moe"])
def test_encoders(kind: str, executor: str) -> None:
    model = encoder(kind)
    wanted = [run_encoder(kind, model[1], ids) for ids in PROMPTS]
    for got, want in zip(results(file(kind, model), executor, Wants.HIDDEN), wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5)
    for got, want in zip(results(file(kind, model), executor, Wants.POOLED), wanted, strict=True):
        np.testing.assert_allclose(got, want.mean(0), atol=2e-5)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_gemma_embedding(executor: str) -> None:
    model = gemma()
    data = file("gemma-embedding", model)
    wanted = [run_gemma(model[1], ids) for ids in PROMPTS]
    for got, want in zip(results(data, executor, Wants.HIDDEN), wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=5e-5)
    dense = model[1]["dense_3.weight"].astype(np.float64) @ model[1]["dense_2.weight"]
    for got, want in zip(results(data, executor, Wants.POOLED), wanted, strict=True):
        np.testing.assert_allclose(got, dense @ want.mean(0), atol=5e-5)


PICK: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    0: lambda x: x.mean(0), 1: lambda x: x.mean(0), 2: lambda x: x[0], 3: lambda x: x[-1],
}  # fmt: skip


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("number", PICK)
def test_pooling_is_the_model_s_own(number: int, executor: str) -> None:
    model = encoder("bert")
    wanted = [PICK[number](run_encoder("bert", model[1], ids)) for ids in PROMPTS]
    got = results(file("bert", model, pooling_type=number), executor, Wants.POOLED)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("hidden_layer", [True, False])
def test_rerankers_give_scores(hidden_layer: bool, executor: str) -> None:
    """Wout tanh(Wcls x0 + b) + b' of the first row, or of the mean where the file says so; not scaled to length 1."""
    model = encoder("bert")
    rng = np.random.default_rng(9)
    out, out_bias = matrix(rng, 1, N_EMBD), around(rng, 0, 1)
    model[1].update({"cls.output.weight": out, "cls.output.bias": out_bias})
    cls, cls_bias = matrix(rng, N_EMBD, N_EMBD), around(rng, 0, N_EMBD)
    if hidden_layer:
        model[1].update({"cls.weight": cls, "cls.bias": cls_bias})

    def score(x: np.ndarray) -> np.ndarray:
        return out @ (np.tanh(cls @ x + cls_bias) if hidden_layer else x) + out_bias

    for keys, pick in (({}, PICK[2]), ({"classifier.pooling_type": 1}, PICK[1])):
        data = file("bert", model, pooling_type=4, **keys)
        for got, ids in zip(results(data, executor, Wants.POOLED), PROMPTS, strict=True):
            np.testing.assert_allclose(got, score(pick(run_encoder("bert", model[1], ids))), atol=2e-5)
    with ggfw.load(data, backend=None if executor == "native" else executor, threads=1) as loaded:
        ids = loaded.tokenize("ab")
        wanted = score(run_encoder("bert", model[1], ids).mean(0))
        np.testing.assert_allclose(loaded.embed("ab"), wanted, atol=2e-5)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_decoders_whose_file_says_that_they_see_both_ways(executor: str) -> None:
    """attention.causal = false: the first row depends on the last one, and the model does not generate."""

    def of(causal: bool, ids: list[int]) -> np.ndarray:
        with GGUF.open(MODELS / "llama.gguf") as gguf:
            meta = {**gguf.metadata, "llama.attention.causal": causal, "llama.pooling_type": 3}
            out = io.BytesIO()
            write_gguf(out, meta, list(gguf.tensors.items()))
        return results(out.getvalue(), executor, Wants.HIDDEN, [ids], ctx=64)[0]

    one, other = [5, 6, 7, 8], [5, 6, 7, 9]
    assert np.array_equal(of(True, one)[:3], of(True, other)[:3])
    assert np.abs(of(False, one)[0] - of(False, other)[0]).max() > 1e-2


# -- limits and errors -------------------------------------------------------------------------------------------------


def test_positions_end_where_their_table_ends() -> None:
    with ggfw.load(file("bert", encoder("bert")), ctx=500, threads=1) as model:
        assert model.n_ctx == N_CTX
        assert model.hidden([5] * N_CTX).shape == (N_CTX, N_EMBD)
        with pytest.raises(ggfw.ContextLengthExceeded):
            model.hidden([5] * (N_CTX + 1))
        with pytest.raises(InvalidRequest, match="embeddings"):
            model.generate("ab")
        with pytest.raises(InvalidRequest, match="no logits"):
            model.logits([5])


def test_whole_prompts_need_no_larger_ubatch() -> None:
    with ggfw.load(file("bert", encoder("bert")), ubatch=16, threads=1) as model:
        assert model.hidden([5] * N_CTX).shape == (N_CTX, N_EMBD)


@pytest.mark.parametrize(
    ("kind", "keys", "said"),
    [
        ("bert", {"pooling_type": 9}, "pooling_type is 9"),
        ("bert", {"attention.head_count": 3}, r"blk\.0\.attn_qkv\.weight has 96 rows"),
        ("nomic-bert-moe", {"expert_count": 8}, r"blk\.1\.ffn_gate_inp\.weight has 4 rows.*expert_count 8"),
        ("nomic-bert-moe", {"moe_every_n_layers": 3}, r"blk\.2\.ffn_up\.weight.*|blk\.3\.ffn_up\.weight"),
        (
            "bert",
            {"moe_every_n_layers": 2},
            r"blk\.1\.ffn_gate_inp\.weight is missing; bert\.moe_every_n_layers 2",
        ),
    ],
)
def test_contradictions_name_key_and_tensor(kind: str, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFileError, match=said):
        ggfw.load(file(kind, encoder(kind), **keys), threads=1)


def test_a_reranker_without_classifier_is_refused() -> None:
    with GGUF.open(MODELS / "llama.gguf") as gguf:
        out = io.BytesIO()
        write_gguf(out, {**gguf.metadata, "llama.pooling_type": 4}, list(gguf.tensors.items()))
    with (
        ggfw.load(out.getvalue(), ctx=64, threads=1) as model,
        pytest.raises(UnsupportedError, match="reranker"),
    ):
        model.embed("ab")


def test_shapes_of_pooling() -> None:
    g = Graph()
    x = g.embed(WeightRef("token_embd.weight", (10, 8), 0))
    one = g.pool(x, "mean")
    assert one.shape == (8,)
    with pytest.raises(GraphError, match="already"):
        g.pool(one, "mean")
    with pytest.raises(GraphError, match="max.* is unknown"):
        g.pool(x, "max")
    with pytest.raises(GraphError, match="rows of different kinds"):
        g.add(x, one)
    with pytest.raises(GraphError, match="one row per sequence"):
        g.output(hidden=g.select_outputs(x), pooled=x)
    with pytest.raises(GraphError, match="symmetric"):
        q = x.heads(1, 8)
        g.attention(q, q, q, layer=0, scale=1.0, symmetric=True, window=4)

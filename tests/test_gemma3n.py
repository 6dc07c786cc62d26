"""gemma3n against a plain NumPy pass in float64, written from the description alone: there is no reference file."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np
import pytest
from tiny_models import metadata

import ggfw
from ggfw.gguf import write_gguf

N_EMBD, N_HEAD, D, N_FF, N_PLE, N_LAYER, N_STREAM, WINDOW, EPS = 32, 2, 16, 48, 8, 5, 4, 6, 1e-6
LOCAL = [True, False, True, True, False]
#: Layers 3 and 4 attend the caches of layers 2 (a window too) and 1.
SOURCE = [0, 1, 2, 2, 1]
SPARSE = [1.2, 0.5, -np.inf, 1.6448533, -np.inf]
IDS = [1, 40, 41, 99, 7, 200, 13, 250, 40, 41, 42, 43, 17, 18, 19, 20]


@cache
def tensors() -> dict[str, np.ndarray]:
    """Random weights, norm weights around 1."""
    rng = np.random.default_rng(5)
    found: dict[str, np.ndarray] = {}

    def matrix(name: str, *shape: int) -> None:
        found[f"{name}.weight"] = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def norm(name: str, n: int) -> None:
        found[f"{name}.weight"] = (1 + 0.3 * rng.standard_normal(n)).astype(np.float32)

    n_vocab = len(metadata("gemma3n")["tokenizer.ggml.tokens"])
    matrix("token_embd", n_vocab, N_EMBD)
    matrix("per_layer_token_embd", n_vocab, N_LAYER * N_PLE)
    matrix("per_layer_model_proj", N_LAYER * N_PLE, N_EMBD)
    norm("per_layer_proj_norm", N_PLE)
    matrix("altup_proj", N_STREAM - 1, N_EMBD, N_EMBD)
    matrix("altup_unembd_proj", N_STREAM - 1, N_EMBD, N_EMBD)
    norm("output_norm", N_EMBD)
    for i in range(N_LAYER):
        b = f"blk.{i}."
        for name, shape in (("attn_q", (N_HEAD * D, N_EMBD)), ("attn_k", (D, N_EMBD)), ("attn_v", (D, N_EMBD)),
                            ("attn_output", (N_EMBD, N_HEAD * D)), ("ffn_gate", (N_FF, N_EMBD)),
                            ("ffn_up", (N_FF, N_EMBD)), ("ffn_down", (N_EMBD, N_FF)), ("inp_gate", (N_PLE, N_EMBD)),
                            ("proj", (N_EMBD, N_PLE)), ("laurel_l", (4, N_EMBD)), ("laurel_r", (N_EMBD, 4)),
                            ("altup_router", (N_STREAM, N_EMBD)), ("altup_correct_coef", (N_STREAM, N_STREAM)),
                            ("altup_predict_coef", (N_STREAM**2, N_STREAM))):  # fmt: skip
            matrix(b + name, *shape)
        found[f"{b}altup_router.weight"] *= N_EMBD  # else all mixtures are near nothing
        for name, n in (("attn_norm", N_EMBD), ("attn_q_norm", D), ("attn_k_norm", D), ("post_attention_norm", N_EMBD),
                        ("ffn_norm", N_EMBD), ("post_ffw_norm", N_EMBD), ("post_norm", N_EMBD),
                        ("laurel_post_norm", N_EMBD), ("altup_router_norm", N_EMBD),
                        ("altup_correct_scale", N_EMBD)):  # fmt: skip
            norm(b + name, n)
    return found


@cache
def model_file() -> bytes:
    keys: dict[str, Any] = {
        "context_length": 256, "embedding_length": N_EMBD, "block_count": N_LAYER, "feed_forward_length": N_FF,
        "attention__head_count": N_HEAD, "attention__head_count_kv": 1, "attention__key_length": D,
        "attention__value_length": D, "attention__layer_norm_rms_epsilon": EPS, "attention__sliding_window": WINDOW,
        "attention__sliding_window_pattern": LOCAL, "attention__shared_kv_layers": 2, "rope__freq_base": 1e6,
        "altup__num_inputs": N_STREAM, "altup__active_idx": 0, "embedding_length_per_layer_input": N_PLE,
        "activation_sparsity_scale": [float(s) for s in SPARSE],
    }  # fmt: skip
    out = io.BytesIO()
    write_gguf(out, metadata("gemma3n", **keys), tensors().items())
    return out.getvalue()


def forward(ids: list[int]) -> np.ndarray:
    """Logits (T, n_vocab) in float64."""
    w = {name.removesuffix(".weight"): t.astype(np.float64) for name, t in tensors().items()}
    n = len(ids)

    def rms(x: np.ndarray, weight: np.ndarray | float = 1.0) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight

    def gelu(x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def rotate(x: np.ndarray, base: float) -> np.ndarray:  # (T, heads, D)
        angle = np.arange(n)[:, None] * base ** (-2 * np.arange(D // 2) / D)
        z = (x[..., : D // 2] + 1j * x[..., D // 2 :]) * np.exp(1j * angle)[:, None]
        return np.concatenate([z.real, z.imag], -1)

    def length(x: np.ndarray) -> np.ndarray:
        return np.sqrt((x**2).sum(-1, keepdims=True))

    x = w["token_embd"][ids] * np.sqrt(N_EMBD)
    own = w["per_layer_token_embd"][ids].reshape(n, N_LAYER, N_PLE) * np.sqrt(N_PLE)
    projected = (x @ w["per_layer_model_proj"].T / np.sqrt(N_EMBD)).reshape(n, N_LAYER, N_PLE)
    inputs = (own + rms(projected, w["per_layer_proj_norm"])) / np.sqrt(2)
    streams = [x]
    for projection in w["altup_proj"]:
        y = x @ projection.T
        streams.append(y * length(x) / length(y))
    s = np.stack(streams)  # (4, T, n_embd)
    kept = {}
    for i in range(N_LAYER):
        b = {name.removeprefix(f"blk.{i}."): t for name, t in w.items() if name.startswith(f"blk.{i}.")}

        def router(x: np.ndarray, b: dict[str, np.ndarray] = b) -> np.ndarray:
            return np.tanh(rms(x, b["altup_router_norm"]) / N_EMBD @ b["altup_router"].T)

        mixture = (router(s[0]) @ b["altup_predict_coef"].T).reshape(n, N_STREAM, N_STREAM)
        predicted = s + np.einsum("tkj,jte->kte", mixture, s)
        h = rms(predicted[0], b["attn_norm"])
        laurel = h + rms(h @ b["laurel_l"].T @ b["laurel_r"].T, b["laurel_post_norm"])
        base = 1e4 if LOCAL[i] else 1e6
        q = rotate(rms((h @ b["attn_q"].T).reshape(n, N_HEAD, D), b["attn_q_norm"]), base)
        if SOURCE[i] == i:
            k = rotate(rms(h @ b["attn_k"].T, b["attn_k_norm"])[:, None], base)[:, 0]
            kept[i] = (k, rms(h @ b["attn_v"].T))
        k, v = kept[SOURCE[i]]
        distance = np.arange(n)[:, None] - np.arange(n)[None, :]
        hidden = (distance < 0) | (LOCAL[i] & (distance >= WINDOW))
        scores = np.where(hidden, -np.inf, np.einsum("thd,sd->hts", q, k))
        p = np.exp(scores - scores.max(-1, keepdims=True))
        a = np.einsum("hts,sd->thd", p / p.sum(-1, keepdims=True), v).reshape(n, -1)
        attended = predicted[0] + rms(a @ b["attn_output"].T, b["post_attention_norm"])
        x = (attended + laurel) / np.sqrt(2)
        h = rms(x, b["ffn_norm"])
        gate = h @ b["ffn_gate"].T
        if SPARSE[i] > 0:
            cutoff = gate.mean(-1, keepdims=True) + gate.std(-1, ddof=1, keepdims=True) * SPARSE[i]
            gate = np.maximum(gate - cutoff, 0)
        y = x + rms(gelu(gate) * (h @ b["ffn_up"].T) @ b["ffn_down"].T, b["post_ffw_norm"])
        share = router(y) @ b["altup_correct_coef"].T + 1
        s = predicted + (y - predicted[0]) * share.T[..., None]
        first = gelu(s[0] * b["altup_correct_scale"] @ b["inp_gate"].T) * inputs[:, i]
        s[1:] += rms(first @ b["proj"].T, b["post_norm"])
    x = s[0].copy()
    for projection, stream in zip(w["altup_unembd_proj"], s[1:], strict=True):
        y = stream @ projection.T
        x += y * length(s[0]) / length(y)
    logits = rms(x / N_STREAM, w["output_norm"]) @ w["token_embd"].T
    return 30 * np.tanh(logits / 30)


@pytest.mark.parametrize("executor", ["reference", "native"])
@pytest.mark.parametrize("chunk", [None, 1, 3, 7])
def test_logits_are_those_of_the_plain_pass(executor: str, chunk: int | None) -> None:
    expected = forward(IDS)
    assert expected.std() > 0.5
    with ggfw.load(
        model_file(), ctx=64, threads=2, backend=None if executor == "native" else executor
    ) as model:
        np.testing.assert_allclose(model.logits(IDS, chunk=chunk), expected, atol=5e-4)


def test_only_key_norms_of_layers_without_a_cache_are_left_over() -> None:
    with ggfw.load(model_file(), ctx=64, threads=2) as model:
        unused = set(model.loaded.unused_tensors)
    assert unused == {"blk.3.attn_k_norm.weight", "blk.4.attn_k_norm.weight"}

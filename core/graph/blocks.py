"""Blocks that several architectures have in exactly the same form: functions over a graph, imported by plugins.

Each takes the graph, its input and ``b``, the tensors of one layer (:meth:`ggfw.graph.Weights.block`), and returns
tensors; none adds to the residual stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ggfw.errors import ModelFileError
from ggfw.graph.builder import Graph
from ggfw.graph.hparams import Hparams
from ggfw.graph.tensor import Tensor
from ggfw.graph.weights import WeightRef, Weights

__all__ = [
    "expect_rows",
    "expert_gate",
    "experts",
    "fused_swiglu",
    "gated_ffn",
    "gated_shared_expert",
    "heads",
    "moe",
    "per_layer_inputs",
    "qkv",
    "swiglu",
    "windowed",
]

#: An activation function of the graph, such as ``g.silu``.
Activation = Callable[[Tensor], Tensor]
#: A function of gate and up.
Gated = Callable[[Tensor, Tensor], Tensor]
#: Values of ``expert_gating_func``.
GATE_NUMBERS = {"softmax": 1, "sigmoid": 2, "softmax_weight": 3}


# -- attention -------------------------------------------------------------------------------------------------------


def qkv(
    g: Graph, h: Tensor, b: Weights, n_head: int, n_head_kv: int, d_k: int, d_v: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Project to queries (n_head, d_k), keys (n_head_kv, d_k) and values (n_head_kv, d_v), biases where they exist.

    The three matrices are ``attn_q``, ``attn_k`` and ``attn_v``, or rows of one ``attn_qkv`` in this order.

    Raises:
        ModelFileError: a matrix has other rows than heads times columns per head.
    """
    if "attn_qkv" not in b:
        q = heads(g, h, b, "attn_q", n_head, d_k)
        k = heads(g, h, b, "attn_k", n_head_kv, d_k)
        return q, k, heads(g, h, b, "attn_v", n_head_kv, d_v)
    weight = b["attn_qkv"]
    widths = (n_head * d_k, n_head_kv * d_k, n_head_kv * d_v)
    why = f"attention.head_count {n_head}, head_count_kv {n_head_kv} and heads of {d_k} and {d_v} columns"
    expect_rows(weight, sum(widths), why)
    parts = g.split(g.linear(h, weight, b.get("attn_qkv.bias")), *widths)
    if "attn_q.bias" in b:  # some converters fuse the matrices and leave the biases apart
        parts = tuple(g.add(t, b[f"attn_{x}.bias"]) for x, t in zip("qkv", parts, strict=True))
    return parts[0].heads(n_head, d_k), parts[1].heads(n_head_kv, d_k), parts[2].heads(n_head_kv, d_v)


def heads(g: Graph, h: Tensor, b: Weights, name: str, n_head: int, head_dim: int) -> Tensor:
    """Project to heads (n_head, head_dim) with the matrix ``name``, and its bias where it exists.

    Raises:
        ModelFileError: the matrix has not n_head * head_dim rows.
    """
    key = "attention.head_count" if name == "attn_q" else "attention.head_count_kv"
    expect_rows(b[name], n_head * head_dim, f"{key} {n_head} and heads of {head_dim} columns")
    return g.linear(h, b[name], b.get(f"{name}.bias")).heads(n_head, head_dim)


def expect_rows(weight: WeightRef, n: int, why: str) -> None:
    """Check a matrix against what the metadata say.

    Raises:
        ModelFileError: ``weight`` (n_out, n_in) has not ``n`` rows; the message says ``why`` it should.
    """
    if weight.shape[0] != n:
        raise ModelFileError(f"tensor {weight.name} has {weight.shape[0]} rows; {why} ask for {n}")


def windowed(hp: Hparams, period: int) -> tuple[bool, ...]:
    """Return which layers see a window only.

    Args:
        hp: ``attention.sliding_window_pattern`` is a flag per layer, or a period n: all layers but each n-th.
        period: where the file has no such key.
    """
    pattern: Any = hp.get("attention.sliding_window_pattern", period)
    if hasattr(pattern, "__len__"):
        return tuple(map(bool, hp.per_layer("attention.sliding_window_pattern")))
    return tuple(pattern == 0 or i % pattern < pattern - 1 for i in range(hp.n_layer))


# -- feed-forward networks -------------------------------------------------------------------------------------------


def gated_ffn(g: Graph, h: Tensor, b: Weights, activation: Activation, kind: str = "") -> Tensor:
    """Wdown (activation(Wgate h) * Wup h), with optional biases (Shazeer 2020).

    Args:
        kind: end of the tensors' names: ``"_shexp"`` for a shared expert.
    """
    gate = g.linear(h, b[f"ffn_gate{kind}"], b.get(f"ffn_gate{kind}.bias"))
    up = g.linear(h, b[f"ffn_up{kind}"], b.get(f"ffn_up{kind}.bias"))
    return g.linear(activation(gate) * up, b[f"ffn_down{kind}"], b.get(f"ffn_down{kind}.bias"))


def swiglu(g: Graph, h: Tensor, b: Weights, kind: str = "") -> Tensor:
    """:func:`gated_ffn` with SiLU."""
    return gated_ffn(g, h, b, g.silu, kind)


def gated_shared_expert(g: Graph, h: Tensor, b: Weights) -> Tensor:
    """An expert that all rows use, behind a gate of its own: sigmoid(w h) * swiglu(h) (Qwen 1.5 MoE)."""
    return swiglu(g, h, b, "_shexp") * g.sigmoid(g.linear(h, b["ffn_gate_inp_shexp"]))


def fused_swiglu(g: Graph, h: Tensor, b: Weights) -> Tensor:
    """SwiGLU whose ``ffn_up`` holds the rows of the gate, then those of up.

    Raises:
        ModelFileError: ``ffn_up`` has not twice as many rows as ``ffn_down`` has columns.
    """
    n_ff = b["ffn_down"].shape[-1]
    expect_rows(b["ffn_up"], 2 * n_ff, f"gate and up for the {n_ff} columns of {b['ffn_down'].name}")
    gate, up = g.split(g.linear(h, b["ffn_up"]), n_ff, n_ff)
    return g.linear(g.silu(gate) * up, b["ffn_down"])


# -- inputs ------------------------------------------------------------------------------------------------------------


def per_layer_inputs(g: Graph, hp: Hparams, w: Weights, x: Tensor, n: int) -> tuple[Tensor, ...]:
    """Embeddings of each layer's own, mixed with a projection of the stream (Gemma 3n): one (n,) per layer, or nothing.

    (own * sqrt(n) + rms_norm(W x / sqrt(n_embd))) / sqrt(2), where own stands in ``per_layer_token_embd``.
    """
    if n == 0:
        return ()
    own = g.embed(w["per_layer_token_embd"], scale=n**0.5, by="text")  # (T, n_layer * n)
    projected = g.linear(x, w["per_layer_model_proj"], scale=hp.n_embd**-0.5).heads(hp.n_layer, n)
    mixed = g.rms_norm(projected, w["per_layer_proj_norm"], hp.eps).flat() + own
    return g.split(g.scale(mixed, 2**-0.5), *[n] * hp.n_layer)


# -- mixtures of experts ---------------------------------------------------------------------------------------------


def moe(
    g: Graph,
    h: Tensor,
    b: Weights,
    hp: Hparams,
    *,
    logits: Tensor | None = None,
    gated: Gated | None = None,
    gate: str = "softmax",
    renormalise: bool = True,
) -> Tensor:
    """Route each row to its experts and return their weighted sum (Shazeer et al. 2017, Jiang et al. 2024).

    Args:
        logits: (n_expert,) scores; computed by ``ffn_gate_inp`` (and its bias) where absent.
        gated: what the experts make of gate and up; silu(gate) * up where absent.
        gate, renormalise: see :meth:`Graph.moe_route`; the weights are scaled by ``expert_weights_scale``.

    Raises:
        ModelFileError: ``expert_count`` is not the number of the router's rows.
    """
    expect_rows(b["ffn_gate_inp"], hp.n_expert, f"{hp.architecture}.expert_count {hp.n_expert}")
    if logits is None:
        logits = g.linear(h, b["ffn_gate_inp"], b.get("ffn_gate_inp.bias"))
    ids, weights = g.moe_route(
        logits,
        hp.n_expert_used,
        gate=gate,
        renormalise=renormalise,
        scale=float(hp.get("expert_weights_scale", 0.0)) or 1.0,
    )
    return experts(g, h, ids, weights, b, gated or (lambda gate, up: g.silu(gate) * up))


def expert_gate(hp: Hparams, default: str) -> str:
    """Return the gate that ``expert_gating_func`` names, for :meth:`Graph.moe_route`.

    Raises:
        ModelFileError: a number that stands for none.
    """
    number = hp.get("expert_gating_func", GATE_NUMBERS[default])
    names = {n: name for name, n in GATE_NUMBERS.items()}
    if number not in names:
        raise ModelFileError(
            f"{hp.architecture}.expert_gating_func is {number}; expected one of {sorted(names)}"
        )
    return names[number]


def experts(g: Graph, h: Tensor, ids: Tensor, weights: Tensor, b: Weights, gated: Gated) -> Tensor:
    """Sum of weight_e * Wdown_e gated(Wgate_e h, Wup_e h) over the chosen experts e, biases and scales as in the file.

    Gate and up are two tensors, or one ``ffn_gate_up_exps`` with the gate's rows first.
    """

    def product(x: Tensor, part: str) -> Tensor:
        name = f"ffn_{part}_exps"
        return g.moe_linear(x, ids, b[name], b.get(f"{name}.bias"), b.get(f"{name}.scale"))

    if "ffn_gate_up_exps" in b:
        both = product(h, "gate_up")  # (T, n_used, 2 * n_ff)
        n_ff = both.shape[1] // 2
        gate, up = g.split(both, n_ff, n_ff)
    else:
        gate, up = product(h, "gate"), product(h, "up")  # (T, n_used, n_ff)
    return g.moe_sum(product(gated(gate, up), "down"), weights)

"""The NumPy meaning of every op of the vocabulary: float32, plain, exact. The oracle of all native kernels.

Each function takes the state of the step and the node, then the input arrays (T, *row), and returns its output array
(or a tuple of them).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ggfw.execute.reference_recurrent import RECURRENT
from ggfw.graph.tensor import ROWS

if TYPE_CHECKING:
    from ggfw.execute.reference import ReferenceStep
    from ggfw.graph.tensor import Node

F32 = np.float32


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return (1.0 / (1.0 + np.exp(-np.abs(x))) * np.where(x >= 0, 1.0, np.exp(-np.abs(x)))).astype(F32)


def _erf(x: np.ndarray) -> np.ndarray:
    from math import erf

    return np.vectorize(erf, otypes=[np.float64])(x)


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(F32)


UNARY: dict[str, Callable[[np.ndarray, dict[str, Any]], np.ndarray]] = {
    "scale": lambda x, a: x * F32(a["alpha"]) + F32(a["beta"]),
    "silu": lambda x, a: x * _sigmoid(x),
    "gelu": lambda x, a: 0.5 * x * (1.0 + np.tanh(0.7978845608028654 * x * (1.0 + 0.044715 * x * x))),
    "gelu_erf": lambda x, a: 0.5 * x * (1.0 + _erf(x * 0.7071067811865476)),
    "relu": lambda x, a: np.maximum(x, 0),
    "relu2": lambda x, a: np.maximum(x, 0) ** 2,
    "sigmoid": lambda x, a: _sigmoid(x),
    "softplus": lambda x, a: np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20)))),
    "exp": lambda x, a: np.exp(x),
    "tanh": lambda x, a: np.tanh(x),
    "softcap": lambda x, a: F32(a["alpha"]) * np.tanh(x / F32(a["alpha"])),
    "clamp": lambda x, a: np.clip(x, F32(a["alpha"]), F32(a["beta"])),
}


def unary(step: ReferenceStep, node: Node, x: np.ndarray) -> np.ndarray:
    """Elementwise functions of one tensor."""
    return UNARY[node.op](x, node.attrs).astype(F32)


def binary(step: ReferenceStep, node: Node, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
    """add and mul: with a tensor, one value per row, or a weight vector repeated over the row."""
    rows = _rows(a)
    if b is None:
        vector = step.vector(node.attrs["vector"])
        other = np.tile(vector, rows.shape[1] // vector.size)[None, :]
    else:
        other = _rows(b)
    return (rows + other if node.op == "add" else rows * other).reshape(a.shape)


def position_scale(step: ReferenceStep, node: Node, x: np.ndarray) -> np.ndarray:
    """Attention temperature by position."""
    length, beta, offset = node.attrs["alpha"], node.attrs["beta"], node.attrs["gamma"]
    factor = 1.0 + beta * np.log1p(np.floor((step.positions + offset) / length))
    return x * factor.astype(F32).reshape(-1, *[1] * (x.ndim - 1))


def gpt_oss_gate(step: ReferenceStep, node: Node, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """gpt-oss' clamped gate."""
    alpha, limit = F32(node.attrs["alpha"]), F32(node.attrs["beta"])
    g = np.minimum(gate, limit)
    return g * _sigmoid(alpha * g) * (np.clip(up, -limit, limit) + F32(1))


def _rows(x: np.ndarray) -> np.ndarray:
    """(T, ...) as (T, width); T may be 0, where NumPy cannot work out a -1."""
    return x.reshape(x.shape[0], prod(x.shape[1:]))


def embed(step: ReferenceStep, node: Node) -> np.ndarray:
    """Rows of a table by token, position or type, or the embeddings the batch brings."""
    scale, by, table = F32(node.attrs["scale"]), node.attrs["by"], node.attrs["weight"]
    if step.embeddings is not None and by == "token":
        return step.embeddings * scale
    if by == "type" or (step.embeddings is not None and by == "text"):
        return step.rows(table, np.zeros(len(step.positions), np.int32)) * scale
    return step.rows(table, step.positions if by == "position" else step.tokens) * scale


def linear(step: ReferenceStep, node: Node, x: np.ndarray) -> np.ndarray:
    """W x + bias, scaled."""
    y = _rows(x) @ step.matrix(node.attrs["weight"]).T
    if node.attrs["bias"] is not None:
        y = y + step.vector(node.attrs["bias"])
    return y * F32(node.attrs["scale"]) if node.attrs["scale"] != 1.0 else y


def linear_heads(step: ReferenceStep, node: Node, x: np.ndarray) -> np.ndarray:
    """A matrix for each head."""
    return np.einsum("thi,hoi->tho", x, step.tensor(node.attrs["weight"]), optimize=True).astype(F32)


def norm(step: ReferenceStep, node: Node, x: np.ndarray) -> np.ndarray:
    """rms_norm, layer_norm and l2_norm over the last axis."""
    eps, kind = node.attrs["eps"], node.op
    wide = x.astype(np.float64)
    if kind == "layer_norm":
        wide = wide - wide.mean(-1, keepdims=True)
    square = wide * wide
    total = square.sum(-1, keepdims=True) if kind == "l2_norm" else square.mean(-1, keepdims=True)
    y = (wide / np.sqrt(total + eps)).astype(F32)
    for attr, apply in (("weight", np.multiply), ("bias", np.add)):
        if node.attrs[attr] is not None:
            vector = step.vector(node.attrs[attr])
            y = apply(y, vector if vector.size == x.shape[-1] else vector.reshape(x.shape[1:]))
    return y


def reduce(step: ReferenceStep, node: Node, x: np.ndarray) -> np.ndarray:
    """Mean or norm over the last axis."""
    wide = x.astype(np.float64)
    y = wide.mean(-1) if node.attrs["kind"] == "mean" else np.sqrt((wide * wide).sum(-1))
    return y.reshape(len(x), *node.outputs[0].shape).astype(F32)


def rope(step: ReferenceStep, node: Node, x: np.ndarray) -> np.ndarray:
    """Rotate pairs of columns by position * frequency."""
    r = node.attrs["rope"]
    inv_freq, magnitude = step.frequencies(r)
    angle = step.positions[:, None].astype(np.float64) * inv_freq  # (T, dims / 2)
    cos = (np.cos(angle) * magnitude).astype(F32)[:, None, :]
    sin = (np.sin(angle) * magnitude).astype(F32)[:, None, :]
    y = x.copy()
    half = r.dims // 2
    first, second = (
        (slice(0, r.dims, 2), slice(1, r.dims, 2))
        if r.pairing == "norm"
        else (slice(0, half), slice(half, r.dims))
    )
    a, b = x[..., first], x[..., second]
    y[..., first] = a * cos - b * sin
    y[..., second] = a * sin + b * cos
    return y


def attention(
    step: ReferenceStep, node: Node, q: np.ndarray, k: np.ndarray | None = None, v: np.ndarray | None = None
) -> np.ndarray:
    """Store k and v in the cache, then attend, segment by segment."""
    attrs = node.attrs
    cap, window = attrs["softcap"], attrs["window"]
    out = np.empty((q.shape[0], node.outputs[0].width), F32)
    sinks = step.vector(attrs["sinks"]) if attrs["sinks"] is not None else None
    for segment in step.segments:
        rows = segment.rows
        if k is not None:
            step.store(attrs["layer"], segment, k[rows], None if v is None else v[rows])
        keys, values = step.load(attrs["layer"], segment)  # (n, n_head_kv, d)
        group = q.shape[1] // keys.shape[1]
        qs = q[rows].reshape(-1, keys.shape[1], group, q.shape[2])
        s = np.einsum("tkgd,nkd->kgtn", qs, keys, optimize=True) * F32(attrs["scale"])
        if cap:
            s = F32(cap) * np.tanh(s / F32(cap))
        distance = step.positions[rows][:, None] - np.arange(len(keys))[None, :]  # (t, n)
        hidden = np.zeros(distance.shape, bool)
        if attrs["causal"]:
            hidden |= distance < 0
        if attrs["symmetric"]:
            hidden |= np.abs(distance) > window // 2
        elif window:
            hidden |= distance >= window
        s = np.where(hidden, -np.inf, s)
        top = s.max(-1, keepdims=True)
        if sinks is not None:
            sink = sinks.reshape(keys.shape[1], group, 1, 1)
            top = np.maximum(top, sink)
        p = np.exp(s - top)
        total = p.sum(-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sink - top)
        y = np.einsum("kgtn,nkd->tkgd", p / total, values, optimize=True)
        out[rows] = _rows(y)
    return out


def reshape(step: ReferenceStep, node: Node, x: np.ndarray) -> np.ndarray:
    """Another shape of the same columns."""
    return x.reshape(x.shape[0], *node.outputs[0].shape)


def split(step: ReferenceStep, node: Node, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Ranges of the last axis."""
    borders = np.cumsum(node.attrs["widths"])[:-1]
    return tuple(np.split(x, borders, axis=-1))


def concat(step: ReferenceStep, node: Node, *parts: np.ndarray) -> np.ndarray:
    """Last axes after each other; one head is repeated for all."""
    shape = node.outputs[0].shape[:-1]
    return np.concatenate([np.broadcast_to(p, (len(p), *shape, p.shape[-1])) for p in parts], axis=-1)


def gather(step: ReferenceStep, node: Node, x: np.ndarray) -> np.ndarray:
    """Output rows only."""
    return x[step.output_rows]


def pool(step: ReferenceStep, node: Node, x: np.ndarray) -> np.ndarray:
    """One row per sequence; zeros for one without outputs."""
    kind = node.attrs["kind"]
    places = [s.rows if node.inputs[0].domain == ROWS else s.outputs for s in step.segments]
    out = np.zeros((len(places), *x.shape[1:]), F32)
    for i, rows in enumerate(places):
        if rows.stop > rows.start:
            part = x[rows]
            out[i] = {"mean": part.mean(0, dtype=np.float64), "first": part[0], "last": part[-1]}[kind]
    return out


def moe_route(step: ReferenceStep, node: Node, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Choose experts; ties go to the lower id."""
    a = node.attrs
    scores = {"softmax": _softmax, "sigmoid": _sigmoid, "softmax_weight": lambda x: x}[a["gate"]](logits)
    choice = scores if a["selection_bias"] is None else scores + step.vector(a["selection_bias"])
    n_group, n_group_used = a["groups"]
    if n_group > 1:
        grouped = choice.reshape(len(choice), n_group, -1)
        best = np.sort(grouped, axis=-1)[..., -2:].sum(-1)
        keep = np.argsort(-best, axis=-1, kind="stable")[:, :n_group_used]
        mask = np.ones((len(choice), n_group), bool)
        np.put_along_axis(mask, keep, False, axis=1)
        choice = np.where(mask[..., None], -np.inf, grouped).reshape(choice.shape)
    ids = np.argsort(-choice, axis=-1, kind="stable")[:, : a["n_used"]]
    weights = np.take_along_axis(scores, ids, axis=1)
    if a["gate"] == "softmax_weight":
        weights = _softmax(weights)
    elif a["renormalise"]:
        weights = weights / np.maximum(weights.sum(-1, keepdims=True), F32(6.103515625e-5))
    return ids.astype(np.int32), (weights * F32(a["scale"])).astype(F32)


def moe_linear(step: ReferenceStep, node: Node, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Chosen experts' products, expert by expert."""
    a = node.attrs
    out = np.empty((len(x), *node.outputs[0].shape), F32)
    bias = step.tensor(a["bias"]) if a["bias"] is not None else None
    scale = step.vector(a["expert_scale"]) if a["expert_scale"] is not None else None
    for expert in np.unique(ids):
        rows, slots = np.nonzero(ids == expert)
        y = (x[rows, slots] if x.ndim == 3 else x[rows]) @ step.expert(a["weight"], int(expert)).T
        if bias is not None:
            y = y + bias.reshape(-1, y.shape[1])[expert]
        out[rows, slots] = y if scale is None else y * scale[expert]
    return out


def moe_sum(step: ReferenceStep, node: Node, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted sum over the chosen experts."""
    return np.einsum("tkn,tk->tn", x, weights).astype(F32)


def custom(step: ReferenceStep, node: Node, *inputs: np.ndarray) -> np.ndarray:
    """A plugin's own op."""
    return step.call_custom(node, inputs)


REFERENCE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(UNARY, unary),
    "add": binary,
    "mul": binary,
    "rms_norm": norm,
    "layer_norm": norm,
    "l2_norm": norm,
    **{
        f.__name__: f
        for f in (
            position_scale,
            gpt_oss_gate,
            embed,
            linear,
            linear_heads,
            reduce,
            rope,
            attention,
            reshape,
            split,
            concat,
            gather,
            pool,
        )
    },
    **{f.__name__: f for f in (moe_route, moe_linear, moe_sum, custom)},
    **RECURRENT,
}

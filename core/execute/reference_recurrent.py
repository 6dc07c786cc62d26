"""The NumPy meaning of the recurrent ops: one row of a sequence after the other, float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ggfw.execute.reference import ReferenceStep
    from ggfw.graph.tensor import Node

F32 = np.float32


def short_conv(step: ReferenceStep, node: Node, x: np.ndarray) -> np.ndarray:
    """Causal depthwise convolution; the state is the last K - 1 raw rows."""
    a = node.attrs
    weight = step.tensor(a["weight"])  # (n, K)
    bias = step.vector(a["bias"]) if a["bias"] is not None else F32(0)
    kernel = weight.shape[1]
    out = np.empty_like(x)
    for segment in step.segments:
        before, after = step.state(node, segment)
        rows = np.concatenate([before, x[segment.rows]])  # (K - 1 + T, n)
        n = len(rows) - kernel + 1
        y = sum(rows[j : j + n] * weight[:, j] for j in range(kernel)) + bias
        out[segment.rows] = y / (1 + np.exp(-y)) if a["activation"] == "silu" else y
        after[:] = rows[n:]
    return out


def ssm_scan(
    step: ReferenceStep, node: Node, x: np.ndarray, dt: np.ndarray, b: np.ndarray, c: np.ndarray
) -> np.ndarray:
    """Mamba-2: S <- exp(dt a) S + b (dt x)^T, y = S^T c + d x."""
    a, d = step.vector(node.attrs["a"]), step.vector(node.attrs["d"])
    group = np.arange(x.shape[1]) // (x.shape[1] // b.shape[1])
    out = np.empty_like(x)
    for segment in step.segments:
        before, after = step.state(node, segment)
        s = before  # (n_head, n_state, head_dim)
        for t in range(segment.rows.start, segment.rows.stop):
            decay = np.exp(dt[t] * a)[:, None, None]
            s = decay * s + b[t, group][:, :, None] * (dt[t][:, None] * x[t])[:, None, :]
            out[t] = np.einsum("hnp,hn->hp", s, c[t, group]) + d[:, None] * x[t]
        after[:] = s
    return out


def gated_delta_rule(
    step: ReferenceStep,
    node: Node,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    decay: np.ndarray,
    beta: np.ndarray,
) -> np.ndarray:
    """S <- e^decay S; delta = beta (v - S^T k); S <- S + k delta^T; o = scale S^T q."""
    heads = np.arange(v.shape[1])
    n_k = q.shape[1]
    pair = heads % n_k if node.attrs["pairing"] == "mod" else heads // (v.shape[1] // n_k)
    scale = F32(node.attrs["scale"])
    out = np.empty_like(v)
    for segment in step.segments:
        before, after = step.state(node, segment)
        s = before  # (n_head_v, d_k, d_v)
        for t in range(segment.rows.start, segment.rows.stop):
            key, query = k[t, pair], q[t, pair]  # (n_head_v, d_k)
            s = np.exp(decay[t])[:, None, None] * s
            delta = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", s, key))
            s = s + key[:, :, None] * delta[:, None, :]
            out[t] = scale * np.einsum("hkv,hk->hv", s, query)
        after[:] = s
    return out


RECURRENT = {f.__name__: f for f in (short_conv, ssm_scan, gated_delta_rule)}

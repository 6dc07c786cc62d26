"""The recurrent part of the op vocabulary: ops that carry a state from one row of a sequence to the next.

Each keeps float32 state per sequence, zero at its start; rows of a batch are scanned in order, so a prompt may be cut
anywhere. The state's shape is the node's ``state`` attribute.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from ggfw.errors import GraphError, ModelFileError
from ggfw.graph.custom import StateSpec
from ggfw.graph.tensor import ROWS, Shape, Tensor
from ggfw.graph.weights import WeightRef

#: Activation functions :meth:`RecurrentOps.short_conv` can apply to its result.
CONV_ACTIVATIONS = ("", "silu")
#: How value heads pair with fewer key heads, see :meth:`RecurrentOps.gated_delta_rule`.
HEAD_PAIRINGS = ("div", "mod")


class RecurrentOps:
    """Methods of :class:`ggfw.graph.Graph`."""

    if TYPE_CHECKING:

        def node(
            self, op: str, inputs: tuple[Tensor, ...], shapes: tuple[Shape, ...], domain: int, **kw: Any
        ) -> tuple[Tensor, ...]: ...

    def short_conv(
        self, x: Tensor, weight: WeightRef, bias: WeightRef | None = None, *, activation: str = ""
    ) -> Tensor:
        """Causal depthwise convolution over the last K rows of a sequence (as in Mamba, Hyena, LFM2).

        y[t, c] = sum over j < K of weight[c, j] * x[t - K + 1 + j, c] + bias[c]; rows before the first are zero.
        The state is the last K - 1 rows of x, oldest first: (K - 1, n).

        Args:
            x: (n,).
            weight: (n, K), K >= 2, oldest row first.
            bias: (n,).
            activation: "" or "silu", applied to y.

        Raises:
            ModelFileError: ``weight`` or ``bias`` does not fit ``x``.
        """
        if activation not in CONV_ACTIVATIONS:
            raise GraphError(
                f"activation {activation!r} of short_conv is unknown; {CONV_ACTIVATIONS} are known"
            )
        n = _one_axis(x, "short_conv")
        if len(weight.shape) != 2 or weight.shape[0] != n or weight.shape[1] < 2:
            raise ModelFileError(
                f"tensor {weight.name} has shape {weight.shape}; (channels, kernel) with {n} channels of {x} and a "
                "kernel of at least 2 were expected"
            )
        _expect_size(bias, n, f"the {n} channels of {x}")
        return self.node(
            "short_conv", (x,), ((n,),), ROWS, name=weight.name.removesuffix(".weight"), weight=weight, bias=bias,
            activation=activation, state=StateSpec((weight.shape[1] - 1, n)),
        )[0]  # fmt: skip

    def ssm_scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, *, a: WeightRef, d: WeightRef) -> Tensor:
        """Selective state space of Mamba-2 (Dao, Gu 2024, 2405.21060), row by row; (n_head, head_dim).

        S[h] <- exp(dt[h] * a[h]) * S[h] + b[g] (dt[h] * x[h])^T;  y[h] = S[h]^T c[g] + d[h] * x[h], with the group
        g = h / (n_head / n_group). The state is S: (n_head, n_state, head_dim).

        Args:
            x: (n_head, head_dim).
            dt: (n_head,) positive step sizes (after softplus).
            b, c: (n_group, n_state).
            a: n_head negative rates, -exp(A_log).
            d: n_head factors of the skip.

        Raises:
            ModelFileError: heads are no multiple of groups, or a tensor has another number of values.
        """
        (n_head, head_dim), (n_group, n_state) = _two_axes(x, "ssm_scan"), _two_axes(b, "ssm_scan")
        if c.shape != b.shape:
            raise ModelFileError(f"ssm_scan: {b} and {c} must have one shape (n_group, n_state)")
        if dt.width != n_head or n_head % n_group:
            raise ModelFileError(
                f"ssm_scan: {x} has {n_head} heads; {dt} has {dt.width} step sizes and {b} has {n_group} groups; "
                "expected one step size per head, and heads that divide into groups"
            )
        for vector in (a, d):
            _expect_size(vector, n_head, f"{n_head} heads")
        return self.node(
            "ssm_scan", (x, dt, b, c), (x.shape,), ROWS, name=f"{a.name.rpartition('.')[0]}.ssm_scan", a=a, d=d,
            state=StateSpec((n_head, n_state, head_dim)),
        )[0]  # fmt: skip

    def gated_delta_rule(
        self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, *, scale: float, pairing: str
    ) -> Tensor:
        """Gated delta rule (Yang et al. 2024, 2412.06464), row by row; (n_head_v, d_v).

        For each value head: S <- e^decay * S;  delta = beta * (v - S^T k);  S <- S + k delta^T;  o = scale * S^T q.
        The state is S: (n_head_v, d_k, d_v).

        Args:
            q, k: (n_head_k, d_k), normalised by the caller.
            v: (n_head_v, d_v).
            decay: (n_head_v,) logarithms of the decay, at most 0.
            beta: (n_head_v,) strengths of the update.
            scale: factor of the result, normally d_k^-0.5.
            pairing: which key head value head h uses: "div" = h / (n_head_v / n_head_k), "mod" = h mod n_head_k.

        Raises:
            ModelFileError: shapes do not fit each other.
        """
        if pairing not in HEAD_PAIRINGS:
            raise GraphError(f"pairing {pairing!r} is unknown; {', '.join(HEAD_PAIRINGS)} are known")
        (n_k, d_k), (n_v, _) = _two_axes(q, "gated_delta_rule"), _two_axes(v, "gated_delta_rule")
        if k.shape != q.shape or n_v % n_k:
            raise ModelFileError(
                f"gated_delta_rule: {q}, {k} and {v} do not fit: one shape for q and k, and value heads that are a "
                "multiple of key heads were expected"
            )
        for t in (decay, beta):
            if t.width != n_v:
                raise ModelFileError(
                    f"gated_delta_rule: {t} has {t.width} values; {n_v} value heads of {v} need one each"
                )
        return self.node(
            "gated_delta_rule", (q, k, v, decay, beta), (v.shape,), ROWS, name="gated_delta_rule", scale=float(scale),
            pairing=pairing, state=StateSpec((n_v, d_k, v.shape[1])),
        )[0]  # fmt: skip


def _one_axis(x: Tensor, op: str) -> int:
    if len(x.shape) != 1 or x.domain != ROWS:
        raise GraphError(f"{op} works on rows (n,) of the batch; {x} is something else")
    return x.shape[0]


def _two_axes(x: Tensor, op: str) -> tuple[int, int]:
    if len(x.shape) != 2 or x.domain != ROWS:
        raise GraphError(f"{op} works on heads (n_head, head_dim) of the batch's rows; {x} is something else")
    return x.shape[0], x.shape[1]


def _expect_size(vector: WeightRef | None, n: int, why: str) -> None:
    if vector is not None and prod(vector.shape) != n:
        raise ModelFileError(f"tensor {vector.name} has {prod(vector.shape)} values; {why} need {n}")

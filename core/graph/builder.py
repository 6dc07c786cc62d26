"""The op vocabulary: what an architecture's ``build`` calls. Each method checks shapes and adds one node.

Every op has a NumPy reference of the same name in :mod:`ggfw.execute.reference_ops` and is lowered to native steps
by :mod:`ggfw.graph.lower`.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from ggfw.errors import GraphError, ModelFileError
from ggfw.graph.custom import custom_op
from ggfw.graph.recurrent import RecurrentOps
from ggfw.graph.rope import Rope
from ggfw.graph.tensor import OUTPUTS, ROWS, SEQUENCES, Node, Shape, Tensor, broadcast_width
from ggfw.graph.weights import WeightRef

#: Gate functions of :meth:`Graph.moe_route`.
GATES = ("softmax", "sigmoid", "softmax_weight")
#: What :meth:`Graph.embed` looks up by.
EMBED_BY = ("token", "position", "text", "type")
#: Kinds of :meth:`Graph.pool`.
POOLINGS = ("mean", "first", "last")
#: Kinds of :meth:`Graph.reduce`.
REDUCTIONS = ("mean", "norm")


class Graph(RecurrentOps):
    """A graph under construction.

    Attributes:
        nodes: in the order of the calls, which is an order of evaluation.
        logits, hidden, pooled: the outputs set by :meth:`output`.
        causal: whether positions see only what stands before them, unless an attention says otherwise.
    """

    def __init__(self, causal: bool = True) -> None:
        self.causal = causal
        self.nodes: list[Node] = []
        self.logits: Tensor | None = None
        self.hidden: Tensor | None = None
        self.pooled: Tensor | None = None
        self._names: dict[str, int] = {}

    # -- plumbing ------------------------------------------------------------------------------------------------

    def unique_name(self, name: str) -> str:
        """Return ``name``, with a number where it is taken."""
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if count == 0 else f"{name}#{count}"

    def node(
        self,
        op: str,
        inputs: tuple[Tensor, ...],
        shapes: tuple[Shape, ...],
        domain: int,
        name: str = "",
        integers: tuple[bool, ...] = (),
        **attrs: Any,
    ) -> tuple[Tensor, ...]:
        """Add a node and return its outputs; passes use it too."""
        node = Node(op, inputs, attrs)
        integers = integers or (False,) * len(shapes)
        node.outputs = tuple(
            Tensor(self, shape, domain, node, self.unique_name(name or op), integer)
            for shape, integer in zip(shapes, integers, strict=True)
        )
        self.nodes.append(node)
        return node.outputs

    def _unary(self, op: str, x: Tensor, **attrs: Any) -> Tensor:
        return self.node(op, (x,), (x.shape,), x.domain, **attrs)[0]

    # -- tokens and matrices -------------------------------------------------------------------------------------

    def embed(self, table: WeightRef, scale: float = 1.0, by: str = "token") -> Tensor:
        """Look rows of ``table`` (n, n_embd) up, times ``scale``; (n_embd,).

        Args:
            by: token = the batch's tokens, or instead of rows the embeddings a batch brings; position = the rows'
                positions; text = tokens, and row 0 for a batch of embeddings (a table beside that of the tokens);
                type = the rows' token types, which are 0 for all (one sentence, not a pair).
        """
        if by not in EMBED_BY:
            raise GraphError(f"embed by {by!r} is unknown; {', '.join(EMBED_BY)} are known")
        _check_rank(table, 2)
        shapes = ((table.shape[1],),)
        return self.node("embed", (), shapes, ROWS, "embd", weight=table, scale=scale, by=by)[0]

    def linear(
        self, x: Tensor, weight: WeightRef, bias: WeightRef | None = None, scale: float = 1.0
    ) -> Tensor:
        """``(W x + bias) * scale`` for ``weight`` (n_out, n_in), or (n_in,) for one row; (n_out,)."""
        if len(weight.shape) == 1:
            weight = replace(weight, shape=(1, *weight.shape))
        _check_rank(weight, 2)
        n_out, n_in = weight.shape
        if x.width != n_in:
            raise ModelFileError(
                f"tensor {weight.name} has shape ({n_out}, {n_in}); its input {x.name} has {x.width} columns, "
                f"so ({n_out}, {x.width}) was expected"
            )
        _check_vector(bias, n_out)
        name = weight.name.removesuffix(".weight")
        return self.node("linear", (x,), ((n_out,),), x.domain, name, weight=weight, bias=bias, scale=scale)[
            0
        ]

    def linear_heads(self, x: Tensor, weight: WeightRef) -> Tensor:
        """``W_h x_h`` for each head h, with a matrix of its own: x (n_head, n_in), weight (n_head, n_out, n_in).

        Returns:
            (n_head, n_out).
        """
        _check_rank(weight, 3)
        n_head, n_out, n_in = weight.shape
        if x.shape != (n_head, n_in):
            raise ModelFileError(
                f"tensor {weight.name} has shape {weight.shape}; its input {x} asks for "
                f"({', '.join(map(str, x.shape[:1]))}, {n_out}, {x.shape[-1]})"
            )
        name = weight.name.removesuffix(".weight")
        return self.node("linear_heads", (x,), ((n_head, n_out),), x.domain, name, weight=weight)[0]

    # -- norms ---------------------------------------------------------------------------------------------------

    def _norm(
        self, kind: str, x: Tensor, weight: WeightRef | None, bias: WeightRef | None, eps: float
    ) -> Tensor:
        for vector in (weight, bias):
            if vector is not None and prod(vector.shape) not in (x.shape[-1], x.width):
                raise ModelFileError(
                    f"tensor {vector.name} has {prod(vector.shape)} values; "
                    f"the norm of {x} expects {x.shape[-1]} or {x.width}"
                )
        name = weight.name.removesuffix(".weight") if weight else kind
        return self._unary(kind, x, name=name, weight=weight, bias=bias, eps=eps)

    def rms_norm(self, x: Tensor, weight: WeightRef | None, eps: float) -> Tensor:
        """RMS norm over the last axis: x / sqrt(mean(x^2) + eps) * weight; no weight = 1 (Zhang, Sennrich 2019)."""
        return self._norm("rms_norm", x, weight, None, eps)

    def layer_norm(self, x: Tensor, weight: WeightRef | None, bias: WeightRef | None, eps: float) -> Tensor:
        """Layer norm over the last axis (Ba et al. 2016); weight and bias may be absent."""
        return self._norm("layer_norm", x, weight, bias, eps)

    def l2_norm(self, x: Tensor, eps: float) -> Tensor:
        """x / sqrt(sum(x^2) + eps) over the last axis."""
        return self._norm("l2_norm", x, None, None, eps)

    def reduce(self, x: Tensor, kind: str) -> Tensor:
        """One value over the last axis: its mean, or its norm (the root of the sum of squares); (1,) or (n_head,)."""
        if kind not in REDUCTIONS:
            raise GraphError(f"reduction {kind!r} is unknown; {', '.join(REDUCTIONS)} are known")
        shape = x.shape[:-1] or (1,)
        return self.node("reduce", (x,), (shape,), x.domain, f"{x.name}.{kind}", kind=kind)[0]

    # -- attention -----------------------------------------------------------------------------------------------

    def rope(self, x: Tensor, rope: Rope) -> Tensor:
        """Rotate the first ``rope.dims`` columns of each head by the row's position; (n_head, head_dim)."""
        if len(x.shape) != 2:
            raise GraphError(f"rope rotates heads; {x} has to be viewed with .heads(n_head, head_dim) first")
        if not 0.0 < rope.base < float("inf"):
            raise ModelFileError(
                f"the base of the rotary frequencies is {rope.base}; a positive number was expected"
            )
        if rope.dims > x.shape[1] or rope.dims % 2:
            raise ModelFileError(
                f"rope.dimension_count is {rope.dims}; an even number up to the head size {x.shape[1]} was expected"
            )
        _check_vector(rope.factors, rope.dims // 2)
        return self._unary("rope", x, name=f"{x.name}.rope", rope=rope)

    def attention(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        *,
        layer: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: WeightRef | None = None,
        causal: bool | None = None,
        symmetric: bool = False,
        v_columns: int = 0,
        kv_shape: tuple[int, int, int] | None = None,
    ) -> Tensor:
        """Softmax attention over the cache of ``layer``, into which k and v are stored first; flat (n_head * d_v,).

        Args:
            q: (n_head, d_k).
            k, v: (n_head_kv, d_k) and (n_head_kv, d_v); v None = the first ``v_columns`` of each k; both None = read
                the cache another layer filled.
            layer: whose cache; layers with the same K/V shape and window share a pool.
            scale: factor of q k^T.
            window: a key is visible iff query position - key position < window; 0 = all.
            symmetric: the window is on both sides instead: the two are at most window // 2 apart; not causal.
            softcap: cap * tanh(score / cap), 0 = none.
            sinks: (n_head,) logits that join the denominator only.
            causal: False = every position of the segment is visible; None = as :attr:`causal` says.
            v_columns: see v.
            kv_shape: (n_head_kv, d_k, d_v) where k and v are None.
        """
        causal = self.causal if causal is None else causal
        for what in (q, k, v):
            if what is not None and len(what.shape) != 2:
                raise GraphError(
                    f"attention works on heads; {what} has to be viewed with .heads(n_head, head_dim) first"
                )
        if symmetric and (causal or not window):
            raise GraphError("a symmetric window needs attention that is not causal, and a size")
        if (v is None) == (k is not None and v_columns == 0):
            raise GraphError("attention takes k and v, k and v_columns, or neither")
        if k is not None:
            if v_columns > k.shape[1]:
                raise GraphError(f"v_columns {v_columns} exceed the {k.shape[1]} columns of {k}")
            kv_shape = (k.shape[0], k.shape[1], v_columns if v is None else v.shape[1])
        if kv_shape is None:
            raise GraphError(
                f"attention over the cache of layer {layer} needs kv_shape when k and v are absent"
            )
        n_head, d_k = q.shape
        if kv_shape[1] != d_k or n_head % kv_shape[0]:
            raise ModelFileError(
                f"attention of layer {layer}: {n_head} query heads of {d_k} do not fit "
                f"{kv_shape[0]} key heads of {kv_shape[1]}"
            )
        _check_vector(sinks, n_head)
        inputs = tuple(t for t in (q, k, v) if t is not None)
        return self.node(
            "attention",
            inputs,
            ((n_head * kv_shape[2],),),
            ROWS,
            f"blk.{layer}.attn",
            layer=layer,
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=sinks,
            causal=causal,
            symmetric=symmetric,
            kv_shape=kv_shape,
        )[0]

    # -- elementwise ---------------------------------------------------------------------------------------------

    def _binary(self, op: str, a: Tensor, b: Any) -> Tensor:
        if isinstance(b, Tensor):
            broadcast_width(a, b)
            return self.node(op, (a, b), (a.shape,), a.domain)[0]
        if isinstance(b, WeightRef):
            if a.width % prod(b.shape):
                raise ModelFileError(f"tensor {b.name} has {prod(b.shape)} values; {a} has {a.width} columns")
            return self._unary(op, a, vector=b)
        return (
            self._unary("scale", a, alpha=float(b), beta=0.0)
            if op == "mul"
            else self._unary("scale", a, alpha=1.0, beta=float(b))
        )

    def add(self, a: Tensor, b: Any) -> Tensor:
        """a + b; b is a tensor (same width, or one value per row), a weight vector, or a number."""
        return self._binary("add", a, b)

    def mul(self, a: Tensor, b: Any) -> Tensor:
        """a * b; b as for :meth:`add`."""
        return self._binary("mul", a, b)

    def scale(self, x: Tensor, alpha: float, beta: float = 0.0) -> Tensor:
        """x * alpha + beta."""
        return self._unary("scale", x, alpha=float(alpha), beta=float(beta))

    def silu(self, x: Tensor) -> Tensor:
        """x * sigmoid(x)."""
        return self._unary("silu", x)

    def gelu(self, x: Tensor) -> Tensor:
        """GELU in its tanh form (Hendrycks, Gimpel 2016), as ggml's ``gelu``, without its f16 table."""
        return self._unary("gelu", x)

    def gelu_erf(self, x: Tensor) -> Tensor:
        """GELU in its exact form."""
        return self._unary("gelu_erf", x)

    def relu(self, x: Tensor) -> Tensor:
        """max(x, 0)."""
        return self._unary("relu", x)

    def relu2(self, x: Tensor) -> Tensor:
        """max(x, 0)^2."""
        return self._unary("relu2", x)

    def sigmoid(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(-x))."""
        return self._unary("sigmoid", x)

    def softplus(self, x: Tensor) -> Tensor:
        """ln(1 + exp(x)), the identity above 20."""
        return self._unary("softplus", x)

    def exp(self, x: Tensor) -> Tensor:
        """e^x."""
        return self._unary("exp", x)

    def tanh(self, x: Tensor) -> Tensor:
        """tanh(x)."""
        return self._unary("tanh", x)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap)."""
        return self._unary("softcap", x, alpha=float(cap))

    def clamp(self, x: Tensor, low: float, high: float) -> Tensor:
        """min(max(x, low), high)."""
        return self._unary("clamp", x, alpha=float(low), beta=float(high))

    def position_scale(self, x: Tensor, length: float, beta: float, offset: float = 0.0) -> Tensor:
        """x * (1 + beta * ln(1 + floor((position + offset) / length))): attention temperature (llama.cpp)."""
        return self._unary("position_scale", x, alpha=float(length), beta=float(beta), gamma=float(offset))

    def gpt_oss_gate(self, gate: Tensor, up: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
        """g = min(gate, limit), u = clamp(up, ±limit): g * sigmoid(alpha g) * (u + 1)."""
        broadcast_width(gate, up)
        inputs, shapes = (gate, up), (gate.shape,)
        return self.node("gpt_oss_gate", inputs, shapes, gate.domain, alpha=alpha, beta=limit)[0]

    # -- shapes --------------------------------------------------------------------------------------------------

    def reshape(self, x: Tensor, shape: Shape) -> Tensor:
        """View the columns of a row with another shape."""
        if prod(shape) != x.width:
            raise ModelFileError(
                f"{x} has {x.width} columns; {prod(shape)} = {' x '.join(map(str, shape))} expected"
            )
        return self.node("reshape", (x,), (shape,), x.domain, f"{x.name}.view", (x.integer,))[0]

    def split(self, x: Tensor, *widths: int) -> tuple[Tensor, ...]:
        """Split the last axis of a row; the widths add up to it.

        The parts of a row with one axis are views; with more axes each part is copied together.
        """
        if sum(widths) != x.shape[-1] or min(widths) < 1:
            raise ModelFileError(f"{x} has {x.shape[-1]} columns and cannot be split into {widths}")
        shapes = tuple((*x.shape[:-1], n) for n in widths)
        return self.node("split", (x,), shapes, x.domain, f"{x.name}.part", widths=widths)

    def concat(self, *parts: Tensor) -> Tensor:
        """Put the last axes of several tensors after each other.

        Parts with heads agree in their number; what has one head stands beside the columns of every head.
        """
        if len({t.domain for t in parts}) != 1:
            raise GraphError("concat needs tensors with the same kind of rows")
        columns = sum(t.shape[-1] for t in parts)
        if all(len(t.shape) == 1 for t in parts):
            return self.node("concat", parts, ((columns,),), parts[0].domain)[0]
        n_head = max(t.shape[0] for t in parts)
        if any(len(t.shape) != 2 or t.shape[0] not in (1, n_head) for t in parts):
            raise GraphError(f"concat needs the same number of heads, or one: {', '.join(map(repr, parts))}")
        return self.node("concat", parts, ((n_head, columns),), parts[0].domain)[0]

    def select_outputs(self, x: Tensor) -> Tensor:
        """Keep only the rows that want logits or hidden states; called before the last norm."""
        return self.node("gather", (x,), (x.shape,), OUTPUTS, f"{x.name}.outputs")[0]

    def pool(self, x: Tensor, kind: str) -> Tensor:
        """Make one row per sequence of its rows (or outputs): their mean, the first or the last; the shape stays.

        A sequence is what one step sees of it, so the architecture is not chunkable.
        """
        if kind not in POOLINGS:
            raise GraphError(f"pooling {kind!r} is unknown; {', '.join(POOLINGS)} are known")
        if x.domain == SEQUENCES:
            raise GraphError(f"{x} has one row per sequence already")
        return self.node("pool", (x,), (x.shape,), SEQUENCES, f"{x.name}.{kind}", kind=kind)[0]

    # -- experts -------------------------------------------------------------------------------------------------

    def moe_route(
        self,
        logits: Tensor,
        n_used: int,
        *,
        gate: str = "softmax",
        selection_bias: WeightRef | None = None,
        renormalise: bool = True,
        scale: float = 1.0,
        groups: tuple[int, int] = (1, 1),
    ) -> tuple[Tensor, Tensor]:
        """Choose ``n_used`` experts per row; returns (ids, weights), both (n_used,).

        Args:
            logits: (n_expert,).
            gate: softmax over all; sigmoid; softmax_weight = softmax over the chosen logits only.
            selection_bias: added for the choice, not for the weights.
            renormalise: divide the weights by their sum.
            scale: factor of the weights.
            groups: (groups, groups used): experts outside the best groups are not chosen (DeepSeek-V3).
        """
        if gate not in GATES:
            raise GraphError(f"gate {gate!r} is unknown; {', '.join(GATES)} are")
        if not 0 < n_used <= logits.width:
            raise ModelFileError(f"expert_used_count is {n_used}; 1 to {logits.width} were expected")
        n_group, n_group_used = groups
        if n_group < 1 or logits.width % n_group or not 0 < n_group_used <= n_group:
            raise ModelFileError(
                f"{logits.width} experts cannot be chosen from {n_group_used} of {n_group} groups of equal size; "
                "expert_count, expert_group_count and expert_group_used_count do not fit"
            )
        if n_used > logits.width // n_group * n_group_used:
            raise ModelFileError(
                f"expert_used_count is {n_used}; {n_group_used} groups hold {logits.width // n_group * n_group_used}"
            )
        _check_vector(selection_bias, logits.width)
        ids, weights = self.node(
            "moe_route",
            (logits,),
            ((n_used,), (n_used,)),
            logits.domain,
            integers=(True, False),
            n_used=n_used,
            gate=gate,
            selection_bias=selection_bias,
            renormalise=renormalise,
            scale=scale,
            groups=groups,
        )
        return ids, weights

    def moe_linear(
        self,
        x: Tensor,
        ids: Tensor,
        weight: WeightRef,
        bias: WeightRef | None = None,
        scale: WeightRef | None = None,
    ) -> Tensor:
        """Chosen experts' ``(W_e x + bias_e) * scale_e``; x is (n_in,) or (n_used, n_in); returns (n_used, n_out)."""
        _check_rank(weight, 3)
        n_expert, n_out, n_in = weight.shape
        if x.shape[-1] != n_in or (len(x.shape) == 2 and x.shape[0] != ids.width):
            raise ModelFileError(
                f"tensor {weight.name} has shape {weight.shape}; its input {x} does not fit {n_in} columns"
            )
        if ids.node.op == "moe_route" and ids.node.inputs[0].width != n_expert:
            raise ModelFileError(
                f"tensor {weight.name} has {n_expert} experts; the router {ids.node.inputs[0]} chooses among "
                f"{ids.node.inputs[0].width}"
            )
        for vector, size in ((bias, n_expert * n_out), (scale, n_expert)):
            _check_vector(vector, size)
        name = weight.name.removesuffix(".weight")
        shapes = ((ids.width, n_out),)
        return self.node(
            "moe_linear", (x, ids), shapes, x.domain, name, weight=weight, bias=bias, expert_scale=scale
        )[0]

    def moe_sum(self, x: Tensor, weights: Tensor) -> Tensor:
        """Sum of the experts' results (n_used, n) with their weights (n_used,); (n,)."""
        if x.shape[0] != weights.width:
            raise GraphError(f"{x} has {x.shape[0]} experts per row, {weights} has {weights.width}")
        return self.node("moe_sum", (x, weights), ((x.shape[1],),), x.domain)[0]

    # -- plugins' own, outputs -----------------------------------------------------------------------------------

    def op(self, name: str, *inputs: Tensor, **attrs: Any) -> Tensor:
        """Call an op registered with :func:`ggfw.graph.register_op`."""
        op = custom_op(name)
        shape = tuple(op.shape_rule(*(t.shape for t in inputs), **attrs))
        domain = inputs[0].domain if inputs else ROWS
        if domain != ROWS and op.state is not None:
            raise GraphError(
                f"op {name!r} keeps a state, so it has to see all rows; call it before select_outputs"
            )
        return self.node("custom", inputs, (shape,), domain, name, custom=op, attrs=attrs)[0]

    def output(self, *, hidden: Tensor, logits: Tensor | None = None, pooled: Tensor | None = None) -> None:
        """Set the outputs: ``hidden`` after the final norm and ``logits``, of output rows; ``pooled``, of sequences."""
        if self.hidden is not None:
            raise GraphError(
                f"the output is set already, to {self.hidden}; a graph has one call of g.output(...)"
            )
        for tensor in (hidden, logits):
            if tensor is not None and tensor.domain != OUTPUTS:
                raise GraphError(
                    f"output {tensor} must be of output rows; call select_outputs before the last norm"
                )
        if pooled is not None and pooled.domain != SEQUENCES:
            raise GraphError(f"output {pooled} must have one row per sequence; call pool before")
        self.hidden, self.logits, self.pooled = hidden, logits, pooled


def _check_rank(weight: WeightRef, rank: int) -> None:
    if len(weight.shape) != rank:
        raise ModelFileError(f"tensor {weight.name} has shape {weight.shape}; {rank} axes were expected")


def _check_vector(vector: WeightRef | None, n: int) -> None:
    if vector is not None and prod(vector.shape) != n:
        raise ModelFileError(f"tensor {vector.name} has {prod(vector.shape)} values; {n} were expected")

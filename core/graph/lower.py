"""Lowering: optimised nodes -> native steps over buffers.

One method per op of the optimised list. A view tensor (reshape, split) costs nothing; a product takes its activation
in the type its kernel wants, quantised by the step that made it where that step can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ggfw.errors import GraphError
from ggfw.graph.builder import EMBED_BY, GATES, POOLINGS, REDUCTIONS, Graph
from ggfw.graph.cache_layout import CacheLayout, cache_layout, state_of
from ggfw.graph.lower_recurrent import RecurrentLowering
from ggfw.graph.passes import GATED, Uses, optimise
from ggfw.graph.plan import F32, I32, Buffer, Plan, Step, View, _align, activation_row_bytes
from ggfw.graph.rope import Rope
from ggfw.graph.tensor import OUTPUTS, ROWS, Node, Tensor
from ggfw.graph.weights import WeightRef

WANT_LOGITS, WANT_HIDDEN, WANT_POOLED = 1, 2, 4

#: enum ggfw_elementwise_kind
ELEMENTWISE = {
    "add": 0, "mul": 1, "scale": 2, "silu": 3, "gelu": 4, "gelu_erf": 5, "relu": 6, "relu2": 7, "sigmoid": 8,
    "softplus": 9, "exp": 10, "tanh": 11, "softcap": 12, "clamp": 13, "position_scale": 14, "silu_mul": 32,
    "gelu_mul": 33, "gelu_erf_mul": 34, "relu2_mul": 35, "sigmoid_mul": 36, "gpt_oss_gate": 37,
}  # fmt: skip

NORM_KINDS = {"rms_norm": 0, "layer_norm": 1, "l2_norm": 2}
PAIRINGS = {"norm": 0, "neox": 1}
NORM_Q, NORM_K, NORM_V = 1, 2, 4


class Kernels(Protocol):
    """What the lowering asks of the loaded kernel libraries."""

    def weight_type(self, ref: WeightRef, op: str) -> int:
        """Return the ggml type ``ref`` is computed in: its own, or F32 where no kernel has it."""

    def activation(self, ggml_type: int, op: str) -> int:
        """Return the activation type (F32, Q8 or Q16) of the kernel for a weight type."""

    def pair(self, op: str, ggml_type: int | None) -> tuple[Any, Any]:
        """Return the (decode, prompt) kernels of an op."""


def make_plan(
    graph: Graph,
    kernels: Kernels,
    *,
    max_rows: int,
    max_outputs: int,
    fuse: bool = True,
    keep_all: bool = False,
) -> Plan:
    """Optimise, lower, allocate and validate.

    Args:
        kernels: decides activation types and kernels.
        max_rows, max_outputs: capacities of a batch.
        fuse: False leaves q/k/v, gates and residuals as single steps (trace).
        keep_all: True gives every buffer memory of its own (verify, trace).
    """
    return _Lowering(graph, kernels, cache_layout(graph), fuse).plan(max_rows, max_outputs, keep_all)


class _Lowering(RecurrentLowering):
    def __init__(self, graph: Graph, kernels: Kernels, layout: CacheLayout, fuse: bool) -> None:
        self.graph = graph
        self.kernels = kernels
        self.layout = layout
        outputs = {t for t in (graph.logits, graph.hidden, graph.pooled) if t is not None}
        self.nodes = optimise(graph.nodes, outputs, fuse)
        self.uses = Uses(self.nodes, outputs)
        self.index = {id(node): i for i, node in enumerate(self.nodes)}
        self.steps: list[Step] = []
        self.place: dict[Tensor, View] = {}
        self.held: dict[Buffer, list[Tensor]] = {}  # tensors by the buffer they are, or were, in
        self.quantised: dict[tuple[Buffer, int, int, int, int], View] = {}
        self.tables: dict[Rope, View] = {}
        self.wants = self._wants()

    def plan(self, max_rows: int, max_outputs: int, keep_all: bool) -> Plan:
        self.keep_all = keep_all
        for node in self.nodes:
            method = "elementwise" if node.op in ELEMENTWISE else node.op
            if method in NORM_KINDS:
                method = "norm"
            before = len(self.steps)
            getattr(self, f"_{method}")(node)
            for step in self.steps[before:]:
                step.needed_for = self.wants[id(node)]
        plan = Plan(self.steps, self.layout, max_rows, max_outputs)
        plan.logits = self.place[self.graph.logits] if self.graph.logits is not None else None
        plan.hidden = self.place[self.graph.hidden] if self.graph.hidden is not None else None
        plan.pooled = self.place[self.graph.pooled] if self.graph.pooled is not None else None
        if plan.logits is not None:
            self.steps.append(Step("sample", OUTPUTS, [plan.logits], needed_for=WANT_LOGITS))
        for step in self.steps:
            if step.kernels is None and step.op != "sample" and step.node is None:
                step.kernels = self.kernels.pair(step.op, None)
        plan.allocate(keep_all)
        plan.validate()
        return plan

    def _wants(self) -> dict[int, int]:
        """What each node is needed for; 0 = always (it stores into a cache)."""
        need: dict[Tensor, int] = {}
        g = self.graph
        for output, want in ((g.logits, WANT_LOGITS), (g.hidden, WANT_HIDDEN), (g.pooled, WANT_POOLED)):
            if output is not None:
                need[output] = need.get(output, 0) | want
        result = {}
        for node in reversed(self.nodes):
            want = 0
            for t in node.outputs:
                want |= need.get(t, 0)
            if not node.outputs or node.op == "rope_store" or state_of(node) is not None:
                want = -1
            for t in node.inputs:
                need[t] = -1 if want == -1 else need.get(t, 0) | want
            result[id(node)] = 0 if want == -1 else want
        return result

    # -- memory --------------------------------------------------------------------------------------------------

    def _put(self, tensor: Tensor, view: View) -> None:
        self.place[tensor] = view
        self.held.setdefault(view.buffer, []).append(tensor)

    def _new(self, tensor: Tensor) -> View:
        view = View(
            Buffer(tensor.domain, _align(tensor.width * 4)), 0, tensor.width, I32 if tensor.integer else F32
        )
        self._put(tensor, view)
        return view

    def _dead_after(self, tensor: Tensor, node: Node) -> bool:
        """Whether nobody reads the memory of ``tensor`` after ``node`` (so that a result may replace it)."""
        if self.keep_all:
            return False
        buffer, here = self.place[tensor].buffer, self.index[id(node)]
        if self.place[tensor].width * 4 != self._row(buffer, tensor):
            return False
        return not any(
            t in self.uses.outputs or any(self.index[id(user)] > here for user in self.uses.by.get(t, []))
            for t in self.held[buffer]
            if self.place[t].buffer is buffer
        )

    @staticmethod
    def _row(buffer: Buffer, tensor: Tensor) -> int:
        return tensor.width * 4 if _align(tensor.width * 4) == buffer.row_bytes else -1

    def _step(self, op: str, node: Node, inputs: Sequence[Tensor | None], **kw: Any) -> Step:
        step = Step(
            op,
            node.outputs[0].domain if node.outputs else ROWS,
            [None if t is None else self.place[t] for t in inputs],
            **kw,
        )
        step.consumes = [(t, self.place[t]) for t in inputs if t is not None]
        self.steps.append(step)
        return step

    def _produce(self, step: Step, *tensors: Tensor) -> None:
        for t in tensors:
            view = self.place.get(t) or self._new(t)
            step.outputs.append(view)
            step.produces.append((t, view))

    # -- activations ---------------------------------------------------------------------------------------------

    def _activation(self, tensor: Tensor, ggml_type: int, op: str) -> View:
        """Return ``tensor`` in the type that the kernel of ``op`` for ``ggml_type`` wants."""
        view = self.place[tensor]
        kind = self.kernels.activation(ggml_type, op)
        if kind == F32:
            return view
        slots = tensor.shape[0] if op == "moe_linear" and len(tensor.shape) == 2 else 1
        key = (view.buffer, view.column, view.width, slots, kind)
        if key not in self.quantised:
            row = slots * activation_row_bytes(kind, view.width // slots)
            copy = View(Buffer(tensor.domain, row), 0, view.width, kind)
            maker = self.steps[-1] if self.steps else None
            whole = maker is not None and len(maker.outputs) == 1 and maker.outputs[0] == view and slots == 1
            if whole and maker is not None and maker.op in ("norm", "elementwise", "attention"):
                maker.outputs.append(copy)
            else:
                step = Step(
                    "quantize", tensor.domain, [view], [copy], params={"slots": slots}, union="quantize"
                )
                step.consumes = [(tensor, view)]
                self.steps.append(step)
            self.quantised[key] = copy
        return self.quantised[key]

    def _written(self, view: View) -> None:
        """Forget quantised copies of a buffer that is written again."""
        self.quantised = {key: q for key, q in self.quantised.items() if key[0] is not view.buffer}

    # -- tokens, products ----------------------------------------------------------------------------------------

    def _embed(self, node: Node) -> None:
        ref = node.attrs["weight"]
        step = self._step("embed", node, [], weights=[ref], union="embed")
        step.params = {"scale": node.attrs["scale"], "by": EMBED_BY.index(node.attrs["by"])}
        step.kernels = self.kernels.pair("embed", None)
        self._produce(step, *node.outputs)

    def _linears(self, node: Node) -> None:
        """One step per weight format: a step has one kernel."""
        attrs, x = node.attrs, node.inputs[0]
        residual = node.inputs[1] if attrs["residual"] else None
        parts: dict[int, list[int]] = {}
        for i, ref in enumerate(attrs["weights"]):
            ggml_type = self.kernels.weight_type(ref, "linear")
            parts.setdefault(ggml_type, []).append(i)
        for ggml_type, members in parts.items():
            view = self._activation(x, ggml_type, "linear")
            step = self._step("linear", node, [], union="linear")
            step.weights = [attrs["weights"][i] for i in members]
            step.kernels = self.kernels.pair("linear", ggml_type)
            step.params = {
                "n_parts": len(members),
                "bias": [attrs["biases"][i] for i in members],
                "scale": attrs["scale"],
                "softcap": attrs["softcap"],
            }
            step.inputs = [view]
            step.consumes = [(x, view)]
            if residual is not None:
                if self._dead_after(residual, node):
                    self._put(node.outputs[0], self.place[residual])
                    self._written(self.place[residual])
                step.inputs.append(self.place[residual])
                step.consumes.append((residual, self.place[residual]))
            self._produce(step, *(node.outputs[i] for i in members))

    def _moe_route(self, node: Node) -> None:
        a = node.attrs
        step = self._step("moe_route", node, node.inputs, union="moe")
        step.params = {
            "n_expert": node.inputs[0].width, "n_used": a["n_used"], "gate": GATES.index(a["gate"]),
            "renormalise": int(a["renormalise"]), "n_group": a["groups"][0], "n_group_used": a["groups"][1],
            "scale": a["scale"], "selection_bias": a["selection_bias"],
        }  # fmt: skip
        self._produce(step, *node.outputs)

    def _linear_heads(self, node: Node) -> None:
        """Experts that are not chosen: the matrix of each head."""
        self._matrices(node, node.inputs[0], None)

    def _moe_linear(self, node: Node) -> None:
        self._matrices(node, *node.inputs)

    def _matrices(self, node: Node, x: Tensor, ids: Tensor | None) -> None:
        """Slot s of a row through matrix ids[s], or matrix s."""
        ref = node.attrs["weight"]
        ggml_type = self.kernels.weight_type(ref, "moe_linear")
        view = self._activation(x, ggml_type, "moe_linear")
        step = self._step("moe_linear", node, [None, ids], weights=[ref], union="moe")
        step.inputs[0] = view
        step.consumes.insert(0, (x, view))
        step.kernels = self.kernels.pair("moe_linear", ggml_type)
        step.params = {
            "n_expert": ref.shape[0], "n_used": node.outputs[0].shape[0],
            "per_slot_input": int(len(x.shape) == 2), "bias": node.attrs.get("bias"),
            "expert_scale": node.attrs.get("expert_scale"),
        }  # fmt: skip
        self._produce(step, *node.outputs)

    def _moe_sum(self, node: Node) -> None:
        x, weights, *residual = node.inputs
        if residual and self._dead_after(residual[0], node):
            self._put(node.outputs[0], self.place[residual[0]])
            self._written(self.place[residual[0]])
        step = self._step("moe_sum", node, [x, weights, *residual], union="moe")
        step.params = {"n_used": weights.width}
        self._produce(step, *node.outputs)

    # -- norms, elementwise --------------------------------------------------------------------------------------

    def _norm(self, node: Node) -> None:
        a, x = node.attrs, node.inputs[0]
        step = self._step("norm", node, node.inputs, union="norm")
        width = a["weight"] or a["bias"]
        step.params = {
            "kind": NORM_KINDS[node.op], "group": x.shape[-1], "eps": a["eps"], "scale": 1.0,
            "weight": a["weight"], "bias": a["bias"],
            "weight_width": _size(width.shape) if width is not None else x.shape[-1],
        }  # fmt: skip
        self._produce(step, *node.outputs)

    def _reduce(self, node: Node) -> None:
        step = self._step("reduce", node, node.inputs, union="reduce")
        step.params = {"kind": REDUCTIONS.index(node.attrs["kind"]), "group": node.inputs[0].shape[-1]}
        self._produce(step, *node.outputs)

    def _elementwise(self, node: Node) -> None:
        a = node.attrs
        step = self._step("elementwise", node, node.inputs, union="elementwise")
        vector = a.get("vector")
        step.params = {
            "kind": ELEMENTWISE[node.op], "alpha": a.get("alpha", 0.0), "beta": a.get("beta", 0.0),
            "gamma": a.get("gamma", 0.0), "vector": vector,
            "vector_width": _size(vector.shape) if vector is not None else 0,
        }  # fmt: skip
        self._produce(step, *node.outputs)

    # -- attention -----------------------------------------------------------------------------------------------

    def _table(self, rope: Rope) -> View:
        """Return the cos/sin table of a rotation, computed once per step."""
        if rope not in self.tables:
            view = View(Buffer(ROWS, _align(rope.dims * 4)), 0, rope.dims, F32)
            self.steps.append(
                Step("rope_table", ROWS, [], [view], params={"n_rot": rope.dims, "rope": rope}, union="rope")
            )
            self.tables[rope] = view
        return self.tables[rope]

    def _rope_store(self, node: Node) -> None:
        a = node.attrs
        rope: Rope | None = a["rope"]
        table = self._table(rope) if rope is not None else None
        pool, layer = self.layout.place[a["layer"]]
        spec = self.layout.pools[pool]
        *query, k, v = (*node.inputs, None) if spec.v_in_k else node.inputs
        q = query[0] if query else None
        step = self._step("rope_store", node, [q, k, v], union="rope_store")
        step.inputs.append(table)
        if q is not None and self._dead_after(q, node):
            self._put(node.outputs[0], self.place[q])
        flags = sum(f for f, n in ((NORM_Q, a["q_norm"]), (NORM_K, a["k_norm"]), (NORM_V, a["v_norm"])) if n)
        step.params = {
            "n_head": q.shape[0] if q is not None else 0, "n_head_kv": spec.n_head_kv, "d_k": spec.d_k,
            "d_v": spec.d_v, "n_rot": rope.dims if rope else 0, "pairing": PAIRINGS[rope.pairing] if rope else 0,
            "norm_flags": flags, "pool": pool, "layer": layer, "eps": a["eps"], "q_scale": 1.0,
            **{f"{x}_norm": a[f"{x}_norm"] and a[f"{x}_norm"].attrs["weight"] for x in "qkv"},
        }  # fmt: skip
        self._produce(step, *node.outputs)

    def _kv_store(self, node: Node) -> None:
        self._rope_store(
            Node(
                "rope_store",
                node.inputs,
                {**node.attrs, "rope": None, "eps": 0.0, "q_norm": None, "k_norm": None, "v_norm": None},
            )  # fmt: skip
        )

    def _rope(self, node: Node) -> None:
        """A rotation that was not fused with a store."""
        rope: Rope = node.attrs["rope"]
        table = self._table(rope)
        step = self._step("rope_store", node, node.inputs, union="rope_store")
        step.inputs += [None, None, table]
        n_head, d = node.inputs[0].shape
        step.params = {"n_head": n_head, "d_k": d, "n_rot": rope.dims, "pairing": PAIRINGS[rope.pairing],
                       "q_scale": 1.0}  # fmt: skip
        self._produce(step, *node.outputs)

    def _attend(self, node: Node) -> None:
        a = node.attrs
        pool, layer = self.layout.place[a["layer"]]
        n_head_kv, d_k, d_v = a["kv_shape"]
        step = self._step("attention", node, node.inputs, union="attention")
        step.params = {
            "n_head": node.inputs[0].shape[0], "n_head_kv": n_head_kv, "d_k": d_k, "d_v": d_v, "pool": pool,
            "layer": layer, "window": a["window"], "scale": a["scale"], "softcap": a["softcap"],
            "sinks": a["sinks"], "bidirectional": 2 if a["symmetric"] else int(not a["causal"]),
        }  # fmt: skip
        self._produce(step, *node.outputs)

    # -- shapes --------------------------------------------------------------------------------------------------

    def _reshape(self, node: Node) -> None:
        self._put(node.outputs[0], self.place[node.inputs[0]])

    def _split(self, node: Node) -> None:
        """Column ranges are views; ranges of an inner axis are copied together, slot by slot."""
        x = node.inputs[0]
        whole = self.place[x]
        n_slots = x.width // x.shape[-1]
        column = whole.column
        for t in node.outputs:
            if n_slots == 1:
                self._put(t, View(whole.buffer, column, t.width, whole.type))
            else:
                self._copy_slots(node, t, column, n_slots)
            column += t.shape[-1] * 4

    def _copy_slots(self, node: Node, part: Tensor, column: int, n_slots: int) -> None:
        """Copy the same columns of every slot of a row to where they stand next to each other."""
        x = node.inputs[0]
        step = self._step("copy", node, [x], union="copy")
        step.inputs = [View(self.place[x].buffer, column, part.width)]
        step.params = {"slots": n_slots, "from": x.shape[-1], "to": part.shape[-1]}
        self._produce(step, part)

    def _concat(self, node: Node) -> None:
        target = self._new(node.outputs[0])
        *heads, columns = node.outputs[0].shape
        column = 0
        for t in node.inputs:
            step = self._step("copy", node, [t], union="copy")
            if heads:  # one head is read again for every slot
                step.params = {"slots": heads[0], "from": t.shape[-1] if t.shape[0] > 1 else 0, "to": columns}
            step.outputs = [View(target.buffer, column, t.shape[-1] * (heads[0] if heads else 1))]
            column += t.shape[-1] * 4
        step.produces = [(node.outputs[0], target)]

    def _gather(self, node: Node) -> None:
        self._produce(self._step("gather", node, node.inputs), *node.outputs)

    def _pool(self, node: Node) -> None:
        step = self._step("pool", node, node.inputs, union="pooling")
        step.params = {"kind": POOLINGS.index(node.attrs["kind"]), "input_domain": node.inputs[0].domain}
        self._produce(step, *node.outputs)

    # -- plugins' own --------------------------------------------------------------------------------------------

    def _custom(self, node: Node) -> None:
        op = node.attrs["custom"]
        step = self._step("custom", node, node.inputs, union="custom")
        step.params = {"attrs": node.attrs["attrs"], "state": self._state_index(node)}
        if op.c is None:
            step.node = node
        else:
            step.kernels = (op.c, op.c)
        self._produce(step, *node.outputs)

    def _state_index(self, node: Node) -> int:
        stateful = [n for n in self.graph.nodes if state_of(n) is not None]
        return stateful.index(node) if node in stateful else -1


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


_METHODS = {*ELEMENTWISE, *NORM_KINDS, *GATED.values()}


def check_vocabulary() -> None:
    """Raise when an op of the vocabulary has no lowering; the tests call it."""
    from ggfw.execute.reference_ops import REFERENCE

    missing = [op for op in REFERENCE if op not in _METHODS and not hasattr(_Lowering, f"_{op}")]
    missing = [op for op in missing if op not in ("attention", "linear")]
    if missing:
        raise GraphError(f"ops without a lowering: {missing}")

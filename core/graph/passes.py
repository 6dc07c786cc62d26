"""Passes: general rewrites of the node list before it is lowered. None knows an architecture.

Each pass takes and returns a list of nodes in an order of evaluation. Fused nodes reuse the tensors of the graph they
stand for, so that a plan's steps can still be compared with the reference by name.

    split_attention    attention -> kv_store (K and V into the cache) + attend
    fuse_rope_store    per-head norms, rope of q and k, kv_store -> rope_store
    fuse_gates         silu(a) * b -> one elementwise node
    fold_scales        a factor of a product into the product
    fuse_epilogues     soft cap and residual add into the product before them
    group_linears      products of one activation -> one step (q/k/v, gate/up)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

from ggfw.graph.tensor import Node, Tensor

#: Parts that one native linear step can have (GGFW_MAX_OUTPUTS).
MAX_PARTS = 4

#: Activation functions that have a fused product with a second tensor.
GATED = {"silu": "silu_mul", "gelu": "gelu_mul", "gelu_erf": "gelu_erf_mul", "relu2": "relu2_mul",
         "sigmoid": "sigmoid_mul"}  # fmt: skip


class Uses:
    """Who uses which tensor, over a list of nodes."""

    def __init__(self, nodes: Iterable[Node], outputs: Iterable[Tensor]) -> None:
        self.by: dict[Tensor, list[Node]] = {}
        self.outputs = set(outputs)
        for node in nodes:
            for t in node.inputs:
                self.by.setdefault(t, []).append(node)

    def only(self, t: Tensor) -> Node | None:
        """Return the single node that uses ``t``; None when there are more, none, or ``t`` is an output."""
        users = self.by.get(t, [])
        return users[0] if len(users) == 1 and t not in self.outputs else None


def fused(op: str, inputs: Iterable[Tensor], outputs: Iterable[Tensor], **attrs: Any) -> Node:
    """Return a node of the optimised list whose results are existing tensors."""
    return Node(op, tuple(inputs), attrs, tuple(outputs))


def ordered(nodes: list[Node]) -> list[Node]:
    """Sort nodes so that each stands after what it needs, changing as little as possible.

    Besides tensors, an attend needs the kv_store of its cache's layer.
    """
    made: dict[Tensor, int] = {t: i for i, node in enumerate(nodes) for t in node.outputs}
    stores = {n.attrs["layer"]: i for i, n in enumerate(nodes) if n.op in ("kv_store", "rope_store")}
    waiting, users = [0] * len(nodes), [[] for _ in nodes]  # type: list[int], list[list[int]]
    for i, node in enumerate(nodes):
        needs = {made[t] for t in node.inputs if t in made}
        if node.op == "attend" and node.attrs["layer"] in stores:
            needs.add(stores[node.attrs["layer"]])
        needs.discard(i)
        waiting[i] = len(needs)
        for j in needs:
            users[j].append(i)
    ready = [i for i, n in enumerate(waiting) if n == 0]
    heapq.heapify(ready)
    result = []
    while ready:
        i = heapq.heappop(ready)
        result.append(nodes[i])
        for j in users[i]:
            waiting[j] -= 1
            if not waiting[j]:
                heapq.heappush(ready, j)
    assert len(result) == len(nodes), "the node list has a cycle"
    return result


def split_attention(nodes: list[Node], outputs: set[Tensor]) -> list[Node]:
    """Separate what an attention stores from what it computes."""
    result = []
    for node in nodes:
        if node.op != "attention":
            result.append(node)
            continue
        if len(node.inputs) > 1:
            result.append(fused("kv_store", node.inputs[1:], (), layer=node.attrs["layer"]))
        result.append(fused("attend", node.inputs[:1], node.outputs, **node.attrs))
    return result


def _rotation(t: Tensor, uses: Uses) -> tuple[Tensor, Node | None, list[Node]]:
    """Return (source, norm, nodes): what can be absorbed before ``t``, a rope node's input."""
    norm = t.node
    if norm.op == "rms_norm" and uses.only(t) and _is_per_head(norm):
        return norm.inputs[0], norm, [norm]
    return t, None, []


def _is_per_head(norm: Node) -> bool:
    weight = norm.attrs["weight"]
    width = norm.outputs[0].shape[-1]
    return len(norm.outputs[0].shape) == 2 and (
        weight is None or weight.shape[-1] == width == _size(weight.shape)
    )


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def fuse_rope_store(nodes: list[Node], outputs: set[Tensor]) -> list[Node]:
    """Put the per-head norms and rotations of q and k, and the store of k and v, into one node per layer."""
    uses = Uses(nodes, outputs)
    # Of the attends over one cache, the first belongs to the layer that fills it.
    attends = {n.attrs["layer"]: n for n in reversed(nodes) if n.op == "attend"}
    replace: dict[int, Node] = {}
    drop: set[int] = set()
    for i, store in enumerate(nodes):
        if store.op != "kv_store":
            continue
        k, *rest = store.inputs
        v = rest[0] if rest else None  # None: columns of K
        gone: list[Node] = []
        rope, k_norm, eps = None, None, 0.0
        if k.node.op == "rope" and uses.only(k):
            rope = k.node.attrs["rope"]
            gone.append(k.node)
            k, norm, absorbed = _rotation(k.node.inputs[0], uses)
            gone += absorbed
            k_norm = norm
        v_norm = None
        if v is not None and v.node.op == "rms_norm" and uses.only(v) and _is_per_head(v.node):
            v_norm, v = v.node, v.node.inputs[0]
            gone.append(v_norm)
        rotated = _rotated_query(attends.get(store.attrs["layer"]), uses) if rope is not None else None
        stored = [k] if v is None else [k, v]
        inputs, results, q_norm = stored, (), None  # type: list[Tensor], tuple[Tensor, ...], Node | None
        if rotated is not None and rotated.node.attrs["rope"] == rope:
            q, q_norm, absorbed = _rotation(rotated.node.inputs[0], uses)
            gone += [rotated.node, *absorbed]
            inputs, results = [q, *stored], (rotated,)
        norms = [n for n in (q_norm, k_norm, v_norm) if n is not None]
        if len({n.attrs["eps"] for n in norms}) > 1:
            continue
        eps = norms[0].attrs["eps"] if norms else 0.0
        replace[i] = fused(
            "rope_store", inputs, results, layer=store.attrs["layer"], rope=rope, eps=eps,
            q_norm=q_norm, k_norm=k_norm, v_norm=v_norm,
        )  # fmt: skip
        drop.update(id(n) for n in gone)
    return [replace.get(i, n) for i, n in enumerate(nodes) if id(n) not in drop]


def _rotated_query(attend: Node | None, uses: Uses) -> Tensor | None:
    """Return the rope output that becomes an attend's q, perhaps through a scaling by position."""
    if attend is None:
        return None
    q = attend.inputs[0]
    if q.node.op in ("position_scale", "scale") and uses.only(q):
        q = q.node.inputs[0]
    return q if q.node.op == "rope" and uses.only(q) else None


def fuse_gates(nodes: list[Node], outputs: set[Tensor]) -> list[Node]:
    """Merge an activation function and the product that is its only use."""
    uses = Uses(nodes, outputs)
    drop: set[int] = set()
    result = []
    for node in nodes:
        if node.op == "mul" and len(node.inputs) == 2:
            for a, b in (node.inputs, node.inputs[::-1]):
                if a.node.op in GATED and a.width == b.width and uses.only(a) and id(a.node) not in drop:
                    drop.add(id(a.node))
                    node = fused(GATED[a.node.op], (a.node.inputs[0], b), node.outputs)
                    break
        result.append(node)
    return [n for n in result if id(n) not in drop]


def fold_scales(nodes: list[Node], outputs: set[Tensor]) -> list[Node]:
    """Let a product apply the factor that is its only use."""
    uses = Uses(nodes, outputs)
    made = {t: n for n in nodes for t in n.outputs}
    drop: set[int] = set()
    result: list[Node] = []
    for node in nodes:
        if node.op == "scale" and node.attrs["beta"] == 0.0:
            product = made.get(node.inputs[0])
            if product is not None and product.op == "linear" and uses.only(node.inputs[0]):
                drop.add(id(product))
                scale = product.attrs["scale"] * node.attrs["alpha"]
                node = fused("linear", product.inputs, node.outputs, **{**product.attrs, "scale": scale})
        result.append(node)
    return [n for n in result if id(n) not in drop]


def fuse_epilogues(nodes: list[Node], outputs: set[Tensor]) -> list[Node]:
    """Let a product apply the soft cap and the residual add that are its only use."""
    uses = Uses(nodes, outputs)
    made = {t: n for n in nodes for t in n.outputs}
    drop: set[int] = set()
    result: list[Node] = []
    for node in nodes:
        if node.op == "softcap":
            product = made.get(node.inputs[0])
            if product is not None and product.op == "linear" and uses.only(node.inputs[0]):
                drop.add(id(product))
                node = fused(
                    "linear", product.inputs, node.outputs, **product.attrs, softcap=node.attrs["alpha"]
                )
        elif node.op == "add" and len(node.inputs) == 2:
            for y, residual in (node.inputs[::-1], node.inputs):
                product = made.get(y)
                if (
                    product is not None
                    and product.op in ("linear", "moe_sum")
                    and uses.only(y)
                    and y.width == residual.width
                    and id(product) not in drop
                    and made.get(residual) is not product
                ):
                    drop.add(id(product))
                    inputs = (*product.inputs, residual)
                    node = fused(product.op, inputs, node.outputs, **product.attrs, residual=True)
                    break
        result.append(node)
    return [n for n in result if id(n) not in drop]


def group_linears(nodes: list[Node], outputs: set[Tensor], max_parts: int) -> list[Node]:
    """Merge products of the same activation without residual into nodes of up to ``max_parts`` parts."""
    groups: dict[tuple[Tensor, float, float], list[Node]] = {}
    place: dict[int, list[Node]] = {}
    for node in nodes:
        if node.op != "linear":
            continue
        if node.attrs.get("residual"):
            place[id(node)] = [node]
            continue
        key = (node.inputs[0], node.attrs["scale"], node.attrs.get("softcap", 0.0))
        group = groups.get(key)
        if group is None or len(group) == max_parts:
            group = groups[key] = []
            place[id(node)] = group
        group.append(node)
    result = []
    for node in nodes:
        if node.op != "linear":
            result.append(node)
        elif id(node) in place:
            parts = place[id(node)]
            result.append(
                fused(
                    "linears",
                    node.inputs,
                    [p.outputs[0] for p in parts],
                    weights=[p.attrs["weight"] for p in parts],
                    biases=[p.attrs["bias"] for p in parts],
                    scale=node.attrs["scale"],
                    softcap=node.attrs.get("softcap", 0.0),
                    residual=bool(node.attrs.get("residual")),
                )
            )
    return result


#: What lowering needs in any case, and what only saves time.
NORMAL_FORM = (split_attention,)
FUSIONS = (fuse_rope_store, fuse_gates, fold_scales, fuse_epilogues)


def needed(nodes: list[Node], outputs: set[Tensor]) -> list[Node]:
    """Drop nodes whose results nobody uses (stores stay)."""
    wanted = set(outputs)
    result = []
    for node in reversed(nodes):
        if not node.outputs or any(t in wanted for t in node.outputs):
            wanted.update(node.inputs)
            result.append(node)
    return result[::-1]


def optimise(nodes: list[Node], outputs: set[Tensor], fuse: bool = True) -> list[Node]:
    """Run the passes; returns nodes in an order of evaluation.

    Args:
        outputs: tensors that must exist at the end.
        fuse: False leaves every tensor of the graph its own (trace); each product is then a group of one.
    """
    nodes = needed(nodes, outputs)
    for rewrite in (*NORMAL_FORM, *(FUSIONS if fuse else ())):
        nodes = ordered(rewrite(nodes, outputs))
    return ordered(group_linears(nodes, outputs, MAX_PARTS if fuse else 1))

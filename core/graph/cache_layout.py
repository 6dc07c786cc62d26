"""Which caches a graph needs: pools of layers of one kind, and recurrent states."""

from __future__ import annotations

from ggfw.cache import PoolSpec
from ggfw.errors import GraphError
from ggfw.graph.builder import Graph
from ggfw.graph.custom import StateSpec
from ggfw.graph.tensor import Node
from ggfw.records import dataclass


@dataclass(frozen=True)
class CacheLayout:
    """Caches of one graph.

    Attributes:
        pools: layers with the same K/V shape and window share one.
        place: layer -> (pool, index inside the pool).
        states: recurrent states in the order of their nodes.
    """

    pools: tuple[PoolSpec, ...]
    place: dict[int, tuple[int, int]]
    states: tuple[StateSpec, ...]


def state_of(node: Node) -> StateSpec | None:
    """Return the recurrent state a node needs, if any."""
    if node.op == "custom":
        shapes = [t.shape for t in node.inputs]
        spec: StateSpec | None = node.attrs["custom"].state_spec(shapes, node.attrs["attrs"])
    else:
        spec = node.attrs.get("state")
    return spec


def cache_layout(graph: Graph) -> CacheLayout:
    """Derive pools and states from the attention and stateful nodes of a graph.

    Raises:
        GraphError: two attentions store into the cache of one layer, one reads a cache nobody fills, or a window is
            negative.
    """
    kinds: dict[tuple[tuple[int, int, int], int, bool], list[int]] = {}
    stores = [n for n in graph.nodes if n.op == "attention" and len(n.inputs) > 1]
    for node in stores:
        if not 0 <= node.attrs["window"] < 2**31:
            raise GraphError(
                f"{node} has a window of {node.attrs['window']} positions; 0 (no window) or more was expected"
            )
        kind = (node.attrs["kv_shape"], node.attrs["window"], len(node.inputs) == 2)
        kinds.setdefault(kind, []).append(node.attrs["layer"])
    pools, place = [], {}
    for i, ((shape, window, v_in_k), layers) in enumerate(kinds.items()):
        pools.append(PoolSpec(tuple(layers), *shape, window=window, v_in_k=v_in_k))
        for index, layer in enumerate(layers):
            if layer in place:
                raise GraphError(
                    f"two attentions store K and V as layer {layer}; give each its own layer number"
                )
            place[layer] = (i, index)
    for node in graph.nodes:
        if node.op == "attention" and node.attrs["layer"] not in place:
            raise GraphError(
                f"{node} reads the cache of layer {node.attrs['layer']}, which no attention fills"
            )
    states = tuple(spec for node in graph.nodes if (spec := state_of(node)) is not None)
    return CacheLayout(tuple(pools), place, states)

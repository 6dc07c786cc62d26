"""Blocks that several architectures have in exactly the same form: functions over a graph, imported by plugins."""

from __future__ import annotations

from ggfw.graph.builder import Graph
from ggfw.graph.tensor import Tensor
from ggfw.graph.weights import Weights

__all__ = ["swiglu"]


def swiglu(g: Graph, h: Tensor, b: Weights) -> Tensor:
    """Wdown (silu(Wgate h) * Wup h), with optional biases (Shazeer 2020)."""
    gate = g.linear(h, b["ffn_gate"], b.get("ffn_gate.bias"))
    up = g.linear(h, b["ffn_up"], b.get("ffn_up.bias"))
    return g.linear(g.silu(gate) * up, b["ffn_down"], b.get("ffn_down.bias"))

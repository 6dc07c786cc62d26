"""Symbolic tensors and the nodes that make them.

A tensor has one row per token (or per output, or per sequence: its *domain*); ``shape`` is the shape of one row. So
``(n_embd,)`` stands for ``(T, n_embd)`` and ``(n_head, head_dim)`` for ``(T, n_head, head_dim)``.
"""

from __future__ import annotations

from dataclasses import field
from math import prod
from typing import TYPE_CHECKING, Any

from ggfw.errors import GraphError
from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw.graph.builder import Graph

#: Domains: rows of the batch, gathered output rows, sequences (values of ``enum ggfw_domain``).
ROWS, OUTPUTS, SEQUENCES = 0, 1, 2

Shape = tuple[int, ...]


@dataclass(eq=False)
class Tensor:
    """A value of the graph.

    Attributes:
        shape: shape of one row.
        domain: ROWS, OUTPUTS or SEQUENCES.
        node: what computes it.
        name: unique in its graph; ``ggfw trace`` writes tensors under it.
        integer: True for ids (int32), False for float32.
    """

    graph: Graph
    shape: Shape
    domain: int
    node: Node
    name: str
    integer: bool = False

    @property
    def width(self) -> int:
        """Elements of one row."""
        return prod(self.shape)

    def heads(self, n_head: int, head_dim: int) -> Tensor:
        """View a row of ``n_head * head_dim`` columns as (n_head, head_dim)."""
        return self.graph.reshape(self, (n_head, head_dim))

    def flat(self) -> Tensor:
        """View a row as one axis."""
        return self.graph.reshape(self, (self.width,))

    def named(self, name: str) -> Tensor:
        """Give the tensor a name of its own, for ``ggfw trace``; returns the tensor."""
        self.name = self.graph.unique_name(name)
        return self

    def __add__(self, other: Any) -> Tensor:
        return self.graph.add(self, other)

    def __mul__(self, other: Any) -> Tensor:
        return self.graph.mul(self, other)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"{self.name}{list(self.shape)}"


@dataclass(eq=False)
class Node:
    """One operation.

    Attributes:
        op: name in the op vocabulary.
        inputs, outputs: tensors.
        attrs: parameters; weights among them are :class:`ggfw.graph.weights.WeightRef`.
    """

    op: str
    inputs: tuple[Tensor, ...]
    attrs: dict[str, Any]
    outputs: tuple[Tensor, ...] = field(default=())

    def __repr__(self) -> str:
        return f"{', '.join(map(repr, self.outputs))} = {self.op}({', '.join(t.name for t in self.inputs)})"


def broadcast_width(a: Tensor, b: Tensor) -> None:
    """Check that ``b`` can be combined elementwise with ``a``: same shape, or one value per row."""
    if a.domain != b.domain:
        raise GraphError(f"{a} and {b} have rows of different kinds; gather both or none of them")
    if a.width != b.width and b.width != 1:
        raise GraphError(f"{a} and {b} cannot be combined: {a.width} columns against {b.width}")

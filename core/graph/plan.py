"""The plan: a flat list of native steps over buffers with fixed places, made once per model.

Rows of a buffer are contiguous and start on 64-byte borders; a buffer is as long as its domain's capacity. Buffers
whose lives do not overlap share memory, unless everything is kept (verify, trace).
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ggfw.errors import GraphError
from ggfw.graph.cache_layout import CacheLayout
from ggfw.graph.tensor import ROWS, Node, Tensor
from ggfw.graph.weights import WeightRef
from ggfw.records import dataclass

#: Element types of views: enum ggfw_type.
F32, I32, Q8, Q16 = 0, 1, 2, 3

ALIGN = 64


def activation_row_bytes(kind: int, n: int) -> int:
    """Bytes of one row of ``n`` quantised activations with scales and sums (Q8 or Q16, see ggfw_kernels.h)."""
    if kind == Q16:
        return _align(2 * n + n // 32 * 4 + n // 16 * 4 + n // 32 * 4)
    return _align(_align(n) + n // 16 * 8 + n // 32 * 4)


def _align(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


@dataclass(eq=False)
class Buffer:
    """Memory of one value for every row of a domain.

    Attributes:
        domain: ROWS, OUTPUTS or SEQUENCES.
        row_bytes: bytes from one row to the next.
        offset: place in the arena, set by :meth:`Plan.allocate`.
        first, last: steps between which it is alive.
    """

    domain: int
    row_bytes: int
    offset: int = -1
    first: int = -1
    last: int = -1


@dataclass(frozen=True)
class View:
    """Columns of a buffer.

    Attributes:
        column: byte offset inside a row.
        width: elements.
        type: F32, I32, Q8 or Q16.
    """

    buffer: Buffer
    column: int
    width: int
    type: int = F32


@dataclass(frozen=True)
class Transposed:
    """A parameter of a step: the values of a tensor with two axes, the axes exchanged."""

    ref: WeightRef


@dataclass(eq=False)
class Step:
    """One native step.

    Attributes:
        op: name of the ``GGFW_OP_*`` in lower case.
        inputs, outputs: views; None = absent.
        weights: matrices the kernel reads.
        params: fields of the op's parameter struct; weight references stand for vectors of float32.
        union: name of the parameter union's member.
        needed_for: 0 = always, else what the batch must want (``enum ggfw_wants``).
        produces: graph tensors that stand in its outputs, for verify and trace.
        consumes: graph tensors that stand in its inputs.
        kernels: (decode kernel, prompt kernel), chosen by the lowering; opaque.
        node: a NumPy op that interrupts the plan, instead of a native step.
    """

    op: str
    domain: int
    inputs: list[View | None] = field(default_factory=list)
    outputs: list[View | None] = field(default_factory=list)
    weights: list[WeightRef] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    union: str = ""
    needed_for: int = 0
    produces: list[tuple[Tensor, View]] = field(default_factory=list)
    consumes: list[tuple[Tensor, View]] = field(default_factory=list)
    kernels: tuple[Any, Any] | None = None
    node: Node | None = None

    def views(self) -> list[View]:
        """All views that are present."""
        return [v for v in (*self.inputs, *self.outputs) if v is not None]

    def describe(self) -> str:
        """One line for ``ggfw show --graph``."""
        made = ", ".join(f"{t.name}{list(t.shape)}" for t, _ in self.produces)
        used = ", ".join(t.name for t, _ in self.consumes)
        return f"{self.op:<12} {made or '(cache)'} <- {used or ', '.join(w.name for w in self.weights)}"


@dataclass
class Plan:
    """Steps, their memory, and the caches they need.

    Attributes:
        logits, hidden, pooled: views of the outputs.
        arena_bytes: size of the arena.
    """

    steps: list[Step]
    layout: CacheLayout
    max_rows: int
    max_outputs: int
    logits: View | None = None
    hidden: View | None = None
    pooled: View | None = None
    arena_bytes: int = 0

    def capacity(self, domain: int) -> int:
        """Rows a buffer of this domain has."""
        return self.max_rows if domain == ROWS else self.max_outputs

    def _size(self, buffer: Buffer) -> int:
        """Bytes of a buffer at full capacity."""
        return buffer.row_bytes * self.capacity(buffer.domain)

    def allocate(self, keep_all: bool = False) -> None:
        """Give every buffer its place: first fit over the gaps between buffers alive at the same time."""
        buffers: dict[Buffer, None] = {}
        for i, step in enumerate(self.steps):
            for view in step.views():
                buffers.setdefault(view.buffer)
                if view.buffer.first < 0:
                    view.buffer.first = i
                view.buffer.last = i
        for output in (self.logits, self.hidden, self.pooled):
            if output is not None:
                output.buffer.last = len(self.steps)
        placed: list[Buffer] = []
        for buffer in sorted(buffers, key=lambda b: (b.first, -b.row_bytes)):
            size = self._size(buffer)
            if not keep_all:  # in order of their first step: who has ended is out of the way for good
                placed = [b for b in placed if b.last >= buffer.first]
            offset = 0
            for other in sorted(placed, key=lambda b: b.offset):
                if offset + size <= other.offset:
                    break
                offset = max(offset, _align(other.offset + self._size(other)))
            buffer.offset = offset
            placed.append(buffer)
            self.arena_bytes = max(self.arena_bytes, offset + size)

    def validate(self) -> None:
        """Check the plan: every input was written before, and no step overwrites what a later one still reads.

        Raises:
            GraphError: the plan is wrong (a mistake in a pass or in the lowering).
        """
        written: dict[Buffer, int] = {}
        for i, step in enumerate(self.steps):
            for view in step.inputs:
                if view is not None and view.buffer not in written:
                    raise GraphError(f"step {i} ({step.describe()}) reads a buffer nobody wrote")
            for view in step.outputs:
                if view is not None:
                    written[view.buffer] = i
        live: list[Buffer] = []
        for b in sorted(written, key=lambda b: b.first):
            live = [a for a in live if a.last >= b.first]
            for a in live:
                if a.offset < b.offset + self._size(b) and b.offset < a.offset + self._size(a):
                    raise GraphError(f"buffers at {a.offset} and {b.offset} overlap while both are in use")
            live.append(b)

    def describe(self) -> str:
        """The plan as text, one line per step."""
        return "\n".join(f"{i:4d} {step.describe()}" for i, step in enumerate(self.steps))

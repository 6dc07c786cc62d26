"""A graph for people: what comes before the layers, the kinds of layers with how often each is there, what comes after.

Layers that compute the same (ops, shapes, parameters, the way values flow) are one kind, whatever formats their
tensors have; which format a tensor has in which layer is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from math import prod
from typing import Any

from ggfw.graph.builder import Graph
from ggfw.graph.tensor import Node, Tensor
from ggfw.graph.weights import WeightRef
from ggfw.records import dataclass

__all__ = ["Box", "Outline", "Section", "outline"]

_BLOCK = re.compile(r"^blk\.(\d+)\.")
#: Attributes that differ between layers that compute the same, or that say nothing to a reader.
_UNSAID = frozenset({"layer", "kv_shape", "custom", "attrs", "state"})


@dataclass
class Box:
    """One operation of a section.

    Attributes:
        op: its name.
        inputs: boxes of the same section by number; negative: the section's inputs, -1 first.
        shapes: shapes of the inputs, then of the outputs.
        settings: parameters worth saying.
        weights: name without ``blk.N.`` and ``.weight`` -> (shape, type id -> layers in which it has that type).
    """

    op: str
    inputs: tuple[int, ...]
    in_shapes: tuple[tuple[int, ...], ...]
    out_shapes: tuple[tuple[int, ...], ...]
    settings: dict[str, str]
    weights: dict[str, tuple[tuple[int, ...], dict[int, list[int]]]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The op, and the first of its tensors."""
        return f"{self.op} {next(iter(self.weights))}" if self.weights else self.op

    @property
    def parameters(self) -> int:
        """Elements of its tensors, in one layer."""
        return sum(prod(shape) for shape, _ in self.weights.values())


@dataclass
class Section:
    """Boxes that belong together: all layers of one kind, or what stands before or behind the layers.

    Attributes:
        title: for its head.
        layers: those it stands for; empty before and behind.
        boxes: in order of evaluation.
        inputs: names of the values that come from outside.
    """

    title: str
    layers: list[int]
    boxes: list[Box]
    inputs: list[str]

    @property
    def parameters(self) -> int:
        """Elements of its tensors, in one layer."""
        return sum(box.parameters for box in self.boxes)


@dataclass
class Outline:
    """What :func:`outline` returns.

    Attributes:
        before, after: sections without layers; None where empty.
        kinds: sections by kind of layer, in order of appearance.
        order: kind of each layer, by number in ``kinds``.
    """

    before: Section | None
    kinds: list[Section]
    after: Section | None
    order: list[int]

    @property
    def sections(self) -> list[Section]:
        """All sections in the order of evaluation."""
        return [s for s in (self.before, *self.kinds, self.after) if s is not None]

    def describe(self) -> str:
        """The order of the layers in few words: ``3 x (5 x A, B)``."""
        return ", ".join(_runs([chr(ord("A") + kind % 26) for kind in self.order])) if self.order else ""


def outline(graph: Graph) -> Outline:
    """Fold a graph. Views (``reshape``) are left out: the values are the same."""
    parts: dict[int, list[Node]] = {}
    after: list[Node] = []
    before: list[Node] = []
    current, last = -1, max((n for node in graph.nodes if (n := _layer(node)) is not None), default=-1)
    for node in graph.nodes:
        own = _layer(node)
        if own is not None:
            current = own
        leaves = own is None and current == last and (node.op == "gather" or any(_weights(node)) or after)
        (
            before
            if current < 0
            else after
            if leaves or (own is None and after)
            else parts.setdefault(current, [])
        ).append(node)
    alias = _aliases(graph)
    kinds: dict[Any, Section] = {}
    numbers: dict[Any, int] = {}
    order: list[int] = []
    for layer, nodes in sorted(parts.items()):
        section, key = _section(nodes, alias, layer)
        known = kinds.setdefault(key, section)
        numbers.setdefault(key, len(numbers))
        order.append(numbers[key])
        known.layers.append(layer)
        if known is not section:
            for mine, other in zip(known.boxes, section.boxes, strict=True):
                for name, (_, formats) in other.weights.items():
                    for kind, where in formats.items():
                        mine.weights[name][1].setdefault(kind, []).extend(where)
    for i, section in enumerate(kinds.values()):
        letter = f"{chr(ord('A') + i % 26)}: " if len(kinds) > 1 else ""
        section.title = f"{letter}{_count(section.layers)} ({_ranges(section.layers)})"
    first = _section(before, alias, None)[0] if before else None
    final = _section(after, alias, None)[0] if after else None
    for outer, title in ((first, "before the layers"), (final, "after the layers")):
        if outer is not None:
            outer.title = title
    return Outline(first, list(kinds.values()), final, order)


def _layer(node: Node) -> int | None:
    """The layer that a node's tensors, or its cache, belong to; None where it has neither."""
    for weight in _weights(node):
        found = _BLOCK.match(weight.name)
        if found:
            return int(found[1])
    return None


def _weights(node: Node) -> Iterator[WeightRef]:
    def inside(value: Any) -> Iterator[WeightRef]:
        if isinstance(value, WeightRef):
            yield value
        elif isinstance(value, Mapping):
            for part in value.values():
                yield from inside(part)
        elif isinstance(value, list | tuple):
            for part in value:
                yield from inside(part)

    yield from inside(node.attrs)


def _aliases(graph: Graph) -> dict[Tensor, Tensor]:
    """View -> the value it is a view of."""
    found: dict[Tensor, Tensor] = {}
    for node in graph.nodes:
        if node.op == "reshape":
            found[node.outputs[0]] = found.get(node.inputs[0], node.inputs[0])
    return found


def _section(nodes: list[Node], alias: dict[Tensor, Tensor], layer: int | None) -> tuple[Section, Any]:
    """A section of nodes, and what is the same for all layers that compute the same."""
    boxes: list[Box] = []
    maker: dict[Tensor, int] = {}
    outer: dict[Tensor, int] = {}
    key: list[Any] = []
    for node in nodes:
        if node.op == "reshape":
            continue
        inputs = []
        for tensor in node.inputs:
            source = alias.get(tensor, tensor)
            if source not in maker and source not in outer:
                outer[source] = -len(outer) - 1
            inputs.append(maker[source] if source in maker else outer[source])
        maker.update(dict.fromkeys(node.outputs, len(boxes)))
        custom = node.attrs.get("custom")
        settings = {**node.attrs, **(node.attrs.get("attrs") or {})}
        box = Box(
            op=str(getattr(custom, "name", "") or node.op),
            inputs=tuple(inputs),
            in_shapes=tuple(t.shape for t in node.inputs),
            out_shapes=tuple(t.shape for t in node.outputs),
            settings={k: text for k, v in settings.items() if k not in _UNSAID and (text := _said(v))},
        )
        for weight in _weights(node):
            name = _BLOCK.sub("", weight.name).removesuffix(".weight")
            where = [] if layer is None else [layer]
            box.weights[name] = (weight.shape, {weight.ggml_type: where})
        boxes.append(box)
        weights = tuple((name, shape) for name, (shape, _) in box.weights.items())
        key.append((box.op, box.inputs, box.in_shapes, box.out_shapes, tuple(box.settings.items()), weights))
    return Section("", [], boxes, [tensor.name for tensor in outer]), tuple(key)


def _said(value: Any) -> str:
    """A parameter for people; empty for what is off, and for tensors, which are said elsewhere."""
    if (
        value is None
        or value is False
        or value == 0
        or value == ""
        or isinstance(value, WeightRef | Mapping | list)
    ):
        return ""
    if isinstance(value, tuple):
        return "" if any(isinstance(v, WeightRef) for v in value) else str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if hasattr(value, "dims") and hasattr(value, "base"):  # Rope
        scaling = getattr(value.scaling, "kind", "none")
        return f"{value.dims} columns, base {value.base:g}, {value.pairing}" + (
            f", {scaling}" if scaling != "none" else ""
        )
    return str(value) if isinstance(value, bool | int | str) else ""


def _count(layers: list[int]) -> str:
    return f"{len(layers)} layers" if len(layers) != 1 else "1 layer"


def _ranges(numbers: list[int]) -> str:
    """``0-4, 6-10``."""
    found: list[list[int]] = []
    for n in numbers:
        if found and n == found[-1][1] + 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in found)


def _runs(names: list[str]) -> list[str]:
    """Runs of equal names, and the shortest period of the runs folded once more."""
    runs: list[tuple[str, int]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))

    def word(run: tuple[str, int]) -> str:
        return f"{run[1]} x {run[0]}" if run[1] > 1 else run[0]

    for period in range(2, len(runs) // 2 + 1):
        times = 1
        while runs[times * period : (times + 1) * period] == runs[:period]:
            times += 1
        if times > 1:
            inside = ", ".join(map(word, runs[:period]))
            return [f"{times} x ({inside})", *map(word, runs[times * period :])]
    return [word(run) for run in runs]

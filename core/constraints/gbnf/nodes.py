"""The tree of a GBNF grammar: what stands on the right of ``::=``."""

from __future__ import annotations

from ggfw.records import dataclass

#: Closed ranges of code points.
Ranges = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
#: Surrogates are no characters: no UTF-8 text has them.
SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of ``ranges``, which are sorted, disjoint and free of surrogates."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the vocabulary, or any other one."""

    id: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Ref:
    """Another rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Seq:
    """All items, in their order; none is the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of several items."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """``item`` from ``least`` to ``most`` times; None: any number."""

    item: Node
    least: int
    most: int | None


Node = Chars | Token | Ref | Seq | Alt | Repeat

EMPTY = Seq(())


def seq(items: list[Node]) -> Node:
    """A sequence; of one item it is that item."""
    return items[0] if len(items) == 1 else Seq(tuple(items))


def alt(items: list[Node]) -> Node:
    """A choice; of one item it is that item."""
    return items[0] if len(items) == 1 else Alt(tuple(items))


def chars(ranges: list[tuple[int, int]], negated: bool = False) -> Chars:
    """A class of characters out of ranges in any order, or the class of all others."""
    merged = _merged(ranges)
    if negated:
        merged = _gaps(merged)
    low, high = SURROGATES
    kept: list[tuple[int, int]] = []
    for first, last in merged:
        if first < low:
            kept.append((first, min(last, low - 1)))
        if last > high:
            kept.append((max(first, high + 1), last))
    return Chars(tuple(kept))


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(last, out[-1][1]))
        else:
            out.append((first, last))
    return out


def _gaps(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    at = 0
    for first, last in ranges:
        if at < first:
            out.append((at, first - 1))
        at = last + 1
    return [*out, (at, LAST)] if at <= LAST else out

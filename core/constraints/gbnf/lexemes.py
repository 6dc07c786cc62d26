"""Which lexemes a greedy lexer would get wrong.

llguidance reads text as lexemes, each as long as possible, and never goes back. GBNF knows no lexemes: any division of
the text is right. Both agree unless, for some lexeme T and text w in it, a next character c (1) goes on with T or with
another lexeme that begins with w, and (2) may also follow T: the lexer takes (1) and forgets (2). This module finds
such T and the lexeme that goes on; they then have to be cut into smaller ones. Lexemes of one character never conflict.

An expression becomes Glushkov's automaton: a state per character class, and which may follow which. Counted repetition
is taken as unbounded, which can only find more conflicts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from ggfw.constraints.gbnf.nodes import Alt, Chars, Node, Ref, Repeat, Seq
from ggfw.records import dataclass

#: States and pairs of states that are looked at for one grammar.
BUDGET = 200_000


class Exhausted(Exception):
    """More work than it is worth: let everything be cut."""


class Budget:
    """What may still be spent on one grammar."""

    def __init__(self, left: int = BUDGET) -> None:
        self.left = left

    def spend(self, n: int) -> None:
        """Take ``n`` off.

        Raises:
            Exhausted: nothing is left.
        """
        self.left -= n
        if self.left < 0:
            raise Exhausted


class Alphabet:
    """Character classes as bits: code points that no class of the grammar tells apart share one.

    Args:
        classes: all classes of the grammar.
    """

    def __init__(self, classes: Iterable[Chars]) -> None:
        borders = {border for one in classes for low, high in one.ranges for border in (low, high + 1)}
        self._borders = sorted(borders)
        self._known: dict[Chars, int] = {}

    def mask(self, one: Chars) -> int:
        """The bits of a class."""
        found = self._known.get(one)
        if found is None:
            found = 0
            for low, high in one.ranges:
                first, end = bisect_left(self._borders, low), bisect_left(self._borders, high + 1)
                found |= (1 << end) - (1 << first)
            self._known[one] = found
        return found


@dataclass(slots=True)
class Automaton:
    """Glushkov's automaton.

    Attributes:
        masks: the class of each state, as bits.
        after: states that may follow each state.
        first, last: states with which a text may begin and end.
        nullable: whether the empty text is accepted.
    """

    masks: list[int] = field(default_factory=list)
    after: list[set[int]] = field(default_factory=list)
    first: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()
    nullable: bool = True

    @property
    def first_mask(self) -> int:
        """Characters with which a text may begin."""
        return self.union(self.first)

    def union(self, states: Iterable[int]) -> int:
        """The classes of several states together."""
        out = 0
        for state in states:
            out |= self.masks[state]
        return out


def automaton(node: Node, rules: Mapping[str, Node], alphabet: Alphabet, budget: Budget) -> Automaton:
    """The automaton of a regular expression.

    Raises:
        Exhausted: it has more states than the budget allows.
    """
    out = Automaton()
    out.first, out.last, out.nullable = _Builder(rules, alphabet, budget, out).build(node)
    return out


_Ends = tuple[frozenset[int], frozenset[int], bool]  # first states, last states, nullable


class _Builder:
    def __init__(self, rules: Mapping[str, Node], alphabet: Alphabet, budget: Budget, out: Automaton) -> None:
        self._rules, self._alphabet, self._budget, self._out = rules, alphabet, budget, out

    def build(self, node: Node) -> _Ends:
        out = self._out
        if isinstance(node, Ref):
            return self.build(self._rules[node.name])
        if isinstance(node, Chars):
            self._budget.spend(1)
            state = frozenset([len(out.masks)])
            out.masks.append(self._alphabet.mask(node))
            out.after.append(set())
            return state, state, False
        if isinstance(node, Repeat):
            first, last, nullable = self.build(node.item)
            if node.most != 1:
                self._join(last, first)
            return first, last, nullable or node.least == 0
        assert isinstance(node, Seq | Alt)
        first, last, nullable = frozenset[int](), frozenset[int](), isinstance(node, Seq)
        for item in node.items:
            item_first, item_last, item_nullable = self.build(item)
            if isinstance(node, Alt):
                first, last, nullable = first | item_first, last | item_last, nullable or item_nullable
                continue
            self._join(last, item_first)
            first = first | item_first if nullable else first
            last = last | item_last if item_nullable else item_last
            nullable = nullable and item_nullable
        return first, last, nullable

    def _join(self, last: frozenset[int], first: frozenset[int]) -> None:
        self._budget.spend(len(last))
        for state in last:
            self._out.after[state] |= first


def conflicts(automata: Sequence[Automaton], begin: int, follow: Sequence[int], budget: Budget) -> set[int]:
    """Lexemes that take part in a conflict, as indices.

    Only lexemes that the lexer may look for at the same place are compared. Two may be if the text can begin with
    either, or if each may follow one of two that are looked for at the same place and have a text in common.

    Args:
        automata: of the lexemes; one without states stands for an element that is not text.
        begin: the lexemes with which the text may begin, as bits.
        follow: the lexemes that may come after each, as bits.
        budget: what the comparisons may cost.

    Raises:
        Exhausted: they would cost more.
    """
    found: set[int] = set()
    after = [_union_of_firsts(automata, lexemes) for lexemes in follow]
    waiting = {(i, j) for i in _bits(begin) for j in _bits(begin)}
    seen = set(waiting)
    while waiting:
        i, j = waiting.pop()
        goes_on, common = _compare(automata[i], automata[j], after[i], budget)
        if goes_on:
            found |= {i, j}
        if common:
            budget.spend(follow[i].bit_count() * follow[j].bit_count())
            new = {(k, m) for k in _bits(follow[i]) for m in _bits(follow[j])} - seen
            waiting |= new
            seen |= new
    return found


def _bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def _union_of_firsts(automata: Sequence[Automaton], lexemes: int) -> int:
    out = 0
    for i in _bits(lexemes):
        out |= automata[i].first_mask
    return out


def _compare(one: Automaton, other: Automaton, after: int, budget: Budget) -> tuple[bool, bool]:
    """Run two automata side by side.

    Returns:
        whether ``other`` may go on, with a character of ``after``, where ``one`` ends; whether they have a text in
        common.
    """
    if not one.masks or not other.masks:
        return False, True
    waiting = [(p, q) for p in one.first for q in other.first if one.masks[p] & other.masks[q]]
    seen = set(waiting)
    goes_on, common = False, one.nullable and other.nullable
    while waiting and not (goes_on and common):
        p, q = waiting.pop()
        if p in one.last:
            common = common or q in other.last
            goes_on = goes_on or bool(other.union(other.after[q]) & after)
        budget.spend(1 + len(one.after[p]) * len(other.after[q]))
        for next_p in one.after[p]:
            for next_q in other.after[q]:
                if one.masks[next_p] & other.masks[next_q] and (next_p, next_q) not in seen:
                    seen.add((next_p, next_q))
                    waiting.append((next_p, next_q))
    return goes_on, common

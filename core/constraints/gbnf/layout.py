"""Dividing a grammar into lexemes (regular expressions) and rules over them, so that greedy lexing is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from ggfw.constraints.gbnf.lexemes import Alphabet, Automaton, Budget, Exhausted, automaton, conflicts
from ggfw.constraints.gbnf.nodes import Alt, Chars, Node, Ref, Repeat, Seq, Token, seq
from ggfw.constraints.gbnf.rules import ROOT, Rules, fixpoint, has_token, references, regular
from ggfw.records import dataclass

#: Characters of an expression with all its rules written out: as the only lexeme of a grammar, and beside others.
MAX_WHOLE, MAX_LEXEME = 20_000, 2_000


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A regular expression that is one lexeme."""

    node: Node


#: A node of a laid-out rule: like :data:`Node`, with :class:`Lexeme` for what is regular.
Laid: TypeAlias = Lexeme | Token | Ref | Seq | Alt | Repeat


class Layout:
    """The rules over lexemes.

    Args:
        rules: cleaned rules.
        whole: let a grammar without recursion be a single lexeme.

    Attributes:
        rules: what they were made of; regular rules are referred to from lexemes.
        laid: the rules over lexemes, ``root`` first.
    """

    def __init__(self, rules: Rules, whole: bool = True) -> None:
        self.rules = rules
        self._regular = regular(rules)
        inside = {name: rules[name] for name in self._regular}
        self._sizes = fixpoint(inside, 0, _size)
        alone = whole and ROOT in self._regular and self._sizes[ROOT] <= MAX_WHOLE
        self._limit = MAX_WHOLE if alone else MAX_LEXEME
        self._budget = Budget()
        #: Expressions that are no lexeme.
        self._split: set[Node] = set()
        self._split_all = False
        if not whole:
            self._split |= {rules[ROOT], Ref(ROOT)}
        self.laid: dict[str, Laid] = {}
        while True:
            self._lay_out()
            conflicting = self._conflicts()
            if not conflicting:
                break
            self._split |= conflicting

    # -- division -------------------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        self.laid = {}
        waiting = [ROOT]
        while waiting:
            name = waiting.pop()
            if name not in self.laid:
                self.laid[name] = laid = self._lay(self.rules[name])
                waiting += _rule_references(laid)

    def _is_regular(self, node: Node) -> bool:
        return not has_token(node) and all(name in self._regular for name in references(node))

    def _is_lexeme(self, node: Node) -> bool:
        if isinstance(node, Chars):
            return True
        if self._split_all or node in self._split or not self._is_regular(node):
            return False
        return _size(node, self._sizes.__getitem__) <= self._limit

    def _lay(self, node: Node) -> Laid:
        if self._is_lexeme(node):
            return Lexeme(node)
        if isinstance(node, Seq):
            return Seq(tuple(self._lay_sequence(list(node.items))))  # type: ignore[arg-type]
        if isinstance(node, Alt):
            return Alt(tuple(self._lay(item) for item in node.items))  # type: ignore[arg-type,misc]
        if isinstance(node, Repeat):
            return Repeat(self._lay(node.item), node.least, node.most)  # type: ignore[arg-type]
        assert isinstance(node, Ref | Token)
        return node

    def _lay_sequence(self, items: list[Node]) -> Iterator[Laid]:
        """Neighbouring regular items become one lexeme, unless that has been split."""
        run: list[Node] = []
        for item in [*items, None]:
            if item is not None and self._is_regular(item):
                run.append(item)
                continue
            if run and len(run) < len(items) and self._is_lexeme(seq(run)):
                yield Lexeme(seq(run))
            else:
                yield from map(self._lay, run)
            run = []
            if item is not None:
                yield self._lay(item)

    # -- conflicts ------------------------------------------------------------------------------------------------

    def _conflicts(self) -> set[Node]:
        """Expressions that must not be lexemes."""
        if self.laid[ROOT] == Lexeme(self.rules[ROOT]) or self._split_all:
            return set()  # a single lexeme has no neighbours; characters have no inside
        lexemes = list(dict.fromkeys(one for laid in self.laid.values() for one in _lexemes(laid)))
        alphabet = Alphabet(one for node in self.rules.values() for one in _classes(node))
        try:
            # Token elements are all the same here: element 0, which has no text.
            automata = [Automaton(nullable=False)]
            automata += [automaton(one.node, self.rules, alphabet, self._budget) for one in lexemes]
            begin, follow = _Neighbours(self.laid, lexemes, automata).find()
            found = {lexemes[i - 1].node for i in conflicts(automata, begin, follow, self._budget)}
        except Exhausted:
            self._split_all = True
            self._lay_out()
            return set()
        return {node for node in found if not isinstance(node, Chars)}


class _Neighbours:
    """Which elements (lexemes, as bits of their indices) may begin the text, and which may follow each.

    Args:
        laid: the rules.
        lexemes: element 1 and following; element 0 stands for all tokens.
        automata: of the elements.
    """

    def __init__(self, laid: dict[str, Laid], lexemes: list[Lexeme], automata: list[Automaton]) -> None:
        self._laid = laid
        self._index = {lexeme: i for i, lexeme in enumerate(lexemes, 1)}
        self._nullable = [one.nullable for one in automata]
        self._of = fixpoint(laid, (0, False), self._begin).__getitem__  # type: ignore[arg-type]

    def find(self) -> tuple[int, list[int]]:
        """(elements that may begin the text, elements that may follow each)."""
        out = [0] * len(self._nullable)
        after_rule = dict.fromkeys(self._laid, 0)
        waiting = dict.fromkeys(self._laid)
        while waiting:
            name = next(iter(waiting))
            del waiting[name]
            stack: list[tuple[Any, int]] = [(self._laid[name], after_rule[name])]
            while stack:
                node, after = stack.pop()
                if isinstance(node, Lexeme | Token):
                    out[self._element(node)] |= after
                elif isinstance(node, Ref):
                    if after | after_rule[node.name] != after_rule[node.name]:
                        after_rule[node.name] |= after
                        waiting[node.name] = None
                elif isinstance(node, Repeat):
                    again = 0 if node.most == 1 else self._begin(node.item, self._of)[0]
                    stack.append((node.item, after | again))
                elif isinstance(node, Alt):
                    stack += [(item, after) for item in node.items]
                else:
                    for item in reversed(node.items):
                        stack.append((item, after))
                        mask, nullable = self._begin(item, self._of)
                        after = mask | after if nullable else mask
        return self._of(ROOT)[0], out

    def _element(self, node: Lexeme | Token) -> int:
        return 0 if isinstance(node, Token) else self._index[node]

    def _begin(self, node: Any, of: Callable[[str], tuple[int, bool]]) -> tuple[int, bool]:
        """(elements with which a node may begin, whether it may be empty)."""
        if isinstance(node, Lexeme | Token):
            i = self._element(node)
            return 1 << i, self._nullable[i]
        if isinstance(node, Ref):
            return of(node.name)
        if isinstance(node, Repeat):
            mask, nullable = self._begin(node.item, of)
            return mask, nullable or node.least == 0
        if isinstance(node, Alt):
            ends = [self._begin(item, of) for item in node.items]
            return _joined(mask for mask, _ in ends), any(nullable for _, nullable in ends)
        begin = 0
        for item in node.items:
            mask, nullable = self._begin(item, of)
            begin |= mask
            if not nullable:
                return begin, False
        return begin, True


def _joined(masks: Iterable[int]) -> int:
    out = 0
    for mask in masks:
        out |= mask
    return out


def _size(node: Node, of: Callable[[str], int]) -> int:
    """Characters of an expression with all rules written out, repetitions once."""
    if isinstance(node, Ref):
        return of(node.name)
    if isinstance(node, Seq | Alt):
        return 1 + sum(_size(item, of) for item in node.items)
    return 1 + _size(node.item, of) if isinstance(node, Repeat) else 1


def _inside(node: Laid | Node) -> Iterator[Laid | Node]:
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, Seq | Alt):
            stack += node.items
        elif isinstance(node, Repeat):
            stack.append(node.item)


def _lexemes(node: Laid) -> Iterator[Lexeme]:
    return (one for one in _inside(node) if isinstance(one, Lexeme))


def _classes(node: Node) -> Iterator[Chars]:
    return (one for one in _inside(node) if isinstance(one, Chars))


def _rule_references(node: Laid) -> Iterator[str]:
    return (one.name for one in _inside(node) if isinstance(one, Ref))

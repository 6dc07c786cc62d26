"""A laid-out grammar -> the text of llguidance's Lark dialect."""

from __future__ import annotations

from collections.abc import Callable

from ggfw.constraints.gbnf.layout import Laid, Layout, Lexeme
from ggfw.constraints.gbnf.nodes import Alt, Chars, Node, Ref, Repeat, Seq, Token
from ggfw.constraints.gbnf.rules import ROOT, references

#: Groups within each other in one rule; llguidance reads no more than 30.
MAX_GROUPS = 12


def emit(layout: Layout) -> str:
    """The Lark text; its rules are ``r0``, ``r1`` …, its terminals ``T0``, ``T1`` …"""
    return _Emitter(layout).text()


class _Emitter:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._lines: list[str] = []
        self._rules = {name: f"r{i}" for i, name in enumerate(layout.laid)}
        self._terminals: dict[Node, str] = {}
        self._waiting: list[Node] = []  # terminals whose lines have not been written
        self._n_helpers = 0

    def text(self) -> str:
        self._lines.append(f"start: {self._rules[ROOT]}")
        for name, laid in self._layout.laid.items():
            self._line(self._rules[name], laid, self._rule_atom, "h")
        while self._waiting:
            node = self._waiting.pop()
            body = self._layout.rules[node.name] if isinstance(node, Ref) else node
            self._line(self._terminals[node], body, self._terminal_atom, "H")
        return "\n".join(self._lines) + "\n"

    def _line(
        self, name: str, node: Laid | Node, atom: Callable[[Laid | Node], str | None], helper: str
    ) -> None:
        self._lines.append(f"{name}: {self._written(node, atom, helper, 0)}")

    # -- what is written as one word ------------------------------------------------------------------------------

    def _rule_atom(self, node: Laid | Node) -> str | None:
        if isinstance(node, Lexeme):
            return self._terminal(node.node)
        if isinstance(node, Token):
            return f"<[^{node.id}]>" if node.negated else f"<[{node.id}]>"
        return self._rules[node.name] if isinstance(node, Ref) else None

    def _terminal_atom(self, node: Laid | Node) -> str | None:
        if isinstance(node, Ref):
            return self._terminal(node)
        assert not isinstance(node, Lexeme)
        return None if any(True for _ in references(node)) else f"/{regex(node)}/"

    def _terminal(self, node: Node) -> str:
        found = self._terminals.get(node)
        if found is None:
            found = self._terminals[node] = f"T{len(self._terminals)}"
            self._waiting.append(node)
        return found

    # -- expressions ----------------------------------------------------------------------------------------------

    def _written(
        self, node: Laid | Node, atom: Callable[[Laid | Node], str | None], helper: str, level: int
    ) -> str:
        """An expression; one that needs brackets inside another gets them, or, deep down, a rule of its own."""
        word = atom(node)
        if word is not None:
            return word
        if level > MAX_GROUPS:
            self._n_helpers += 1
            name = f"{helper}{self._n_helpers}"
            self._line(name, node, atom, helper)
            return name
        if isinstance(node, Repeat):
            inner = self._written(node.item, atom, helper, level + 1)
            # A choice inside has its brackets already.
            whole = atom(node.item) is not None or inner.isidentifier() or isinstance(node.item, Alt)
            return (inner if whole else f"({inner})") + _count(node.least, node.most)
        assert isinstance(node, Seq | Alt)
        parts = [self._written(item, atom, helper, level + 1) for item in node.items]
        if isinstance(node, Alt):
            joined = " | ".join(parts)
            return f"({joined})" if level else joined
        return " ".join(parts) or '""'


def regex(node: Node) -> str:
    """A regular expression in Rust's syntax, without a slash, for a node without references."""
    if isinstance(node, Chars):
        if len(node.ranges) == 1 and node.ranges[0][0] == node.ranges[0][1]:
            return _char(node.ranges[0][0])
        return "[" + "".join(_char(a) if a == b else f"{_char(a)}-{_char(b)}" for a, b in node.ranges) + "]"
    if isinstance(node, Repeat):
        inner = regex(node.item)
        return (inner if isinstance(node.item, Chars) else f"(?:{inner})") + _count(node.least, node.most)
    if isinstance(node, Alt):
        return "(?:" + "|".join(map(regex, node.items)) + ")"
    assert isinstance(node, Seq)
    return "".join(map(regex, node.items)) or "(?:)"


def _char(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:X}}}"


def _count(least: int, most: int | None) -> str:
    if most is None and least < 2:
        return "+" if least else "*"
    if (least, most) == (0, 1):
        return "?"
    return f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"

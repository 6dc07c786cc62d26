"""GBNF text -> rules. The syntax is that of llama.cpp's ``grammars/README.md``, token elements included."""

from __future__ import annotations

import re
from collections.abc import Callable

from ggfw.constraints.gbnf.nodes import (
    EMPTY,
    LAST,
    Chars,
    Node,
    Ref,
    Repeat,
    Token,
    alt,
    chars,
    seq,
)
from ggfw.errors import InvalidRequest

#: Groups within each other.
MAX_NESTING = 64
#: A count in braces above it is refused.
MAX_REPEAT = 10_000

#: Repetitions of repetitions, as in ``x*?``.
MAX_STACKED = 4

#: Looks the single token up that a text is; None if it is none or several.
FindToken = Callable[[str], int | None]

_LEXEMES = re.compile(
    r"""(?P<space>[ \t]+|\#[^\r\n]*)
      | (?P<newline>\r\n|\r|\n)
      | (?P<define>::=)
      | (?P<name>[A-Za-z0-9_-]+)
      | (?P<text>"(?:[^"\\]|\\.)*")
      | (?P<class>\[(?:[^\]\\]|\\.)*\])
      | (?P<token>!?<[^<>\r\n]+>)
      | (?P<repeat>\{[ \t\r\n]*\d+[ \t\r\n]*(?:,[ \t\r\n]*\d*[ \t\r\n]*)?\})
      | (?P<mark>[()|*+?.])""",
    re.VERBOSE | re.DOTALL,
)
_CHAR = re.compile(
    r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\([trn\\\"\[\]-])|([^\\])", re.DOTALL
)
_CONTROL = {"t": "\t", "r": "\r", "n": "\n"}
_COUNTS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse(text: str, find_token: FindToken, param: str) -> dict[str, Node]:
    """The rules of a grammar by their names.

    Args:
        text: the grammar.
        find_token: for elements like ``<think>``.
        param: the request parameter, for errors.

    Raises:
        InvalidRequest: with the line at which it cannot go on.
    """
    return _Parser(text, find_token, param).rules()


class _Parser:
    def __init__(self, text: str, find_token: FindToken, param: str) -> None:
        self._text = text
        self._find_token = find_token
        self._param = param
        #: (kind, text, position), without space; newlines only where they may end a rule.
        self._lexemes = self._lex()
        self._at = 0

    # -- lexemes --------------------------------------------------------------------------------------------------

    def _lex(self) -> list[tuple[str, str, int]]:
        found: list[tuple[str, str, int]] = []
        at, nesting, deepest = 0, 0, 0
        while at < len(self._text):
            match = _LEXEMES.match(self._text, at)
            if match is None:
                raise self._error(f"{self._text[at : at + 20]!r} cannot be read", at)
            kind, value = str(match.lastgroup), match[0]
            if kind == "mark":
                kind = value
                nesting += (value == "(") - (value == ")")
                deepest = max(deepest, nesting)
            # Within groups, and after ::= and |, an end of line means nothing.
            blank = kind == "space" or (
                kind == "newline" and (nesting > 0 or not found or found[-1][0] in ("define", "|", "newline"))
            )
            if kind == "|" and found and found[-1][0] == "newline":
                found.pop()
            if not blank:
                found.append((kind, value, at))
            at = match.end()
        if deepest > MAX_NESTING:
            raise InvalidRequest(
                f"the GBNF grammar's groups are nested {deepest} deep; at most {MAX_NESTING} are allowed",
                self._param,
            )
        found.append(("end", "", at))
        return found

    def _error(self, what: str, at: int) -> InvalidRequest:
        line = self._text.count("\n", 0, at) + 1
        return InvalidRequest(f"the GBNF grammar cannot be used: line {line}: {what}", self._param)

    def _next(self) -> tuple[str, str, int]:
        lexeme = self._lexemes[self._at]
        self._at += 1
        return lexeme

    def _peek(self) -> str:
        return self._lexemes[self._at][0]

    def _expect(self, kind: str, what: str) -> str:
        found, value, at = self._next()
        if found != kind:
            raise self._error(f"{what} was expected, not {value!r}" if value else f"{what} was expected", at)
        return value

    # -- grammar --------------------------------------------------------------------------------------------------

    def rules(self) -> dict[str, Node]:
        """All rules."""
        out: dict[str, Node] = {}
        while self._peek() != "end":
            at = self._lexemes[self._at][2]
            name = self._expect("name", "the name of a rule")
            self._expect("define", "::=")
            if name in out:
                raise self._error(f"rule {name!r} is defined twice", at)
            out[name] = self._alternatives()
            if self._peek() != "end":
                self._expect("newline", "the end of the line")
        return out

    def _alternatives(self) -> Node:
        items = [self._sequence()]
        while self._peek() == "|":
            self._next()
            items.append(self._sequence())
        return alt(items)

    def _sequence(self) -> Node:
        items: list[Node] = []
        stacked = 0
        while True:
            kind = self._peek()
            if kind in _COUNTS or kind == "repeat":
                _, value, at = self._next()
                stacked += 1
                if not items:
                    raise self._error(f"there is nothing that {value} could repeat", at)
                if stacked > MAX_STACKED:
                    raise self._error(f"more than {MAX_STACKED} repetitions of each other", at)
                items[-1] = self._repeated(items[-1], value, at)
                continue
            stacked = 0
            if kind == "(":
                self._next()
                items.append(self._alternatives())
                self._expect(")", ")")
            elif kind in ("name", "text", "class", "token", "."):
                items.append(self._element(*self._next()))
            else:
                return seq(items)

    def _repeated(self, item: Node, count: str, at: int) -> Node:
        least, most = _COUNTS.get(count) or _counts(count)
        if most is not None and most < least:
            raise self._error(f"{count} has its bounds the wrong way round", at)
        if max(least, most or 0) > MAX_REPEAT:
            raise self._error(f"{count} repeats too often; at most {MAX_REPEAT} times are possible", at)
        return EMPTY if most == 0 else Repeat(item, least, most)

    def _element(self, kind: str, value: str, at: int) -> Node:
        if kind == "name":
            return Ref(value)
        if kind == "text":
            return seq([chars([(c, c)]) for c in self._characters(value[1:-1], at)])
        if kind == "class":
            return self._class(value[1:-1], at)
        if kind == "token":
            return self._token(value, at)
        return chars([(0, LAST)])

    def _characters(self, body: str, at: int) -> list[int]:
        """Code points of a text with escapes."""
        return [code for code, _ in self._codes(body, at)]

    def _codes(self, body: str, at: int) -> list[tuple[int, bool]]:
        """(code point, whether it was escaped)."""
        out: list[tuple[int, bool]] = []
        i = 0
        while i < len(body):
            match = _CHAR.match(body, i)
            if match is None:
                raise self._error(f'{body[i : i + 2]!r} is no escape; use \\\\, \\", \\n, \\xHH, \\uHHHH', at)
            digits = match[1] or match[2] or match[3]
            code = (
                int(digits, 16) if digits else ord(_CONTROL.get(match[4], match[4]) if match[4] else match[5])
            )
            if code > LAST:
                raise self._error(f"{match[0]} is no character", at)
            out.append((code, match[5] is None))
            i = match.end()
        return out

    def _class(self, body: str, at: int) -> Chars:
        negated = body.startswith("^")
        codes = self._codes(body[negated:], at)
        dash = (ord("-"), False)
        ranges: list[tuple[int, int]] = []
        i = 0
        while i < len(codes):
            first = last = codes[i][0]
            i += 1
            if i + 1 < len(codes) and codes[i] == dash:
                last = codes[i + 1][0]
                i += 2
                if last < first:
                    raise self._error(f"the range {chr(first)!r}-{chr(last)!r} is empty", at)
            ranges.append((first, last))
        return chars(ranges, negated)

    def _token(self, value: str, at: int) -> Token:
        negated = value.startswith("!")
        name = value[negated:]
        number = re.fullmatch(r"<\[(\d+)\]>", name)
        found = int(number[1]) if number else self._find_token(name)
        if found is None:
            raise self._error(f"{name} is not a single token of this model", at)
        return Token(found, negated)


def _counts(braces: str) -> tuple[int, int | None]:
    least, comma, most = braces[1:-1].partition(",")
    return int(least), (int(most) if most.strip() else None) if comma else int(least)

"""A JSON value, character by character: where it ends, and whether it still is one."""

from __future__ import annotations

import json
import re
from typing import Any

from ggfw.chat.reader import SPACE, Broken, Chars, Reader

#: Containers within each other; readers of JSON give up not far beyond.
MAX_DEPTH = 128

_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null")
_SCALAR_CHARS = frozenset("0123456789+-.eEtrufalsn")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPES = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")


class JsonScanner:
    """Takes a JSON value piece by piece; strict, but for raw control characters in strings, which it escapes.

    Models write line breaks into strings of code; every reader of JSON would refuse the call for them.

    Attributes:
        done: whether the value is complete. An object, a list and a string are with their last character; a number or
            a word is only when something else follows, which then was not taken (:meth:`take` gives None).
    """

    def __init__(self) -> None:
        self.done = False
        self._stack: list[str] = []  # closing brackets of the open containers
        self._expect = "value"  # value, first (value or end), key, first_key, colon, comma
        self._state = ""  # "", string, escape, hex, scalar
        self._is_key = False
        self._n_hex = 0
        self._scalar = ""

    def take(self, c: str) -> str | None:
        """Take a character; gives what stands for it in the value, or None if the value ended before it.

        Raises:
            Broken: it cannot stand there.
        """
        if self._state == "string":
            return self._in_string(c)
        if self._state == "escape":
            if c == "u":
                self._state, self._n_hex = "hex", 0
            elif c in _ESCAPES:
                self._state = "string"
            else:
                raise Broken(f"\\{c}")
            return c
        if self._state == "hex":
            if c not in _HEX:
                raise Broken("\\u")
            self._n_hex += 1
            if self._n_hex == 4:
                self._state = "string"
            return c
        if self._state == "scalar":
            if c in _SCALAR_CHARS:
                self._scalar += c
                return c
            if not _SCALAR.fullmatch(self._scalar):
                raise Broken(self._scalar)
            self._state = ""
            self._after_value()
            if self.done:
                return None
        return self._between(c)

    def _in_string(self, c: str) -> str:
        if c == '"':
            self._state = ""
            if self._is_key:
                self._expect = "colon"
            else:
                self._after_value()
        elif c == "\\":
            self._state = "escape"
        elif c < " ":
            return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(c, f"\\u{ord(c):04x}")
        return c

    def _between(self, c: str) -> str:
        expect = self._expect
        if c in SPACE:
            return c
        if expect == "colon":
            if c != ":":
                raise Broken(c)
            self._expect = "value"
        elif expect == "comma":
            if c == self._stack[-1]:
                self._pop()
            elif c == ",":
                self._expect = "key" if self._stack[-1] == "}" else "value"
            else:
                raise Broken(c)
        elif expect in ("key", "first_key"):
            if c == '"':
                self._state, self._is_key = "string", True
            elif c == "}" and expect == "first_key":
                self._pop()
            else:
                raise Broken(c)
        elif c == '"':
            self._state, self._is_key = "string", False
        elif c in "{[":
            if len(self._stack) >= MAX_DEPTH:
                raise Broken("depth")
            self._stack.append("}" if c == "{" else "]")
            self._expect = "first_key" if c == "{" else "first"
        elif c == "]" and expect == "first":
            self._pop()
        elif c in "-0123456789tfn":
            self._state, self._scalar = "scalar", c
        else:
            raise Broken(c)
        return c

    def _pop(self) -> None:
        self._stack.pop()
        self._after_value()

    def _after_value(self) -> None:
        if self._stack:
            self._expect = "comma"
        else:
            self.done = True


def scan(reader: Reader) -> Chars[str]:
    """Read one JSON value; gives its text.

    Raises:
        Broken: it is none, or the answer ends in it.
    """
    scanner, out = JsonScanner(), ""
    while not scanner.done:
        c = yield from reader.read()
        taken = scanner.take(c if c else "\0")  # a number may end with the answer
        if taken is None:
            reader.unread(c)
        elif not c:
            raise Broken("end")
        else:
            out += taken
    return out


def json_text(text: str) -> str | None:
    """``text`` as it may be handed on if it is one JSON value, as :class:`JsonScanner` reads it; else None.

    What Python's reader takes beyond JSON (``NaN``) does not count.
    """
    scanner, out = JsonScanner(), list[str]()
    try:
        for c in text.strip(SPACE):
            taken = None if scanner.done else scanner.take(c)
            if taken is None:
                return None
            out.append(taken)
        if not scanner.done:
            scanner.take("\0")  # ends a number or a word
    except Broken:
        return None
    return "".join(map(escaped, out)) if scanner.done else None


def escaped(text: str) -> str:
    """JSON text in which half surrogates, which escapes may leave and nobody can encode, are escapes again."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def written(value: Any) -> str:
    """A value that was read from a model's text as JSON text.

    Raises:
        ValueError, TypeError, RecursionError: it has no form in JSON.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # Two halves in a row are one character in JSON, so all of them are escaped together.
    return text if _SURROGATE.search(text) is None else json.dumps(value, allow_nan=False)

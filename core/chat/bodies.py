"""How calls are written between their markers: the forms that several families share.

A body is anything with ``parse(reader, sink, tools)`` (a generator, see :mod:`ggfw.chat.reader`) and
``grammar(lark, tools)``, which writes the same form as a grammar (see :mod:`ggfw.chat.call_grammar`).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ggfw.chat.jsonscan import JsonScanner, escaped, json_text, scan, written
from ggfw.chat.reader import Broken, Chars, Reader, Sink
from ggfw.chat.tools import Tools
from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw.chat.call_grammar import Lark

#: Longest name of a function.
MAX_NAME = 256
#: A name in a Python call.
_WORD = re.compile(r"""[^\s()\[\]{},='"]+""")


class Body(Protocol):
    """The form of the calls in a block."""

    def parse(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        """Read the calls of a block up to, not including, its closing marker.

        Raises:
            Broken: it is not of this form.
        """

    def grammar(self, lark: Lark, tools: Tools) -> str:
        """A Lark expression for one call of one of ``tools.callable``."""


def check_name(name: object) -> str:
    """A function's name.

    Raises:
        Broken: it cannot be one.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME or "\n" in name.strip():
        raise Broken("name")
    if escaped(name) != name:
        raise Broken("half a character")
    return name.strip()


def arguments_object(reader: Reader, sink: Sink) -> Chars[None]:
    """Read arguments that are a JSON object, and give them out as they come.

    Raises:
        Broken: they are something else.
    """
    if (yield from reader.peek()) != "{":
        raise Broken("arguments")
    scanner = JsonScanner()
    while not scanner.done:
        c = yield from reader.read()
        if not c:
            raise Broken("end")
        sink.arguments(scanner.take(c) or "")


def arguments_value(reader: Reader, sink: Sink) -> Chars[None]:
    """Read arguments: an object, the JSON text of one in a string, or null for none.

    Raises:
        Broken: they are something else.
    """
    c = yield from reader.peek()
    if c == "{":
        yield from arguments_object(reader, sink)
    elif c == '"':
        text = json_text(json.loads((yield from scan(reader))).strip() or "{}")
        if text is None or text[0] != "{":
            raise Broken("arguments")
        sink.arguments(text)
    elif c == "n":
        if (yield from scan(reader)) != "null":
            raise Broken("arguments")
        sink.arguments("{}")
    else:
        raise Broken("arguments")


@dataclass(frozen=True)
class JsonCall:
    """``{"name": …, "arguments": {…}}``; also several of them, or a list of them.

    Args:
        arguments: the key of the arguments, as the model was trained; other common ones are understood too.
        listed: all calls of an answer stand in one list.
        bare: nothing marks the block, so that only the exact form counts: these keys alone, both of them, and the name
            of a tool that was offered.
        end: first characters of what may follow although the last brace is missing.
        name: the key of the name, as the model was trained.
        lead: what stands in front of that key: a Lark expression, for grammars.
    """

    arguments: str = "arguments"
    listed: bool = False
    bare: bool = False
    end: str = "<["
    name: str = "name"
    lead: str = ""

    def parse(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        """See :class:`Body`."""
        yield from reader.space()
        if (yield from reader.match("[")):
            while True:
                yield from reader.space()
                yield from self._object(reader, sink, tools)
                yield from reader.space()
                if (yield from reader.match("]")):
                    return
                yield from reader.expect(",")
        yield from self._object(reader, sink, tools)
        while not self.bare:  # another one may follow in the same block
            space = yield from reader.space()
            if (yield from reader.peek()) != "{":
                reader.unread(space)
                return
            yield from self._object(reader, sink, tools)

    def _object(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        yield from reader.expect("{")
        call = _Envelope(self, sink, tools)
        yield from self._members(reader, call)
        call.close()

    def _members(self, reader: Reader, call: _Envelope) -> Chars[None]:
        yield from reader.space()
        if (yield from reader.match("}")):
            return
        while True:
            yield from reader.space()
            if (yield from reader.peek()) != '"':
                raise Broken("key")
            key = json.loads((yield from scan(reader)))
            yield from reader.space()
            yield from reader.expect(":")
            yield from reader.space()
            if key in ("name", "tool_name") or (key == "function" and (yield from reader.peek()) == '"'):
                call.named(json.loads((yield from scan(reader))))
            elif key == "function" and not self.bare:
                yield from reader.expect("{")
                yield from self._members(reader, call)
            elif key in (self.arguments, "arguments", "parameters"):
                yield from arguments_value(reader, call.arguments())
            elif self.bare and key not in ("type", "id"):
                raise Broken(key)
            else:
                yield from scan(reader)
            yield from reader.space()
            c = yield from reader.read()
            if c == "}":
                return
            if c != ",":
                # Small models forget the last brace; the call is whole all the same.
                if call.whole and not self.bare and (not c or c in self.end):
                    reader.unread(c)
                    return
                raise Broken(c)

    def grammar(self, lark: Lark, tools: Tools) -> str:
        """See :class:`Body`."""
        ways = [
            f"{lark.text('{')} {self.lead} {lark.text(f'{json.dumps(self.name)}: {_quoted(tool.name)}')} "
            f"{lark.text(', ' + json.dumps(self.arguments) + ': ')} {lark.arguments(tool)} {lark.text('}')}"
            for tool in tools.callable
        ]
        call = lark.rule(" | ".join(ways))
        if not self.listed:
            return call
        more = "" if tools.single else f" {lark.more(lark.text(', '), call)}"
        return lark.rule(f"{lark.text('[')} {call}{more} {lark.text(']')}")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class _Envelope:
    """One object of :class:`JsonCall`: holds arguments back that come before the name."""

    def __init__(self, form: JsonCall, sink: Sink, tools: Tools) -> None:
        self._form, self._sink, self._tools = form, sink, tools
        self._name = ""
        self._early: list[str] = []
        self._has_arguments = False

    @property
    def whole(self) -> bool:
        """Whether name and arguments are there."""
        return bool(self._name) and self._has_arguments

    def named(self, name: object) -> None:
        if self._name:
            raise Broken("a second name")
        self._name = check_name(name)
        if self._form.bare and self._tools.get(self._name) is None:
            raise Broken(self._name)
        self._sink.begin(self._name)
        for piece in self._early:
            self._sink.arguments(piece)

    def arguments(self) -> Sink:
        if self._has_arguments:
            raise Broken("arguments again")
        self._has_arguments = True
        return self._sink if self._name else Sink(self._sink.begin, self._early.append, self._sink.end)

    def close(self) -> None:
        if not self._name or (self._form.bare and not self._has_arguments):
            raise Broken("name")
        if not self._has_arguments:
            self._sink.arguments("{}")
        self._sink.end()


@dataclass(frozen=True)
class NamedJson:
    """A name, a separator, and the arguments as a JSON object: ``name[ARGS]{…}``.

    Args:
        separator: between the name and what follows.
        prefix: in front of the name; may be missing.
        before, after: around the object; may be missing, white space does not count.
        empty: whether the arguments may be missing altogether.
    """

    separator: str
    prefix: str = ""
    before: str = ""
    after: str = ""
    empty: bool = False

    def parse(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        """See :class:`Body`."""
        yield from reader.space()
        if self.prefix:
            yield from reader.match(self.prefix)
        name, _ = yield from reader.until(self.separator, limit=MAX_NAME)
        sink.begin(check_name(name))
        yield from _object_within(reader, sink, self.before, self.after, self.empty)
        sink.end()

    def grammar(self, lark: Lark, tools: Tools) -> str:
        """See :class:`Body`."""
        ways = [
            f"{lark.text(self.prefix + tool.name)} {lark.mark(self.separator)} "
            f"{lark.text(self.before)} {lark.arguments(tool)} {lark.text(self.after)}"
            for tool in tools.callable
        ]
        return lark.rule(" | ".join(ways))


def _object_within(reader: Reader, sink: Sink, before: str, after: str, empty: bool) -> Chars[None]:
    """An object between two texts that may be missing."""
    yield from reader.space()
    if before.strip() and (yield from reader.match(before.strip())):
        yield from reader.space()
    if empty and (yield from reader.peek()) != "{":
        sink.arguments("{}")
    else:
        yield from arguments_object(reader, sink)
    space = yield from reader.space()
    if not (after.strip() and (yield from reader.match(after.strip()))):
        reader.unread(space)


@dataclass(frozen=True)
class Pythonic:
    """``[f(a=1, b="x"), g()]``: Python calls with keyword arguments and literals.

    Args:
        bare: nothing marks the block, so that only calls of offered tools count.
    """

    bare: bool = False

    def parse(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        """See :class:`Body`."""
        yield from reader.space()
        if self.bare:  # most texts that begin with a bracket show at once that they are no calls
            yield from reader.expect("[")
            space = yield from reader.space()
            names = sorted((tool.name for tool in tools.callable), key=len, reverse=True)
            for name in names:
                if (yield from reader.match(name + "(")):
                    reader.unread(f"[{space}{name}(")
                    break
            else:
                raise Broken("name")
        text = yield from _brackets(reader)
        found = python_calls(text)
        if self.bare and not all(tools.get(name) for name, _ in found):
            raise Broken("name")
        for name, arguments in found:
            sink.call(name, arguments)

    def grammar(self, lark: Lark, tools: Tools) -> str:
        """See :class:`Body`. Arguments come in the order of the schema, values are JSON without its three words."""
        ways = []
        for tool in tools.callable:
            properties = tool.parameters.get("properties")
            required = tool.parameters.get("required")
            required = required if isinstance(required, list | tuple) else ()
            pairs = [
                (key, f"{lark.text(key + '=')} {lark.value(tool, schema)}")
                for key, schema in (properties.items() if isinstance(properties, dict) else ())
            ]
            ways.append(
                f"{lark.text('[' + tool.name + '(')} {_listed(lark, pairs, required)} {lark.text(')]')}"
            )
        return lark.rule(" | ".join(ways))


def _listed(lark: Lark, pairs: list[tuple[str, str]], required: Sequence[str]) -> str:
    """Pairs with commas between them, those that are not required left out at will."""
    rest = ""  # what may follow when something stands before
    starts: list[str] = []  # ways to begin, the last pair first
    all_optional = True
    for key, pair in reversed(pairs):
        starts.insert(0, f"{pair} {rest}")
        tail = f"{lark.text(', ')} {pair}"
        if key in required:
            # Nothing behind a required pair may be the beginning.
            starts, all_optional = [f"{pair} {rest}"], False
            rest = lark.rule(f"{tail} {rest}")
        else:
            rest = lark.rule(f"({tail})? {rest}")
    if not starts:
        return ""
    return lark.rule(" | ".join(starts)) + ("?" if all_optional else "")


def _brackets(reader: Reader) -> Chars[str]:
    """A Python list, to its closing bracket."""
    text, depth, quote = "", 0, ""
    while True:
        c = yield from reader.read()
        if not c or (not text and c != "["):
            raise Broken("[")
        text += c
        if quote:
            if c == "\\":
                text += yield from reader.read()
            elif c == quote:
                quote = ""
        elif c in "\"'":
            quote = c
        elif c in "([{":
            depth += 1
            if depth > 64:
                raise Broken("depth")
        elif c in ")]}":
            depth -= 1
            if not depth:
                return text


def python_calls(text: str) -> list[tuple[str, str]]:
    """(name, arguments as JSON text) of the calls in a Python list of calls.

    Names of functions and arguments may be any word, also one that Python could not have there (``get-weather``,
    ``from``): schemas do not care about Python.

    Raises:
        Broken: it is something else.
    """
    inside = text.strip()
    if inside[:1] != "[" or inside[-1:] != "]":
        raise Broken("list")
    calls = [_python_call(one) for one in _pieces(inside[1:-1])]
    if not calls:
        raise Broken("list")
    return calls


def _python_call(text: str) -> tuple[str, str]:
    name, bracket, inside = text.partition("(")
    if not bracket or inside[-1:] != ")" or not _WORD.fullmatch(name.strip()):
        raise Broken("call")
    arguments: dict[str, object] = {}
    for pair in _pieces(inside[:-1]):
        key, sign, value = pair.partition("=")
        key = key.strip()
        if not sign or key in arguments or not _WORD.fullmatch(key):
            raise Broken("arguments")
        try:
            read = json_text(value)  # forced calls write JSON, some of whose escapes Python takes otherwise
            arguments[key] = (
                _literal(ast.parse(value.strip(), mode="eval").body) if read is None else json.loads(read)
            )
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise Broken("python") from None
    try:
        return check_name(name), written(arguments)
    except (ValueError, TypeError, RecursionError):
        raise Broken("arguments") from None


def _pieces(text: str) -> list[str]:
    """What stands between the commas that are in no brackets and no quotes; one at the end is no matter."""
    out: list[str] = []
    depth, begun, at, quote = 0, 0, 0, ""
    while at < len(text):
        c = text[at]
        if quote:
            if c == "\\":
                at += 1
            elif text.startswith(quote, at):
                at, quote = at + len(quote) - 1, ""
        elif c in "\"'":
            quote = c * 3 if text.startswith(c * 3, at) else c
            at += len(quote) - 1
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth < 0:
                raise Broken(c)
        elif c == "," and not depth:
            out.append(text[begun:at].strip())
            begun = at + 1
        at += 1
    last = text[begun:].strip()
    if not all(out):
        raise Broken(",")
    return [*out, last] if last else out


def _literal(node: ast.expr) -> object:
    """A Python literal; JSON's words for true, false and null are understood too."""
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        if not all(isinstance(k, ast.Constant) and isinstance(k.value, str) for k in node.keys):
            raise Broken("key")
        pairs = zip(node.keys, node.values, strict=True)
        return {k.value: _literal(v) for k, v in pairs if isinstance(k, ast.Constant)}
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise Broken("literal") from None


__all__ = [
    "Body",
    "JsonCall",
    "NamedJson",
    "Pythonic",
    "arguments_object",
    "arguments_value",
    "check_name",
    "python_calls",
]

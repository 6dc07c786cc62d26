"""Gemma 4 and FunctionGemma: ``call:NAME{key:value}`` between control tokens, strings between marks of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ggfw.chat.bodies import MAX_NAME, check_name
from ggfw.chat.call_grammar import Lark
from ggfw.chat.dialect import Dialect, Reasoning, marks
from ggfw.chat.format import CallForm, Format
from ggfw.chat.jsonscan import MAX_DEPTH, scan
from ggfw.chat.reader import Broken, Chars, Reader, Sink
from ggfw.chat.tools import Tool, Tools
from ggfw.chat.typed import kinds_of
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl
from ggfw.records import dataclass

GGFW_PLUGIN_API = 1

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
#: Words that are no strings; templates write None, True and False as Python does.
_WORDS = {"true": "true", "True": "true", "false": "false", "False": "false", "null": "null", "None": "null"}
#: Longest value without quotes.
_MAX_WORD = 4096
#: Schemas within each other that a grammar follows; deeper values may be anything.
_MAX_SCHEMA = 16

Write = Callable[[str], None]


@dataclass(frozen=True)
class GemmaCall:
    """``call:NAME{city:<|"|>Paris<|"|>,days:3}``: bare keys, nothing escaped inside strings, the rest as in JSON.

    Also read, because models slip: quoted keys, JSON strings, bare words (they become strings).

    Args:
        quote: the mark around strings.
    """

    quote: str

    def parse(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        """See :class:`ggfw.chat.bodies.Body`."""
        yield from reader.space()
        yield from reader.expect("call:")
        name, brace = yield from reader.until("{", limit=MAX_NAME)
        if "<" in name:
            raise Broken(name)
        reader.unread(brace)
        sink.begin(check_name(name))
        yield from self._members(reader, sink.arguments, "{}", 0)
        sink.end()

    def _members(self, reader: Reader, write: Write, brackets: str, depth: int) -> Chars[None]:
        """An object or a list, as JSON."""
        if depth > MAX_DEPTH:
            raise Broken("depth")
        opening, closing = brackets[0], brackets[1]
        yield from reader.expect(opening)
        write(opening)
        yield from reader.space()
        if (yield from reader.match(closing)):
            write(closing)
            return
        while True:
            yield from reader.space()
            if closing == "}":
                yield from self._key(reader, write)
            yield from self._value(reader, write, depth)
            yield from reader.space()
            if (yield from reader.match(closing)):
                write(closing)
                return
            yield from reader.expect(",")
            write(",")

    def _key(self, reader: Reader, write: Write) -> Chars[None]:
        if not (yield from self._string(reader, write)):
            key = yield from _word(reader, ":")
            if not key:
                raise Broken("key")
            write(json.dumps(key, ensure_ascii=False))
        yield from reader.space()
        yield from reader.expect(":")
        write(":")

    def _value(self, reader: Reader, write: Write, depth: int) -> Chars[None]:
        yield from reader.space()
        c = yield from reader.peek()
        if c == "{":
            yield from self._members(reader, write, "{}", depth + 1)
        elif c == "[":
            yield from self._members(reader, write, "[]", depth + 1)
        elif not (yield from self._string(reader, write)):
            word = yield from _word(reader, ",}]")
            if not word:
                raise Broken("value")
            number = _NUMBER.fullmatch(word)
            write(word if number else _WORDS.get(word) or json.dumps(word, ensure_ascii=False))

    def _string(self, reader: Reader, write: Write) -> Chars[bool]:
        """A string in either kind of quotes, if one comes next."""
        if (yield from reader.match(self.quote)):
            write('"')
            while not (yield from reader.match(self.quote)):
                c = yield from reader.read()
                if not c:
                    raise Broken("end")
                write(json.dumps(c, ensure_ascii=False)[1:-1])
            write('"')
            return True
        if (yield from reader.peek()) == '"':
            write((yield from scan(reader)))
            return True
        return False

    # -- grammar --------------------------------------------------------------------------------------------------

    def grammar(self, lark: Lark, tools: Tools) -> str:
        """See :class:`ggfw.chat.bodies.Body`."""
        return lark.rule(
            " | ".join(
                f"{lark.text('call:' + tool.name)} {self._object_grammar(lark, tool, tool.parameters, 0)}"
                for tool in tools.callable
            )
        )

    def _object_grammar(self, lark: Lark, tool: Tool, schema: Mapping[str, Any], depth: int) -> str:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            # Nothing is said about a nested object; arguments that are not declared are none.
            return lark.text("{}") if depth == 0 else self._anything(lark)
        required = schema.get("required") or ()
        rest, starts, optional = "", list[str](), True
        for key in sorted(
            properties, key=str.lower, reverse=True
        ):  # in the order in which the template writes
            pair = f"{lark.text(key + ':')} {self._value_grammar(lark, tool, properties[key], depth + 1)}"
            if key in required:
                starts, optional = [f"{pair} {rest}"], False
                rest = lark.rule(f"{lark.text(',')} {pair} {rest}")
            else:
                starts.insert(0, f"{pair} {rest}")
                rest = lark.rule(f"({lark.text(',')} {pair})? {rest}")
        inside = lark.rule(" | ".join(starts)) + ("?" if optional else "")
        return lark.rule(f"{lark.text('{')} {inside} {lark.text('}')}")

    def _value_grammar(self, lark: Lark, tool: Tool, schema: Any, depth: int) -> str:
        if not isinstance(schema, Mapping) or depth > _MAX_SCHEMA:
            return self._anything(lark)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._value_grammar(lark, tool, _resolve(reference, tool.parameters), depth + 1)
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list | tuple) and schema[key]:
                ways = (self._value_grammar(lark, tool, one, depth + 1) for one in schema[key])
                return lark.rule(" | ".join(ways))
        values = (schema["const"],) if "const" in schema else schema.get("enum")
        if isinstance(values, list | tuple) and values:
            return lark.rule(" | ".join(self._constant(lark, value) for value in values))
        kinds = kinds_of(schema, tool.parameters)
        if not kinds:
            return self._anything(lark)
        return lark.rule(" | ".join(self._kind(lark, tool, schema, kind, depth) for kind in sorted(kinds)))

    def _kind(self, lark: Lark, tool: Tool, schema: Mapping[str, Any], kind: str, depth: int) -> str:
        if kind == "string":
            return self._text(lark)
        if kind == "object":
            return self._object_grammar(lark, tool, schema, depth)
        if kind == "array":
            item = self._value_grammar(lark, tool, schema.get("items"), depth + 1)
            some = f"{item} ({lark.text(',')} {item})*"
            inside = some if (schema.get("minItems") or 0) > 0 else f"({some})?"
            return lark.rule(f"{lark.text('[')} {inside} {lark.text(']')}")
        return lark.value(tool, {**schema, "type": kind})

    def _text(self, lark: Lark) -> str:
        return f"{lark.mark(self.quote)} {lark.until(self.quote)}"

    def _constant(self, lark: Lark, value: Any) -> str:
        if isinstance(value, str):
            return f"{lark.mark(self.quote)} {lark.text(value)} {lark.mark(self.quote)}"
        if isinstance(value, list | tuple | Mapping):
            return self._anything(lark)
        return lark.text(json.dumps(value))

    def _anything(self, lark: Lark) -> str:
        """Any value, one level of lists and objects deep."""
        scalar = lark.rule(
            f"{self._text(lark)} | {lark.json({'type': ['number', 'boolean', 'null']}, strict=True)}"
        )
        pair = f"{lark.terminal('/[A-Za-z_][0-9A-Za-z_]*/')} {lark.text(':')} {scalar}"
        comma = lark.text(",")
        return lark.rule(
            f"{scalar} | {lark.text('[')} ({scalar} ({comma} {scalar})*)? {lark.text(']')}"
            f" | {lark.text('{')} ({pair} ({comma} {pair})*)? {lark.text('}')}"
        )


def _word(reader: Reader, ends: str) -> Chars[str]:
    """Bare text up to one of ``ends``, which is left; it holds no brackets."""
    word, end = yield from reader.until(*ends, "{", "[", "<", limit=_MAX_WORD)
    if end not in ends:
        raise Broken(end)
    reader.unread(end)
    return word.strip()


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    target: Any = root
    for part in reference.removeprefix("#/").split("/"):
        target = (
            target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        )
    return target


class Gemma4(Dialect):
    """Each call has its own block; a result begins where the model would go on, so its mark ends the answer."""

    special_tokens = True
    stops = ("<|tool_response>",)
    closings = {"<channel|>": "\n<channel|>"}
    format = Format(
        reasoning=(("<|channel>thought", "<channel|>"),),
        calls=(CallForm("<|tool_call>", GemmaCall('<|"|>'), ("<tool_call|>",), between=""),),
    )

    def reasoning(self, prompt: str) -> Reasoning | None:
        """The block's opening mark is one control token and a word; constraints look for the token."""
        block = super().reasoning(prompt)
        if block is None or block.inside:
            return block
        return Reasoning(block.close, inside=False, open="<|channel>", forced=block.forced)

    def reasoning_budget(self, prompt: str, *, calls: bool) -> Reasoning | None:
        """A block that is closed before the word has come would be no block."""
        return super().reasoning(prompt)


class FunctionGemma(Dialect):
    """The same with other control tokens; it does not reason."""

    special_tokens = True
    stops = ("<start_function_response>",)
    format = Format(
        reasoning=(),
        calls=(
            CallForm("<start_function_call>", GemmaCall("<escape>"), ("<end_function_call>",), between=""),
        ),
    )


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialects of Gemma 4 and of FunctionGemma."""
    return [
        ChatDialect(
            name="gemma4",
            match=lambda metadata: marks(metadata, "<|tool_call>", '<|"|>', score=60),
            load=Gemma4,
            summary="<|tool_call>call:NAME{…}, <|channel>thought: Gemma 4",
        ),
        ChatDialect(
            name="functiongemma",
            match=lambda metadata: marks(metadata, "<start_function_call>", "<escape>", score=60),
            load=FunctionGemma,
            summary="<start_function_call>call:NAME{…}: FunctionGemma",
        ),
    ]

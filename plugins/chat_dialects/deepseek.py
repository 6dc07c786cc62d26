"""DeepSeek: calls between control tokens (R1, V3, V3.1), or as ``｜DSML｜`` elements (V3.2, V4)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ggfw.chat.bodies import MAX_NAME, arguments_object, check_name
from ggfw.chat.call_grammar import Lark
from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.chat.jsonscan import json_text
from ggfw.chat.reader import Broken, Chars, Reader, Sink
from ggfw.chat.tools import Tool, Tools
from ggfw.chat.typed import is_text, kinds_of
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl
from ggfw.records import dataclass

GGFW_PLUGIN_API = 1


def _spellings(mark: str) -> tuple[str, ...]:
    """The mark, and what distilled models, whose vocabulary does not have it, make of it."""
    return (mark, *(mark.replace("▁", other) for other in ("_", " ", "\\_")))


BEGIN, END = _spellings("<｜tool▁calls▁begin｜>"), _spellings("<｜tool▁calls▁end｜>")
CALL, CALL_END = _spellings("<｜tool▁call▁begin｜>"), _spellings("<｜tool▁call▁end｜>")
SEP = _spellings("<｜tool▁sep｜>")
#: Since V3.1.
CLOSINGS = {"</think>": "</think>"}


def _match_any(reader: Reader, texts: Iterable[str]) -> Chars[bool]:
    for text in texts:
        if (yield from reader.match(text)):
            return True
    return False


@dataclass(frozen=True)
class MarkedCalls:
    """``<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>``, several behind each other.

    R1 and V3 write ``function`` in place of the name, and the name and a fenced object behind the separator.

    Args:
        opened: the mark of the first call has been read already.
        fenced: forced calls are written as R1 does.
    """

    opened: bool = False
    fenced: bool = False

    def parse(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        """See :class:`ggfw.chat.bodies.Body`."""
        if not self.opened:
            yield from reader.space()
            if not (yield from _match_any(reader, CALL)):
                raise Broken(CALL[0])
        while True:
            yield from self._call(reader, sink)
            space = yield from reader.space()
            if not (yield from _match_any(reader, CALL)):
                reader.unread(space)
                return

    def _call(self, reader: Reader, sink: Sink) -> Chars[None]:
        name, _ = yield from reader.until(*SEP, limit=MAX_NAME)
        fenced = False
        if name.strip() == "function":
            yield from reader.space()
            name, end = yield from reader.until("\n", "{", limit=MAX_NAME)
            if end == "{":
                reader.unread(end)
        sink.begin(check_name(name))
        yield from reader.space()
        if (yield from reader.match("```")):
            fenced = True
            yield from reader.match("json")
            yield from reader.space()
        yield from arguments_object(reader, sink)
        sink.end()
        space = yield from reader.space()
        if fenced and (yield from reader.match("```")):
            space = yield from reader.space()
        if not (yield from _match_any(reader, CALL_END)):
            reader.unread(space)

    def grammar(self, lark: Lark, tools: Tools) -> str:
        """See :class:`ggfw.chat.bodies.Body`."""
        sep, ways = lark.mark(SEP[0]), []
        for tool in tools.callable:
            arguments = lark.arguments(tool)
            if self.fenced:
                head = f"{lark.text('function')} {sep} {lark.text(tool.name + chr(10) + '```json' + chr(10))}"
                ways.append(f"{head} {arguments} {lark.text(chr(10) + '```')}")
            else:
                ways.append(f"{lark.text(tool.name)} {sep} {arguments}")
        return f"{lark.rule(' | '.join(ways))} {lark.mark(CALL_END[0])}"


DSML = "｜DSML｜"
INVOKE, PARAMETER = f'<{DSML}invoke name="', f'<{DSML}parameter name="'
INVOKE_END, PARAMETER_END = f"</{DSML}invoke>", f"</{DSML}parameter>"
BLOCKS = ("tool_calls", "function_calls")


@dataclass(frozen=True)
class DsmlCalls:
    """``<｜DSML｜invoke name="NAME">`` with a ``parameter`` element for each argument, several behind each other.

    ``string="true"`` marks bare text, which is taken as it is; other values are JSON, or else text all the same.
    """

    listed: bool = True

    def parse(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        """See :class:`ggfw.chat.bodies.Body`."""
        yield from reader.space()
        yield from reader.expect(INVOKE)
        while True:
            yield from self._invoke(reader, sink)
            space = yield from reader.space()
            if not (yield from reader.match(INVOKE)):
                reader.unread(space)
                return

    def _invoke(self, reader: Reader, sink: Sink) -> Chars[None]:
        name, _ = yield from reader.until('">', limit=MAX_NAME)
        sink.begin(check_name(name))
        seen: set[str] = set()
        while True:
            yield from reader.space()
            if (yield from reader.match(INVOKE_END)):
                break
            yield from reader.expect(PARAMETER)
            head, _ = yield from reader.until(">", limit=MAX_NAME)
            key, quote, attributes = head.partition('"')
            if not quote or key in seen:
                raise Broken(head)
            sink.arguments(("," if seen else "{") + json.dumps(key, ensure_ascii=False) + ":")
            seen.add(key)
            if 'string="false"' in attributes:
                value, _ = yield from reader.until(PARAMETER_END)
                sink.arguments(_json_or_text(value))
            else:
                yield from _text(reader, sink)
        sink.arguments("}" if seen else "{}")
        sink.end()

    def grammar(self, lark: Lark, tools: Tools) -> str:
        """See :class:`ggfw.chat.bodies.Body`."""
        call = lark.rule(" | ".join(_invocation(lark, tool) for tool in tools.callable))
        return call if tools.single else f"{call} {lark.more('', call)}"


def _json_or_text(value: str) -> str:
    text = json_text(value)
    return json.dumps(value, ensure_ascii=False) if text is None else text


def _text(reader: Reader, sink: Sink) -> Chars[None]:
    """Bare text up to the end of its element, given out as it comes."""
    sink.arguments('"')
    while not (yield from reader.match(PARAMETER_END)):
        c = yield from reader.read()
        if not c:
            raise Broken("end")
        sink.arguments(json.dumps(c, ensure_ascii=False)[1:-1])
    sink.arguments('"')


def _invocation(lark: Lark, tool: Tool) -> str:
    properties = tool.parameters.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = tool.parameters.get("required") or ()
    parts = [lark.text(f'{INVOKE}{tool.name}">\n')]
    for key in [*properties, *(k for k in required if k not in properties)]:
        schema = properties.get(key)
        kinds = kinds_of(schema, tool.parameters)
        text = bool(kinds) and is_text(kinds)
        head = lark.text(f'{PARAMETER}{key}" string="{"true" if text else "false"}">')
        if text:
            value = lark.text_value(tool, schema, PARAMETER_END)
        else:
            value = f"{lark.value(tool, schema)} {lark.text(PARAMETER_END)}"
        part = f"{head} {value} {lark.text(chr(10))}"
        parts.append(part if key in required else f"({part})?")
    return " ".join([*parts, lark.text(INVOKE_END + "\n")])


def _format(fenced: bool) -> Format:
    between = "\n" if fenced else ""
    single = CallForm(
        CALL[0], MarkedCalls(True, fenced), ("", *END), between=between, group=(BEGIN[0], END[0])
    )
    return Format(
        calls=(
            single,
            *(CallForm(mark, MarkedCalls(True), END) for mark in CALL[1:]),
            *(CallForm(mark, MarkedCalls(), END) for mark in BEGIN),
        )
    )


class DeepSeekFenced(Dialect):
    """R1, its distilled models, V3."""

    special_tokens = True
    format = _format(fenced=True)


class DeepSeek(Dialect):
    """V3.1."""

    special_tokens = True
    closings = CLOSINGS
    format = _format(fenced=False)


class DeepSeekDsml(Dialect):
    """V3.2 and V4; they differ in the name of the block."""

    special_tokens = True
    closings = CLOSINGS
    format = Format(
        calls=tuple(CallForm(f"<{DSML}{b}>", DsmlCalls(), (f"</{DSML}{b}>",), gap=("\n", "")) for b in BLOCKS)
    )


class DeepSeekDsmlOld(DeepSeekDsml):
    """V3.2."""

    format = Format(calls=DeepSeekDsml.format.calls[::-1])


def _fenced(metadata: Mapping[str, Any]) -> bool:
    return bool(marks(metadata, "```"))


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialects of DeepSeek's models, told apart by what their template writes."""
    return [
        ChatDialect(
            name="deepseek_r1",
            match=lambda metadata: marks(metadata, SEP[0], "```", score=60),
            load=DeepSeekFenced,
            summary="<｜tool▁calls▁begin｜> with fenced JSON, <think>: DeepSeek R1, V3",
        ),
        ChatDialect(
            name="deepseek_v3_1",
            match=lambda metadata: 0 if _fenced(metadata) else marks(metadata, SEP[0], score=60),
            load=DeepSeek,
            summary="<｜tool▁calls▁begin｜> with plain JSON, <think>: DeepSeek V3.1",
        ),
        ChatDialect(
            name="deepseek_v3_2",
            match=lambda metadata: marks(metadata, DSML, "function_calls>", score=60),
            load=DeepSeekDsmlOld,
            summary="<｜DSML｜function_calls>, <think>: DeepSeek V3.2",
        ),
        ChatDialect(
            name="deepseek_v4",
            match=lambda metadata: marks(metadata, DSML, "tool_calls>", score=60),
            load=DeepSeekDsml,
            summary="<｜DSML｜tool_calls>, <think>: DeepSeek V4",
        ),
    ]

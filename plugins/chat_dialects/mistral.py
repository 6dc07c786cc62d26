"""Mistral: ``[TOOL_CALLS]`` and a list of JSON calls, or ``[TOOL_CALLS]name[ARGS]{…}``; reasoning in ``[THINK]``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ggfw.chat.bodies import MAX_NAME, JsonCall, arguments_object, check_name
from ggfw.chat.call_grammar import Lark
from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.chat.reader import Chars, Reader, Sink
from ggfw.chat.tools import Tools
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl
from ggfw.records import dataclass

GGFW_PLUGIN_API = 1

MARK, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
CLOSINGS = {"[/THINK]": "[/THINK]"}


@dataclass(frozen=True)
class MistralCalls:
    """Both shapes are read: models with tokenizers up to version 7 were trained on the list, later ones on names.

    Version 11 puts an id between name and arguments; some files lose ``[ARGS]``, so that the brace ends the name.

    Args:
        listed: forced calls are written as a list.
    """

    listed: bool = False
    list: JsonCall = JsonCall(listed=True)

    def parse(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        """See :class:`ggfw.chat.bodies.Body`."""
        yield from reader.space()
        if (yield from reader.peek()) == "[":
            yield from self.list.parse(reader, sink, tools)
            return
        name, end = yield from reader.until(ARGS, CALL_ID, "{", limit=MAX_NAME)
        if end == CALL_ID:
            _, end = yield from reader.until(ARGS, "{", limit=MAX_NAME)
        if end == "{":
            reader.unread(end)
        sink.begin(check_name(name))
        yield from reader.space()
        yield from arguments_object(reader, sink)
        sink.end()

    def grammar(self, lark: Lark, tools: Tools) -> str:
        """See :class:`ggfw.chat.bodies.Body`."""
        if self.listed:
            return self.list.grammar(lark, tools)
        call_id = f"({lark.mark(CALL_ID)} {lark.terminal('/[0-9A-Za-z]{9}/')})?"
        return lark.rule(
            " | ".join(
                f"{lark.text(tool.name)} {call_id} {lark.mark(ARGS)} {lark.arguments(tool)}"
                for tool in tools.callable
            )
        )


def _format(listed: bool) -> Format:
    return Format(
        reasoning=(("[THINK]", "[/THINK]"), ("<think>", "</think>")),
        calls=(CallForm(MARK, MistralCalls(listed), between=""),),
    )


class MistralList(Dialect):
    """Mistral 7B v0.3, Nemo, Large 2407 and others: all calls in one list."""

    special_tokens = True
    format = _format(listed=True)
    closings = CLOSINGS


class Mistral(Dialect):
    """Mistral Small 3.2, Devstral, Magistral, Ministral 3: a mark, a name and an object for each call."""

    special_tokens = True
    format = _format(listed=False)
    closings = CLOSINGS


def _matches(metadata: Mapping[str, Any], named: bool) -> int:
    return marks(metadata, MARK) if bool(marks(metadata, ARGS)) is named else 0


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The two dialects of Mistral's models, told apart by what their template writes."""
    return [
        ChatDialect(
            name="mistral",
            match=lambda metadata: _matches(metadata, True),
            load=Mistral,
            summary="[TOOL_CALLS]name[ARGS]{…}, [THINK]: Mistral, tokenizer version 11 and later",
        ),
        ChatDialect(
            name="mistral_list",
            match=lambda metadata: _matches(metadata, False),
            load=MistralList,
            summary="[TOOL_CALLS] and a JSON list: Mistral, tokenizer versions up to 7",
        ),
    ]

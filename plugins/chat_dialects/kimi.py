"""Kimi K2: ``<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`` in a section."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ggfw.chat.bodies import MAX_NAME, arguments_object, check_name
from ggfw.chat.call_grammar import Lark
from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.chat.reader import Chars, Reader, Sink
from ggfw.chat.tools import Tools
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl
from ggfw.records import dataclass

GGFW_PLUGIN_API = 1

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_NUMBER = re.compile(r":\d+$")


@dataclass(frozen=True)
class KimiCalls:
    """Calls behind each other; each has an id of its name and its number in the conversation.

    Args:
        opened: the mark of the first call has been read already.
    """

    opened: bool = False

    def parse(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        """See :class:`ggfw.chat.bodies.Body`."""
        if not self.opened:
            yield from reader.space()
            yield from reader.expect(CALL)
        while True:
            id, _ = yield from reader.until(ARGUMENTS, limit=MAX_NAME)
            sink.begin(check_name(_NUMBER.sub("", id.strip()).removeprefix("functions.")))
            yield from reader.space()
            yield from arguments_object(reader, sink)
            sink.end()
            space = yield from reader.space()
            if (yield from reader.match(CALL_END)):
                space = yield from reader.space()
            if not (yield from reader.match(CALL)):
                reader.unread(space)
                return

    def grammar(self, lark: Lark, tools: Tools) -> str:
        """See :class:`ggfw.chat.bodies.Body`."""
        number = lark.terminal("/:[0-9]{1,4}/")
        ways = [
            f"{lark.text('functions.' + tool.name)} {number} {lark.mark(ARGUMENTS)} {lark.arguments(tool)}"
            for tool in tools.callable
        ]
        return f"{lark.rule(' | '.join(ways))} {lark.mark(CALL_END)}"


class Kimi(Dialect):
    """All calls of an answer stand in one section."""

    special_tokens = True
    closings = {"</think>": "</think>"}
    format = Format(
        calls=(
            CallForm(CALL, KimiCalls(opened=True), ("", END), between="", group=(BEGIN, END)),
            CallForm(BEGIN, KimiCalls(), (END,)),
        ),
        interrupts=(BEGIN,),  # Kimi K2 Thinking at times goes on from its thoughts to calls like that
    )


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialect of Kimi K2 and Kimi K2 Thinking."""
    return [
        ChatDialect(
            name="kimi_k2",
            match=lambda metadata: marks(
                metadata, "<|tool_call_begin|>", "<|tool_call_argument_begin|>", score=60
            ),
            load=Kimi,
            summary="<|tool_call_begin|>functions.NAME:0, <think>: Kimi K2",
        )
    ]

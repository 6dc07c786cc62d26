"""LFM2: ``<|tool_call_start|>[NAME(key="value")]<|tool_call_end|>``, a list of Python calls; ``<think>``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ggfw.chat.bodies import JsonCall, Pythonic
from ggfw.chat.call_grammar import Lark
from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.chat.reader import Chars, Reader, Sink
from ggfw.chat.tools import Tools
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl
from ggfw.records import dataclass

GGFW_PLUGIN_API = 1

OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"


@dataclass(frozen=True)
class Lfm2Calls:
    """Python calls with literal arguments, or JSON, which a system message may ask the model for."""

    python: Pythonic = Pythonic()
    json: JsonCall = JsonCall(listed=True)

    def parse(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        """See :class:`ggfw.chat.bodies.Body`."""
        yield from reader.space()
        bracket = "[" if (yield from reader.match("[")) else ""
        space = yield from reader.space()
        is_json = (yield from reader.peek()) == "{"
        reader.unread(bracket + space)
        yield from (self.json if is_json else self.python).parse(reader, sink, tools)

    def grammar(self, lark: Lark, tools: Tools) -> str:
        """See :class:`ggfw.chat.bodies.Body`."""
        return self.python.grammar(lark, tools)


class Lfm2(Dialect):
    """Most templates of the family leave calls of earlier turns to the caller's text; they are written here."""

    special_tokens = True
    format = Format(calls=(CallForm(OPEN, Lfm2Calls(), (CLOSE,), between=""),))

    def turn_of_calls(self, calls: Sequence[tuple[str, str]]) -> tuple[str, str, str]:
        """The list that the model itself wrote."""
        return OPEN, f"[{', '.join(_python(*call) for call in calls)}]", CLOSE


def _python(name: str, arguments: str) -> str:
    try:
        given = json.loads(arguments)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        return f"{name}({arguments})"
    return f"{name}({', '.join(f'{key}={_literal(value)}' for key, value in given.items())})"


def _literal(value: Any) -> str:
    """As the model's own documentation writes it: text in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialect of LFM2 and LFM2.5."""
    return [
        ChatDialect(
            name="lfm2",
            match=match,
            load=Lfm2,
            summary="Python calls in <|tool_call_start|>, <think>: LFM2",
        )
    ]


def match(metadata: Mapping[str, Any]) -> int:
    """By a mark in its template, or by the architecture: some templates of the family show no call."""
    by_name = 45 if str(metadata.get("general.architecture")).startswith("lfm2") else 0
    return max(by_name, marks(metadata, OPEN, score=60), marks(metadata, "<|tool_list_start|>", score=60))

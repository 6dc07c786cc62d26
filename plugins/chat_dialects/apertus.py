"""Apertus: ``<|tools_prefix|>[{"NAME": {…}}]<|tools_suffix|>``.

Reasoning stands between ``<|inner_prefix|>`` and ``<|inner_suffix|>``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from ggfw.chat.bodies import arguments_object, check_name
from ggfw.chat.call_grammar import Lark
from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.chat.jsonscan import scan
from ggfw.chat.reader import Broken, Chars, Reader, Sink
from ggfw.chat.tools import Tools
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl
from ggfw.records import dataclass

GGFW_PLUGIN_API = 1


@dataclass(frozen=True)
class ApertusCalls:
    """A list of objects with one member each: the name, and the arguments."""

    listed: bool = True

    def parse(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        """See :class:`ggfw.chat.bodies.Body`."""
        yield from reader.space()
        yield from reader.expect("[")
        while True:
            yield from reader.space()
            yield from reader.expect("{")
            yield from reader.space()
            if (yield from reader.peek()) != '"':
                raise Broken("name")
            name = check_name(json.loads((yield from scan(reader))))
            yield from reader.space()
            yield from reader.expect(":")
            yield from reader.space()
            sink.begin(name)
            yield from arguments_object(reader, sink)
            yield from reader.space()
            yield from reader.expect("}")
            sink.end()
            yield from reader.space()
            if (yield from reader.match("]")):
                return
            yield from reader.expect(",")

    def grammar(self, lark: Lark, tools: Tools) -> str:
        """See :class:`ggfw.chat.bodies.Body`."""
        ways = []
        for tool in tools.callable:
            head = lark.text("{" + json.dumps(tool.name, ensure_ascii=False) + ": ")
            ways.append(f"{head} {lark.arguments(tool)} {lark.text('}')}")
        call = lark.rule(" | ".join(ways))
        more = "" if tools.single else f" {lark.more(lark.text(', '), call)}"
        return lark.rule(f"{lark.text('[')} {call}{more} {lark.text(']')}")


class Apertus(Dialect):
    """All calls stand in one list."""

    special_tokens = True
    closings = {"<|inner_suffix|>": "<|inner_suffix|>"}
    format = Format(
        reasoning=(("<|inner_prefix|>", "<|inner_suffix|>"),),
        calls=(CallForm("<|tools_prefix|>", ApertusCalls(), ("<|tools_suffix|>",)),),
    )


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialect of Apertus."""
    return [
        ChatDialect(
            name="apertus",
            match=lambda metadata: marks(metadata, "<|tools_prefix|>", "<|inner_prefix|>", score=60),
            load=Apertus,
            summary='<|tools_prefix|>[{"NAME": {…}}], <|inner_prefix|>: Apertus',
        )
    ]

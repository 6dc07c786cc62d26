"""Granite 3: ``<|tool_call|>[{"name": …, "arguments": {…}}]``; reasoning in ``<think>``, the answer in ``<response>``.

Granite 4 writes calls as Hermes does, and so has its dialect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from ggfw.chat.bodies import JsonCall
from ggfw.chat.dialect import Dialect, Parser, marks
from ggfw.chat.format import CallForm, Format
from ggfw.chat.splitter import Splitter
from ggfw.chat.tools import Tools
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

CALLS = (
    CallForm("<|tool_call|>", JsonCall(listed=True)),
    CallForm("<tool_call>", JsonCall(listed=True), ("</tool_call>",)),  # 3.1 writes its mark as plain text
)


class Granite(Dialect):
    """All calls stand in one list, which nothing closes."""

    special_tokens = True
    format = Format(calls=CALLS)
    #: With reasoning on, the system message of the template asks for a mark around the answer too.
    tagged = Format(calls=CALLS, drop=("<response>", "</response>"))

    def turn_of_calls(self, calls: Sequence[tuple[str, str]]) -> tuple[str, str, str]:
        """The template has no place for them, but shows their form when it asks for them."""
        listed = (f'{{"name": {json.dumps(n, ensure_ascii=False)}, "arguments": {a}}}' for n, a in calls)
        return "<|tool_call|>", f"[{', '.join(listed)}]", ""

    def parser(self, prompt: str, tools: Tools | None = None, *, assured: bool = False) -> Parser:
        """See :class:`ggfw.chat.dialect.Dialect`."""
        return Splitter(
            self.tagged if "<response></response>" in prompt else self.format, tools, prompt, assured
        )


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialect of Granite 3.0 to 3.3."""
    return [
        ChatDialect(
            name="granite",
            match=lambda metadata: marks(metadata, "<|start_of_role|>", "<|tool_call|>", score=60),
            load=Granite,
            summary="<|tool_call|> and a JSON list, <think>, <response>: Granite 3",
        )
    ]

"""Granite 3: ``<|tool_call|>[{"name": …, "arguments": {…}}]``; reasoning in ``<think>``, the answer in ``<response>``.

Granite 3.2 writes "Here is my thought process:" and "Here is my response:" instead. Granite 4 writes calls as Hermes
does, and so has its dialect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from ggfw.chat.bodies import JsonCall
from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

THOUGHTS, RESPONSE = "Here is my thought process:", "Here is my response:"
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
    #: Granite 3.2's asks for sentences instead.
    spoken = Format(calls=CALLS, reasoning=((THOUGHTS, RESPONSE),), lead=(RESPONSE,))
    closings = {RESPONSE: f"\n\n{RESPONSE}\n\n"}

    def turn_of_calls(self, calls: Sequence[tuple[str, str]]) -> tuple[str, str, str]:
        """The template has no place for them, but shows their form when it asks for them."""
        listed = (f'{{"name": {json.dumps(n, ensure_ascii=False)}, "arguments": {a}}}' for n, a in calls)
        return "<|tool_call|>", f"[{', '.join(listed)}]", ""

    def format_for(self, prompt: str) -> Format:
        """See :class:`ggfw.chat.dialect.Dialect`."""
        if "<response></response>" in prompt:
            return self.tagged
        return self.spoken if f"'{THOUGHTS}'" in prompt and f"'{RESPONSE}'" in prompt else self.format


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

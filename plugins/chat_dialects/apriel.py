"""Apriel: a JSON list in ``<tool_calls>``; reasoning from ``Here are my reasoning steps:`` to the final response."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.chat.bodies import JsonCall
from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

FINAL, FINAL_END = "[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"


class Apriel(Dialect):
    """The mark of the final response ends the reasoning."""

    closings = {FINAL: f"\n{FINAL}\n"}
    format = Format(
        reasoning=(("Here are my reasoning steps:", FINAL), ("<thinking>", "</thinking>")),
        calls=(CallForm("<tool_calls>", JsonCall(listed=True), ("</tool_calls>",)),),
        drop=(FINAL, FINAL_END),
    )


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialect of Apriel 1.5 and 1.6."""
    return [
        ChatDialect(
            name="apriel",
            match=lambda metadata: marks(metadata, "<tool_calls>", FINAL, score=60),
            load=Apriel,
            summary="JSON list in <tool_calls>, [BEGIN FINAL RESPONSE]: Apriel",
        )
    ]

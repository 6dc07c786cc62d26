"""Command R7B, Command A and later: ``<|START_ACTION|>[{"tool_name": …, "parameters": {…}}]<|END_ACTION|>``.

Reasoning and text have marks around them too.
"""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.chat.bodies import JsonCall
from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

#: The calls of an answer are numbered from 0, which nobody reads.
NUMBER = '"\\"tool_call_id\\": \\"" /[0-9]{1,3}/ "\\", "'


class Cohere(Dialect):
    """All calls stand in one list."""

    special_tokens = True
    closings = {"<|END_THINKING|>": "<|END_THINKING|>"}
    format = Format(
        reasoning=(("<|START_THINKING|>", "<|END_THINKING|>"),),
        calls=(
            CallForm(
                "<|START_ACTION|>",
                JsonCall("parameters", listed=True, name="tool_name", lead=NUMBER),
                ("<|END_ACTION|>",),
                gap=("", "\n"),
            ),
        ),
        drop=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    )


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialect of Command R7B, Command A, and Cohere's mixtures of experts."""
    return [
        ChatDialect(
            name="cohere",
            match=lambda metadata: marks(metadata, "<|START_ACTION|>", score=60),
            load=Cohere,
            summary="JSON list in <|START_ACTION|>, <|START_THINKING|>: Command R7B, Command A",
        )
    ]

"""MiniMax: M2 writes ``<invoke name="NAME">`` elements in ``<minimax:tool_call>``, M1 JSON in ``<tool_calls>``."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.chat.bodies import JsonCall
from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.chat.tagged import TaggedCall
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

OPEN, CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"
INVOKE = TaggedCall(
    call=('<invoke name="', '">', "</invoke>"),
    argument=('<parameter name="', '">', "</parameter>"),
    closes=(CLOSE,),
    several=True,
    layout=("\n", "", "\n"),
)


class MiniMaxM2(Dialect):
    """All calls stand in one block. Its marks are ordinary tokens with special ones around them."""

    special_tokens = True
    format = Format(calls=(CallForm(OPEN, INVOKE, (CLOSE,), gap=("\n", "\n")),))


class MiniMaxM1(Dialect):
    """JSON objects on lines of their own, all in one block."""

    format = Format(calls=(CallForm("<tool_calls>", JsonCall(), ("</tool_calls>",), gap=("\n", "\n")),))


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialects of MiniMax M1 and M2."""
    return [
        ChatDialect(
            name="minimax_m2",
            match=lambda metadata: marks(metadata, OPEN, "<invoke name=", score=60),
            load=MiniMaxM2,
            summary="<invoke> elements in <minimax:tool_call>, <think>: MiniMax M2",
        ),
        ChatDialect(
            name="minimax_m1",
            match=lambda metadata: marks(metadata, "<tool_calls>", "<beginning_of_sentence>", score=60),
            load=MiniMaxM1,
            summary="JSON lines in <tool_calls>, <think>: MiniMax M1",
        ),
    ]

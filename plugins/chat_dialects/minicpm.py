"""MiniCPM 5: ``<function name="NAME">`` with ``<param name="KEY">`` elements, text in CDATA where it needs that."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.chat.tagged import TaggedCall
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

OPEN = '<function name="'
CALL = TaggedCall(
    call=(OPEN, '">', "</function>"),
    argument=('<param name="', '">', "</param>"),
    closes=(),
    opened=True,
    layout=("", "", ""),
)


class MiniCpm(Dialect):
    """Nothing stands around a call."""

    special_tokens = True
    format = Format(calls=(CallForm(OPEN, CALL),))


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialect of MiniCPM 5."""
    return [
        ChatDialect(
            name="minicpm5",
            match=lambda metadata: marks(metadata, OPEN, '<param name="', score=60),
            load=MiniCpm,
            summary="<function name=…> with <param> elements, <think>: MiniCPM 5",
        )
    ]

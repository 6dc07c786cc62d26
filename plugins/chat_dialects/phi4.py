"""Phi-4-mini and others: a JSON list in ``<|tool_call|>``, or behind the word ``functools``."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.chat.bodies import JsonCall
from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

TAGGED = CallForm("<|tool_call|>", JsonCall(listed=True), ("<|/tool_call|>",))
WORD = CallForm("functools", JsonCall(listed=True))


class Phi4Mini(Dialect):
    """The model was trained on the mark, and writes the word where a prompt shows it that."""

    special_tokens = True
    format = Format(calls=(TAGGED, WORD))


class Functools(Dialect):
    """Firefunction v2: the word alone."""

    format = Format(calls=(WORD,))


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialects of Phi-4-mini and of Firefunction."""
    return [
        ChatDialect(
            name="phi4_mini",
            match=lambda metadata: marks(metadata, "<|tool|>", "<|/tool|>", score=60),
            load=Phi4Mini,
            summary="JSON list in <|tool_call|>, or behind functools: Phi-4-mini",
        ),
        ChatDialect(
            name="functools",
            match=lambda metadata: marks(metadata, "functools[", score=50),
            load=Functools,
            summary="JSON list behind functools: Firefunction v2",
        ),
    ]

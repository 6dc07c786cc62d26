"""Nemotron Nano v2: ``<TOOLCALL>[{"name": …, "arguments": {…}}]</TOOLCALL>``, reasoning in ``<think>``.

Nemotron 3 writes calls as Qwen3-Coder does, and so has its dialect.
"""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.chat.bodies import JsonCall
from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Nemotron(Dialect):
    """All calls stand in one list."""

    format = Format(calls=(CallForm("<TOOLCALL>", JsonCall(listed=True), ("</TOOLCALL>",)),))


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialect of Nemotron Nano 9B and 12B v2."""
    return [
        ChatDialect(
            name="nemotron",
            match=lambda metadata: marks(metadata, "<TOOLCALL>", score=60),
            load=Nemotron,
            summary="JSON list in <TOOLCALL>, <think>: Nemotron Nano v2",
        )
    ]

"""Hermes and Qwen: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, reasoning in ``<think>``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ggfw.chat.bodies import JsonCall
from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Hermes(Dialect):
    """Several calls are several blocks."""

    format = Format(calls=(CallForm("<tool_call>", JsonCall(), ("</tool_call>",), gap=("\n", "\n")),))


def match(metadata: Mapping[str, Any]) -> int:
    """By the mark in the template, unless the inside has another form."""
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str) and ("<arg_key>" in template or "<function=" in template):
        return 0
    return marks(metadata, "<tool_call>", score=30)


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialect of Hermes 2 Pro and later, Qwen 2.5, Qwen 3, QwQ and others that were trained on their format."""
    return [
        ChatDialect(
            name="hermes",
            match=match,
            load=Hermes,
            summary="JSON in <tool_call>, <think>: Hermes, Qwen",
        )
    ]

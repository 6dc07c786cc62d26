"""Every other model: reasoning in ``<think>``; tools by instructions in the system message."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.chat.bodies import JsonCall
from ggfw.chat.dialect import Dialect
from ggfw.chat.format import CallForm, Format
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Generic(Dialect):
    """Calls are asked for, and understood, in the form that most models know: JSON in ``<tool_call>``.

    :func:`ggfw.chat.dialect.tool_prompt` is what the model is told where its template has no place for tools.
    """

    format = Format(
        reasoning=(("<think>", "</think>"), ("<thinking>", "</thinking>")),
        calls=(CallForm("<tool_call>", JsonCall(), ("</tool_call>",), gap=("\n", "\n")),),
    )


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialect for models that no other one matches."""
    return [
        ChatDialect(
            name="generic",
            match=lambda metadata: 1,
            load=Generic,
            summary="<think>, JSON in <tool_call>: every model that no other dialect matches",
        )
    ]

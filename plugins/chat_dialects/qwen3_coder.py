"""Qwen3-Coder and Qwen 3.5: ``<function=NAME>`` with ``<parameter=KEY>`` blocks of bare text in ``<tool_call>``."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.chat.tagged import TaggedCall
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Qwen3Coder(Dialect):
    """Values are typed by the tool's schema. The model forgets the outer mark at times, so the inner one counts too."""

    format = Format(
        calls=(
            CallForm("<tool_call>", TaggedCall(), ("</tool_call>",), gap=("\n", "\n")),
            CallForm("<function=", TaggedCall(opened=True), ("</tool_call>",)),
        )
    )


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialect of Qwen3-Coder, Qwen 3.5 and others that were trained on its format."""
    return [
        ChatDialect(
            name="qwen3_coder",
            match=lambda metadata: marks(metadata, "<tool_call>", "<function=", "<parameter=", score=60),
            load=Qwen3Coder,
            summary="XML parameters in <tool_call>, <think>: Qwen3-Coder, Qwen 3.5",
        )
    ]

"""GigaChat 3: a message of the role ``function call`` (3), or ``<|function_call|>`` (3.1), with a JSON object."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.chat.bodies import JsonCall
from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

SEP = "<|message_sep|>"
ROLE = CallForm(f"{SEP}\n\nfunction call<|role_sep|>", JsonCall(), between="", gap=("\n", ""))
MARK = CallForm("<|function_call|>", JsonCall(), between="")


class GigaChat3(Dialect):
    """The model ends its message and goes on with one of another role."""

    special_tokens = True
    format = Format(calls=(ROLE, MARK), drop=(SEP,))


class GigaChat31(Dialect):
    """A mark of its own."""

    special_tokens = True
    format = Format(calls=(MARK, ROLE), drop=(SEP,))


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialects of GigaChat 3 and 3.1."""
    return [
        ChatDialect(
            name="gigachat3",
            match=lambda metadata: marks(metadata, SEP, "function call", score=55),
            load=GigaChat3,
            summary="a message of the role 'function call': GigaChat 3",
        ),
        ChatDialect(
            name="gigachat3_1",
            match=lambda metadata: marks(metadata, SEP, "<|function_call|>", score=60),
            load=GigaChat31,
            summary="<|function_call|>: GigaChat 3.1",
        ),
    ]

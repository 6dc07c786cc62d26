"""Seed-OSS: ``<function=NAME>`` with ``<parameter=KEY>`` elements in ``<seed:tool_call>``, ``<seed:think>``."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.chat.tagged import TaggedCall
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

OPEN, CLOSE = "<seed:tool_call>", "</seed:tool_call>"


class Seed(Dialect):
    """Several calls are several blocks."""

    special_tokens = True
    closings = {"</seed:think>": "</seed:think>\n"}
    format = Format(
        reasoning=(("<seed:think>", "</seed:think>"),),
        calls=(
            CallForm(OPEN, TaggedCall(closes=(CLOSE,), layout=("\n", "", "\n")), (CLOSE,), gap=("\n", "\n")),
        ),
    )


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialect of Seed-OSS."""
    return [
        ChatDialect(
            name="seed_oss",
            match=lambda metadata: marks(metadata, OPEN, score=70),
            load=Seed,
            summary="XML parameters in <seed:tool_call>, <seed:think>: Seed-OSS",
        )
    ]

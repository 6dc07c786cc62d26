"""gpt-oss: messages with headers, ``<|start|>assistant<|channel|>analysis<|message|>…<|end|>`` ("harmony").

What a message is depends on its header:

==========================  ==============================================================
recipient ``functions.X``   a call of X, whatever the channel: also on ``analysis``, where the model writes it at times
recipient of a tool that    a call of it (``browser.search``, ``python``), if the caller offers a tool of exactly that
the model knows of itself   name; its ``functions.`` namesake is another tool
any other recipient         like no recipient: on ``analysis`` reasoning, else text
channel ``analysis``        reasoning
``commentary``, ``final``   text; a preamble on ``commentary`` stands in front of the answer, an empty line between
==========================  ==============================================================

The recipient may stand before or behind the channel. Headers and marks are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ggfw.chat.call_grammar import Control, Lark, no_control
from ggfw.chat.dialect import Dialect, Reasoning, marks
from ggfw.chat.format import Channels, Format, Route
from ggfw.chat.tools import Tools
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl

if TYPE_CHECKING:
    from ggfw.constraints import Grammar

GGFW_PLUGIN_API = 1

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, RETURN, CALL, CONSTRAIN = "<|end|>", "<|return|>", "<|call|>", "<|constrain|>"
_CHANNEL = re.compile(r"<\|channel\|>\s*([A-Za-z]*)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


def route(header: str, tools: Tools) -> Route:
    """Where a message belongs; see the module."""
    found = _CHANNEL.search(header)
    channel = found[1] if found else ""
    recipient = _RECIPIENT.search(header)
    if recipient:
        name = recipient[1]
        if name.startswith("functions."):
            return Route("call", name.removeprefix("functions."))
        if tools.get(name) is not None:
            return Route("call", name)
    return Route("reasoning" if channel == "analysis" else "text")


class Harmony(Dialect):
    """The model writes reasoning, calls and answers as messages of its own turn."""

    special_tokens = True
    format = Format(
        reasoning=(),
        drop=(CONSTRAIN,),
        channels=Channels(
            begin=(START, CHANNEL),
            message=MESSAGE,
            ends=(END, RETURN, CALL),
            route=route,
            opened=(f"{START}assistant",),
        ),
    )

    def reasoning(self, prompt: str) -> Reasoning | None:
        """Everything in front of the final message; a constraint is for that one alone."""
        if prompt.endswith(MESSAGE) and f"{CHANNEL}final" in prompt.rpartition(START)[2]:
            return None
        final = f"{CHANNEL}final{MESSAGE}"
        return Reasoning(final, inside=True, forced=f"{END}{START}assistant{final}")

    def reasoning_before_calls(self, prompt: str) -> Reasoning | None:
        """The grammar holds it."""
        return None

    def reasoning_budget(self, prompt: str, *, calls: bool) -> Reasoning | None:
        """Messages on the channel ``analysis``; behind them comes the final one, or what the grammar of calls says."""
        opening = f"{CHANNEL}analysis{MESSAGE}"
        behind = f"{START}assistant" if calls else f"{START}assistant{CHANNEL}final{MESSAGE}"
        return Reasoning(
            END,
            inside=prompt.endswith(opening),
            open=opening,
            forced=END + behind,
            between=f"{START}assistant",
        )

    def call_grammar(
        self, tools: Tools, *, required: bool, parallel: bool, strict: bool, control: Control = no_control
    ) -> Grammar:
        """The headers are part of it, and so is the reasoning in front: it begins where the prompt ends."""
        from ggfw.constraints import Grammar

        lark = Lark(control, strict)
        mark = lark.mark
        start, channel, message = mark(START), mark(CHANNEL), mark(MESSAGE)
        text = lark.until(END)
        thought = lark.rule(f'{channel} "analysis" {message} {text} {start} "assistant"')
        preamble = lark.rule(f'{channel} "commentary" {message} {text} {start} "assistant"')
        ways = [
            f"{lark.text(' to=functions.' + tool.name)} {channel} {lark.text('commentary ')} "
            f'{mark(CONSTRAIN)}? "json" {message} {lark.arguments(tool)}'
            for tool in tools.callable
        ]
        call = lark.rule(" | ".join(ways))
        follows = f'{mark(CALL)} {start} "assistant"'
        calls = f"{call} {lark.more(follows, call)}" if parallel else call
        if required:
            return Grammar.lark(lark.source(f"{thought}* {calls}"), "tools")
        final = lark.rule(f'{channel} "final" {message} {lark.without(END)}')
        return Grammar.lark(lark.source(f"({thought} | {preamble})* ({calls} | {final})"), "tools")


def match(metadata: Mapping[str, Any]) -> int:
    """By its template or, where the file has another one or none, by its architecture."""
    by_name = 45 if metadata.get("general.architecture") in ("gpt-oss", "gpt_oss") else 0
    return max(by_name, marks(metadata, START, CHANNEL, MESSAGE, score=80))


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialect of gpt-oss."""
    return [
        ChatDialect(
            name="harmony",
            match=match,
            load=Harmony,
            summary="messages on channels: gpt-oss",
        )
    ]

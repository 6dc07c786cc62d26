"""How a family marks reasoning and calls in its answers: data for :class:`ggfw.chat.splitter.Splitter`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ggfw.chat.bodies import Body
from ggfw.chat.tools import Tools
from ggfw.records import dataclass


@dataclass(frozen=True)
class CallForm:
    """One way in which calls are written.

    Args:
        open: the text that opens a block of calls. Empty: the call is the whole answer, and begins it (or follows
            another call) with one of ``starts``.
        body: the form of the inside.
        close: texts that may close the block; the first one is the model's own, and may be empty. None: the inside
            ends itself.
        starts: see ``open``.
        between: what stands between two blocks when the model writes several, for grammars.
        gap: what stands between the opening text and the inside, and between the inside and the closing text, as the
            model was trained; for grammars.
        group: (opening, closing) text around all blocks of an answer, for grammars; name both in :attr:`Format.drop`
            too.
    """

    open: str
    body: Body
    close: tuple[str, ...] = ()
    starts: str = ""
    between: str = "\n"
    gap: tuple[str, str] = ("", "")
    group: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Route:
    """Where a message with a header belongs.

    Args:
        kind: of what the message holds; ``drop`` shows nothing of it.
        name: of the function, for a call.
    """

    kind: Literal["text", "reasoning", "call", "drop"]
    name: str = ""


@dataclass(frozen=True)
class Channels:
    """Messages with a header in front: ``<|start|>role<|channel|>name<|message|>text<|end|>``.

    Args:
        begin: texts that begin a header, which is read up to ``message``.
        message: the text that ends it.
        ends: texts that end a message.
        route: (header without the text that ends it, tools) -> where the message belongs.
        opened: ends of prompts behind which the model goes on with a header that the prompt has begun.
    """

    begin: tuple[str, ...]
    message: str
    ends: tuple[str, ...]
    route: Callable[[str, Tools], Route]
    opened: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format:
    """How a family marks reasoning and calls.

    Args:
        reasoning: (opening, closing) texts of reasoning blocks. A block stands at the beginning of the answer, behind
            another block or behind a call; in the middle of text the same marks are text.
        calls: ways to write calls; all are understood, the first is used for forced calls.
        drop: texts that mean nothing by themselves (groups, control tokens that become visible with others).
        channels: for families whose messages have headers.
        interrupts: opening texts of calls with which the model also ends a block of reasoning, without closing it. Not
            where a grammar waits for the closing text.
        lead: words that mean nothing by themselves where a block of reasoning may stand; elsewhere they are text.
    """

    reasoning: tuple[tuple[str, str], ...] = (("<think>", "</think>"),)
    calls: tuple[CallForm, ...] = ()
    drop: tuple[str, ...] = ()
    channels: Channels | None = None
    interrupts: tuple[str, ...] = ()
    lead: tuple[str, ...] = ()

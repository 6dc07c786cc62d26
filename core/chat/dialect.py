"""Dialects: how a model family writes reasoning, tools, calls and results.

A dialect is a plugin (hook ``ggfw_register_chat_dialects``). The one here is the generic one: text is text, and a
``<think>`` block at the beginning of the answer, or opened by the prompt, is reasoning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta


class Parser(Protocol):
    """Takes the answer of one request piece by piece.

    Whatever the pieces' borders, the joined deltas are the same; only what could still become a marker is held back.
    """

    def push(self, text: str) -> list[Delta]:
        """Take the next piece of raw text."""

    def finish(self) -> list[Delta]:
        """The answer is over: give out what was held back."""


@dataclass(frozen=True)
class Reasoning:
    """The block of reasoning with which an answer may begin, as constraints need to know it.

    Args:
        close: the text that ends it; the answer stands behind it.
        inside: whether the prompt has opened it already.
        open: the text that opens it, where the model does that itself.
        forced: what is written in the model's place when the block has had all its tokens: the closing text with the
            layout around it that the family was trained on; empty: ``close`` on a line of its own.
    """

    close: str
    inside: bool
    open: str = ""
    forced: str = ""


class Dialect:
    """Base class and generic dialect.

    Attributes:
        special_tokens: whether the parser needs the text of control tokens (which is dropped otherwise).
        stops: stop strings this family needs besides its end tokens.
    """

    special_tokens: bool = False
    stops: tuple[str, ...] = ()

    def template_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Change the variables of the chat template before it is rendered; gives them as they are here."""
        return arguments

    def parser(self, prompt: str) -> Parser:
        """A parser for one answer to the rendered ``prompt`` (whose end may already have opened a block)."""
        return ThinkParser(opened_by(prompt))

    def reasoning(self, prompt: str) -> Reasoning | None:
        """The block that may stand in front of the answer to the rendered ``prompt``; None: there is none.

        A constraint on the answer begins behind it.
        """
        if opened_by(prompt):
            return Reasoning(CLOSE, inside=True)
        if prompt.rstrip().endswith(CLOSE):  # the template has switched reasoning off by an empty block
            return None
        return Reasoning(CLOSE, inside=False, open=OPEN)


class PlainParser:
    """Everything is text."""

    def push(self, text: str) -> list[Delta]:
        """Pass the piece on."""
        return [TextDelta(text)] if text else []

    def finish(self) -> list[Delta]:
        """Nothing was held back."""
        return []


OPEN, CLOSE = "<think>", "</think>"


def opened_by(prompt: str) -> bool:
    """Whether ``prompt`` ends inside a reasoning block: its last tag is an opening one, with only space behind it."""
    return prompt.rstrip().endswith(OPEN)


class ThinkParser:
    """Splits ``<think>…</think>`` at the beginning of the answer from the text behind it.

    White space around the reasoning and before the text is dropped, as models write it for layout only. An answer that
    ends inside the block is all reasoning. Tags further back in the text are left alone: the model talks about them.

    Args:
        inside: the prompt has opened the block already.
    """

    def __init__(self, inside: bool = False) -> None:
        self._state = "reasoning" if inside else "lead"
        self._held = ""  # what could still become a tag, or white space at an end
        self._begun = False  # whether the block has shown anything
        self._had_block = inside

    def push(self, text: str) -> list[Delta]:
        """Take the next piece."""
        if self._state == "text":
            return [TextDelta(text)] if text else []
        self._held += text
        out: list[Delta] = []
        while self._state != "text":
            step = self._lead if self._state == "lead" else self._reasoning
            if not step(out):
                return out
        if self._held:
            out.append(TextDelta(self._held))
            self._held = ""
        return out

    def finish(self) -> list[Delta]:
        """Give out what was held back."""
        held, self._held = self._held, ""
        if self._state == "reasoning":
            held = held.rstrip()
            if not self._begun:
                held = held.lstrip()
            return [ReasoningDelta(held)] if held else []
        # Only white space (or the beginning of a tag) came: of an answer without a block it is the answer.
        if self._had_block:
            held = held.lstrip()
        return [TextDelta(held)] if held else []

    def _lead(self, out: list[Delta]) -> bool:
        """Before any text: white space, then perhaps a tag. False = more is needed."""
        body = self._held.lstrip()
        if body.startswith(OPEN):
            self._held, self._state, self._begun, self._had_block = (
                body[len(OPEN) :],
                "reasoning",
                False,
                True,
            )
            return True
        if OPEN.startswith(body):
            return False
        if self._had_block:
            self._held = body
        self._state = "text"
        return True

    def _reasoning(self, out: list[Delta]) -> bool:
        """Inside the block. False = more is needed."""
        if not self._begun:
            self._held = self._held.lstrip()
        end = self._held.find(CLOSE)
        if end >= 0:
            shown, self._held = self._held[:end].rstrip(), self._held[end + len(CLOSE) :]
            self._state = "lead"
        else:
            # Hold back the beginning of a tag, and the white space before it (or at the end).
            cut = len(self._held)
            for n in range(min(len(CLOSE) - 1, cut), 0, -1):
                if self._held.endswith(CLOSE[:n]):
                    cut -= n
                    break
            cut = len(self._held[:cut].rstrip())
            shown, self._held = self._held[:cut], self._held[cut:]
        if shown:
            out.append(ReasoningDelta(shown))
            self._begun = True
        return end >= 0

"""From drawn tokens to deltas: incremental decoding, stop strings, dialect parser."""

from __future__ import annotations

from typing import Any, Protocol

from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from ggfw.chat.dialect import Parser, PlainParser
from ggfw.result import ToolCall
from ggfw.sampling import StopStrings


class Decoder(Protocol):
    """What the tokenizer gives for one answer: tokens in, whole characters out."""

    def push(self, token: int) -> str:
        """Text that is complete with this token."""

    def flush(self) -> str:
        """The end: what was held back, as replacement characters."""


class Output:
    """The text of one answer while it grows. Streamed and joined it is the same text.

    Args:
        decoder: from the tokenizer.
        stops: stop strings.
        parser: of the dialect; None = everything is text.
    """

    def __init__(self, decoder: Decoder, stops: StopStrings, parser: Parser | None = None) -> None:
        self._decoder = decoder
        self._stops = stops
        self._parser = parser or PlainParser()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}  # by number
        #: The stop string that ended the text, or None.
        self.matched: str | None = None
        #: The text that became complete with the last token.
        self.piece = ""
        #: Tokens that came while the reasoning block was open, those that open and close it among them.
        self.reasoning_tokens = 0
        self._in_reasoning = bool(getattr(self._parser, "in_reasoning", False))
        #: The parser has all it wants: the answer is over although the model would go on.
        self.ended = False

    def push(self, token: int) -> list[Delta]:
        """Take a token; ``matched`` is set when a stop string is complete."""
        self.piece = piece = self._decoder.push(token)
        deltas: list[Delta] = []
        if piece:
            shown, _ = self._stops.feed(piece)
            self.matched = self._stops.matched
            if shown:
                deltas = self._keep(self._parser.push(shown))
        inside = bool(getattr(self._parser, "in_reasoning", self._in_reasoning))
        self.reasoning_tokens += inside or self._in_reasoning
        self._in_reasoning = inside
        self.ended = bool(getattr(self._parser, "done", False))
        return deltas

    def finish(self) -> list[Delta]:
        """The answer is over: give out what decoder, stop strings and parser held back."""
        deltas: list[Delta] = []
        if self.matched is None:
            shown, _ = self._stops.feed(self._decoder.flush())
            shown += self._stops.flush()
            if shown:
                deltas += self._keep(self._parser.push(shown))
        deltas += self._keep(self._parser.finish())
        return deltas

    def _keep(self, deltas: list[Delta]) -> list[Delta]:
        for delta in deltas:
            if isinstance(delta, TextDelta):
                self._text.append(delta.text)
            elif isinstance(delta, ReasoningDelta):
                self._reasoning.append(delta.text)
            else:
                self._keep_call(delta)
        if deltas and not hasattr(self._parser, "in_reasoning"):
            self._in_reasoning = isinstance(deltas[-1], ReasoningDelta)
        return deltas

    def _keep_call(self, delta: ToolCallDelta) -> None:
        if delta.withdrawn:
            self._calls.pop(delta.index, None)
            return
        call = self._calls.setdefault(delta.index, {"id": delta.id, "name": delta.name, "arguments": []})
        call["arguments"].append(delta.arguments)

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return "".join(self._reasoning)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls so far."""
        return tuple(ToolCall(c["id"], c["name"], "".join(c["arguments"])) for c in self._calls.values())

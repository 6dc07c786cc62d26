"""From drawn tokens to deltas: incremental decoding, stop strings, dialect parser."""

from __future__ import annotations

from dataclasses import replace
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

    Stop strings end visible text, and reasoning. The marks of blocks and calls, and what stands in calls, are neither,
    and no stop string reaches over them.

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
        self._held: list[TextDelta | ReasoningDelta] = []  # may become a stop string
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
        if piece and self.matched is None:
            deltas = self._keep(self._until_stop(self._parser.push(piece)))
        inside = bool(getattr(self._parser, "in_reasoning", self._in_reasoning))
        self.reasoning_tokens += inside or self._in_reasoning
        self._in_reasoning = inside
        self.ended = bool(getattr(self._parser, "done", False))
        return deltas

    def finish(self) -> list[Delta]:
        """The answer is over: give out what decoder, stop strings and parser held back."""
        deltas: list[Delta] = []
        if self.matched is None:
            rest = self._decoder.flush()
            deltas = self._until_stop([*(self._parser.push(rest) if rest else ()), *self._parser.finish()])
            deltas += self._release()
        return self._keep(deltas)

    def _until_stop(self, deltas: list[Delta]) -> list[Delta]:
        """What of ``deltas`` may be shown now; what follows a stop string is dropped."""
        out: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, ToolCallDelta):
                out += [*self._release(), delta]
                continue
            if self._held and type(self._held[0]) is not type(delta):
                out += self._release()
            self._held.append(delta)
            shown, _ = self._stops.feed(delta.text)
            out += self._take(len(shown))
            self.matched = self._stops.matched
            if self.matched is not None:
                self._held.clear()
                break
        return out

    def _release(self) -> list[Delta]:
        """The beginning of a stop string that was held back and became none."""
        return self._take(len(self._stops.flush()))

    def _take(self, n: int) -> list[Delta]:
        """The first ``n`` characters of what is held."""
        out: list[Delta] = []
        while n and self._held:
            delta = self._held.pop(0)
            size = len(delta.text)
            if size > n:
                first, rest = _divided(delta, n)
                self._held.insert(0, rest)
                delta, size = first, n
            out.append(delta)
            n -= size
        return out

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


def _divided(
    delta: TextDelta | ReasoningDelta, n: int
) -> tuple[TextDelta | ReasoningDelta, TextDelta | ReasoningDelta]:
    """A delta in two behind its first ``n`` characters."""
    first, rest = delta.text[:n], delta.text[n:]
    if delta.span is None:
        return replace(delta, text=first), replace(delta, text=rest)
    begin, end = delta.span
    middle = min(begin + n, end)
    return replace(delta, text=first, span=(begin, middle)), replace(delta, text=rest, span=(middle, end))

"""Which drawn tokens became which piece of the answer: log-probabilities for deltas."""

from __future__ import annotations

from dataclasses import replace

from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta
from ggfw.sampling.logprobs import TokenLogprob


class LogprobTrack:
    """Collects the log-probabilities of one answer and hands them out with the text that the tokens became.

    Text may come later than its tokens (incomplete characters, a possible stop string or marker) or not at all (markers
    of reasoning and tool calls, end tokens). A delta says where it stands in the raw answer; one that does not is
    looked for in the text of the tokens that wait. Tokens in front of it became nothing.
    """

    def __init__(self) -> None:
        #: One entry per drawn token, in order.
        self.entries: list[TokenLogprob] = []
        self._waiting: list[
            tuple[int | None, int]
        ] = []  # (index of the entry, characters); None: already given
        self._text = ""  # of those that wait
        self._begin = 0  # its place in the raw answer

    def push(self, entry: TokenLogprob, text: str) -> None:
        """Take a drawn token and the text that became complete with it."""
        self._waiting.append((len(self.entries), len(text)))
        self.entries.append(entry)
        self._text += text

    def attach(self, deltas: list[Delta]) -> list[Delta]:
        """The same deltas with the log-probabilities of their tokens."""
        return [self._with_logprobs(d) if isinstance(d, TextDelta | ReasoningDelta) else d for d in deltas]

    def _with_logprobs(self, delta: TextDelta | ReasoningDelta) -> Delta:
        begin, end = self._place(delta)
        if begin >= end:  # it stands for no token
            return delta
        part = "text" if isinstance(delta, TextDelta) else "reasoning"
        given: list[TokenLogprob] = []
        left: list[tuple[int | None, int]] = []
        at = 0
        for index, n in self._waiting:
            first, last = at, at + n
            at = last
            if first >= end:
                left.append((index, n))
            elif first >= begin or last > begin:
                if index is not None:
                    self.entries[index] = replace(self.entries[index], part=part)
                    given.append(self.entries[index])
                if last > end:
                    left.append((None, last - end))
        self._waiting, self._text = left, self._text[end:]
        self._begin += end
        return replace(delta, logprobs=tuple(given))

    def _place(self, delta: TextDelta | ReasoningDelta) -> tuple[int, int]:
        """Where the delta stands in the text that waits."""
        if delta.span is not None:
            return delta.span[0] - self._begin, delta.span[1] - self._begin
        begin = self._text.find(delta.text)
        if begin < 0:  # the parser changed the text: all that waits went into it
            return 0, len(self._text)
        return begin, begin + len(delta.text)

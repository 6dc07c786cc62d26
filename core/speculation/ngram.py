"""Prompt look-up: the text so far, searched for what came after the last few tokens when they came before.

Answers that copy (editing, quoting, code) and texts that repeat themselves are guessed well by it; it needs no model.
Source: the idea is Saxena's prompt lookup decoding (2023).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

#: Tokens that are looked up together, longest first; no shorter match counts.
LENGTHS = (3, 2)
#: Matches are measured up to this length.
LONGEST = 32
#: Latest places that are compared for each key.
PLACES = 8
#: Tokens of a long prompt that are taken in at once, so that no step waits for it.
AT_ONCE = 4096


class NgramIndex:
    """Every place where the last two or three tokens of the text stood before. Not thread-safe.

    Args:
        ids: the prompt.
    """

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self.tokens: list[int] = list(ids)
        self._n_indexed = 0
        #: By length of the key: key -> its latest end (the index of the token behind it).
        self._latest: dict[int, dict[int, int]] = {n: {} for n in LENGTHS}
        #: By length of the key and by end: the end before that of the same key; 0: none.
        self._before: dict[int, array[int]] = {n: array("i", [0]) for n in LENGTHS}

    def push(self, token: int) -> None:
        """Take a token in."""
        self.tokens.append(token)

    def guess(self, most: int) -> tuple[list[int], int]:
        """Guess the next tokens.

        Args:
            most: so many at most.

        Returns:
            The guesses (as many as asked for, or none), and how many of the last tokens agree with the place they
            come from, at most LONGEST. A place near the end repeats itself.
        """
        self._index()
        tokens = self.tokens
        end, length = self._best_place()
        if not end:
            return [], 0
        guessed = tokens[end : end + most]
        period = len(tokens) - end
        while len(guessed) < most:  # the text is taken to go on as it would repeat
            guessed.append(guessed[len(guessed) - period])
        return guessed, length

    def _best_place(self) -> tuple[int, int]:
        """Where the longest match ends (of equal ones the latest), and how long it is; (0, 0): nowhere."""
        tokens, best, longest = self.tokens, 0, 0
        for n in LENGTHS:
            if len(tokens) <= n:
                continue
            before = self._before[n]
            end = self._latest[n].get(_key(tokens, len(tokens), n), 0)
            if end == len(tokens):
                end = before[end]
            for _ in range(PLACES):
                if not end:
                    break
                length = self._matching(end, n)
                if length > longest:
                    best, longest = end, length
                end = before[end]
            if best:
                break  # shorter keys have no longer matches
        return best, longest

    def _matching(self, end: int, known: int) -> int:
        """How many tokens in front of ``end`` agree with the last ones; ``known`` do."""
        tokens, n = self.tokens, len(self.tokens)
        length, most = known, min(LONGEST, end)
        while length < most and tokens[end - length - 1] == tokens[n - length - 1]:
            length += 1
        return length

    def _index(self) -> None:
        """Take in what is new; of a very long prompt a part at each call."""
        tokens, begin = self.tokens, self._n_indexed
        self._n_indexed = stop = min(len(tokens), begin + AT_ONCE)
        for n in LENGTHS:
            latest, before = self._latest[n], self._before[n]
            for end in range(begin + 1, stop + 1):
                if end < n:
                    before.append(0)
                    continue
                key = _key(tokens, end, n)
                before.append(latest.get(key, 0))
                latest[key] = end


def _key(tokens: list[int], end: int, n: int) -> int:
    """The ``n`` tokens in front of ``end`` as one number; ids have at most 32 bits."""
    key = tokens[end - 1] | tokens[end - 2] << 32
    return key if n == 2 else key | tokens[end - 3] << 64

"""Cutting text at tokens that are matched literally, before spaces are rewritten and before any merging.

Control tokens are matched only where the caller allows it; user-defined tokens everywhere. As in llama.cpp
the longest token (in bytes) claims all its places first, from the left, then the next, so a short token never
breaks a longer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Span = tuple[int, int]


class SpecialToken(NamedTuple):
    """One literally matched token: its id, text, whether it is a control token, and which white space it swallows."""

    id: int
    text: str
    control: bool
    strip_left: bool = False
    strip_right: bool = False


_SPACE = " \t\n\v\f\r"
# Rough costs in microseconds, to choose how to look for the tokens that begin with one character.
_PROBE_COST = 0.25  # one slice and one look-up
_SCAN_COST = 0.0004  # one character of a substring search


class SpecialTable:
    """All literally matched tokens of a vocabulary.

    Args:
        tokens: in any order; empty texts are ignored.
    """

    def __init__(self, tokens: Sequence[SpecialToken]) -> None:
        def claims_before(token: SpecialToken) -> tuple[int, int]:
            text = token.text
            size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
            return -size, token.id

        self._ordered = sorted((t for t in tokens if t.text), key=claims_before)
        self._place = {t.text: n for n, t in enumerate(self._ordered)}
        self._by_first: dict[str, list[int]] = {}
        for n, token in enumerate(self._ordered):
            self._by_first.setdefault(token.text[0], []).append(n)
        self._lengths = {
            c: sorted({len(self._ordered[n].text) for n in places}) for c, places in self._by_first.items()
        }

    def __len__(self) -> int:
        return len(self._ordered)

    def _present(self, text: str) -> list[SpecialToken]:
        """The tokens whose text occurs anywhere in ``text``, in the order in which they claim their places."""
        found: set[int] = set()
        for first, places in self._by_first.items():
            count = text.count(first)
            if not count:
                continue
            lengths = self._lengths[first]
            if count * len(lengths) * _PROBE_COST < len(places) * (0.1 + len(text) * _SCAN_COST):
                at = text.find(first)
                while at >= 0:
                    for length in lengths:
                        n = self._place.get(text[at : at + length])
                        if n is not None:
                            found.add(n)
                    at = text.find(first, at + 1)
            else:
                found.update(n for n in places if self._ordered[n].text in text)
        return [self._ordered[n] for n in sorted(found)]

    def partition(self, text: str, allowed: Sequence[Span] | None) -> list[Span | int]:
        """Cut ``text``.

        Args:
            text: the whole text.
            allowed: ascending, disjoint spans in which control tokens are recognised; None means everywhere, an empty
                sequence nowhere. A control token is recognised only if one span holds all of it.

        Returns:
            In order, ids of matched tokens and (start, end) spans of the text between them.
        """
        if not text:
            return []
        taken = bytearray(len(text))
        matches: list[tuple[int, int, int]] = []  # (start, end, id), swallowed white space included
        for token in self._present(text):
            if token.control and allowed is not None:
                for start, end in allowed:
                    self._claim(text, start, end, token, taken, matches)
            else:
                self._claim(text, 0, len(text), token, taken, matches)
        matches.sort()
        out: list[Span | int] = []
        done = 0
        for start, end, token_id in matches:
            if start > done:
                out.append((done, start))
            out.append(token_id)
            done = end
        if done < len(text):
            out.append((done, len(text)))
        return out

    @staticmethod
    def _claim(
        text: str,
        start: int,
        end: int,
        token: SpecialToken,
        taken: bytearray,
        matches: list[tuple[int, int, int]],
    ) -> None:
        """Take all places of ``token`` in ``text[start:end]`` that are still free, from the left."""
        needle, size = token.text, len(token.text)
        at = text.find(needle, start, end)
        while at >= 0:
            first, last = at, at + size
            blocked = taken.rfind(1, first, last)
            if blocked >= 0:
                free = taken.find(0, blocked)
                at = text.find(needle, free, end) if free >= 0 else -1
                continue
            if token.strip_left:
                while first > 0 and not taken[first - 1] and text[first - 1] in _SPACE:
                    first -= 1
            if token.strip_right:
                while last < len(text) and not taken[last] and text[last] in _SPACE:
                    last += 1
            taken[first:last] = b"\x01" * (last - first)
            matches.append((first, last, token.id))
            at = text.find(needle, last, end)

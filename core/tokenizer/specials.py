"""Cutting text at tokens that are matched literally, before spaces are rewritten and before any merging.

Control tokens are matched only where the caller allows it; user-defined tokens everywhere. As in llama.cpp the longest
token (in bytes) claims all its places first, then the next, so a short token never breaks a longer one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

Span = tuple[int, int]


@dataclass(frozen=True)
class SpecialToken:
    """One literally matched token: its id, text, whether it is a control token, and which white space it swallows."""

    id: int
    text: str
    control: bool
    strip_left: bool = False
    strip_right: bool = False


_SPACE = " \t\n\v\f\r"


class SpecialTable:
    """All literally matched tokens of a vocabulary.

    Args:
        tokens: any order; empty texts are ignored.
    """

    def __init__(self, tokens: Sequence[SpecialToken]) -> None:
        ordered = sorted(
            (t for t in tokens if t.text), key=lambda t: (-len(t.text.encode("utf-8", "surrogatepass")), t.id)
        )
        self._ordered = ordered
        self._order = {t.text: n for n, t in reversed(list(enumerate(ordered)))}
        lengths: dict[str, set[int]] = {}
        for t in ordered:
            lengths.setdefault(t.text[0], set()).add(len(t.text))
        self._lengths = {c: tuple(sorted(v)) for c, v in lengths.items()}
        self._first = re.compile("[" + "".join(map(re.escape, lengths)) + "]") if lengths else None

    def __len__(self) -> int:
        return len(self._ordered)

    def _present(self, text: str) -> list[SpecialToken]:
        """The tokens whose text occurs anywhere in ``text``, longest first."""
        if self._first is None:
            return []
        order, lengths = self._order, self._lengths
        found = set()
        for match in self._first.finditer(text):
            start = match.start()
            for length in lengths[text[start]]:
                n = order.get(text[start : start + length])
                if n is not None:
                    found.add(n)
        return [self._ordered[n] for n in sorted(found)]

    def partition(self, text: str, allowed: Sequence[Span] | None) -> list[Span | int]:
        """Cut ``text``.

        Args:
            text: the whole text.
            allowed: spans in which control tokens are recognised; None means everywhere, an empty list nowhere. A
                control token is recognised only if it lies in one span entirely.

        Returns:
            In order, ids of matched tokens and (start, end) spans of the text between them.
        """
        if not text:
            return []
        fragments: list[Span | int] = [(0, len(text))]
        for token in self._present(text):
            if token.control and allowed is not None and not allowed:
                continue
            cut: list[Span | int] = []
            for fragment in fragments:
                if isinstance(fragment, int):
                    cut.append(fragment)
                else:
                    self._cut(text, fragment, token, allowed, cut)
            fragments = cut
        return fragments

    def _cut(
        self,
        text: str,
        span: Span,
        token: SpecialToken,
        allowed: Sequence[Span] | None,
        out: list[Span | int],
    ) -> None:
        start, end = span
        size = len(token.text)
        search = start
        while True:
            at = text.find(token.text, search, end)
            if at < 0:
                break
            if (
                token.control
                and allowed is not None
                and not any(a <= at and at + size <= b for a, b in allowed)
            ):
                search = at + 1
                continue
            left_end = at
            if token.strip_left:
                while left_end > start and text[left_end - 1] in _SPACE:
                    left_end -= 1
            if left_end > start:
                out.append((start, left_end))
            out.append(token.id)
            start = at + size
            if token.strip_right:
                while start < end and text[start] in _SPACE:
                    start += 1
            search = start
        if start < end:
            out.append((start, end))

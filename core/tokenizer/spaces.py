"""Spaces as U+2581, white space, and where text written that way can be cut without changing the result of merging."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

SPACE = "\u2581"
WHITE_SPACE = re.compile(
    "[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
)  # Unicode's White_Space
_WORTH_CUTTING = 512  # characters


class SpaceCutter:
    """Cuts text before runs of spaces where merging never joins the two sides.

    Args:
        spanned: finds the characters c for which some merge joins c and a following U+2581. Looking through a large
            vocabulary takes a while, so it is called on the first text that is long enough to gain from it.
    """

    def __init__(self, spanned: Callable[[], Iterable[str]]) -> None:
        self._spanned = spanned
        self._pattern: re.Pattern[str] | None = None

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches, with no width, where text can be cut."""
        if self._pattern is None:
            inside = "".join(map(re.escape, sorted({*self._spanned(), SPACE})))
            self._pattern = re.compile(f"(?<=[^{inside}])(?={SPACE})")
        return self._pattern

    def cut(self, text: str) -> list[str]:
        """``text`` in parts that can be merged one by one."""
        if self._pattern is None and len(text) < _WORTH_CUTTING:
            return [text]
        return self.pattern.split(text)


def lower_simple(char: str) -> str:
    """The small form of a character if that is one character, else the character itself."""
    low = char.lower()
    return low if len(low) == 1 else char

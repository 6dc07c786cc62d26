"""Spaces as U+2581, white space, and where text written that way can be cut without changing the result of merging."""

from __future__ import annotations

import re
from collections.abc import Iterable

SPACE = "\u2581"
WHITE_SPACE = re.compile(
    "[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
)  # Unicode's White_Space


def cut_before_spaces(spanned: Iterable[str]) -> re.Pattern[str]:
    """A pattern that matches, with no width, before a run of spaces where merging never joins the two sides.

    Args:
        spanned: characters c for which some merge joins c and a following U+2581.
    """
    inside = "".join(map(re.escape, sorted({*spanned, SPACE})))
    return re.compile(f"(?<=[^{inside}])(?={SPACE})")


def lower_simple(char: str) -> str:
    """The small form of a character if that is one character, else the character itself."""
    low = char.lower()
    return low if len(low) == 1 else char

"""Cutting text with the patterns of a pre-tokenizer rule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")
_NEWLINES = r"[^\n]+|\n+"


class Splitter:
    """Applies patterns one after the other; each cuts every piece into its matches and what is between them.

    Args:
        patterns: regular expressions in Oniguruma's dialect.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)

    @cached_property
    def native(self) -> Any:
        """The rule as a pre-tokenizer of the ``tokenizers`` library (imported here, on first use)."""
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import Sequence as Steps
        from tokenizers.pre_tokenizers import Split

        steps = [Split(Regex(p), "isolated") for p in self.patterns]
        return steps[0] if len(steps) == 1 else Steps(steps)

    def split(self, text: str) -> list[str]:
        """The pieces of ``text``; joined they are ``text``."""
        if self.patterns == (_NEWLINES,):
            return re.findall(_NEWLINES, text)
        if not text:
            return []
        try:
            return [piece for piece, _ in self.native.pre_tokenize_str(text)]
        except UnicodeEncodeError:
            # Lone surrogates cannot cross into the library; U+E000 is cut like them (no letter, number or space).
            stand_in = _SURROGATE.sub("\ue000", text)
            return [text[a:b] for _, (a, b) in self.native.pre_tokenize_str(stand_in)]

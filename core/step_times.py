"""How long steps take, learned while running, and how many rows of prompts fit into one.

A step of ``n`` decode rows and ``m`` prompt rows takes about ``decode(n) + m * row``. Both are moving averages, so they
follow the machine's load, the length of what is attended to, and the size of the chunks.
"""

from __future__ import annotations

#: Rows that a step with decode rows takes of prompts at least, so that they get on however slow the machine is. What it
#: takes is a multiple of it: products take rows in tiles of eight.
LEAST_ROWS = 8
_FORGET_DECODE = 0.2
_FORGET_ROW = 0.4
_FEWEST = 4  # prompt rows from which on a step says something about their time


class StepTimes:
    """See the module.

    Args:
        budget: milliseconds that rows of prompts may add to a step with decode rows.
    """

    def __init__(self, budget: float = 50.0) -> None:
        self.budget = budget
        self._decode: dict[int, float] = {}  # ms by number of decode rows
        self._row = 0.0  # ms; 0: unknown
        self._last = LEAST_ROWS

    def observe(self, n_decode: int, n_prompt: int, ms: float) -> None:
        """Take in how long a step took."""
        if not n_prompt:
            old = self._decode.get(n_decode)
            self._decode[n_decode] = ms if old is None else old + _FORGET_DECODE * (ms - old)
        elif n_prompt >= _FEWEST:
            row = max(ms - self.decode(n_decode), 0.05 * ms) / n_prompt
            self._row = row if not self._row else self._row + _FORGET_ROW * (row - self._row)

    def decode(self, n: int) -> float:
        """Milliseconds of a step with ``n`` decode rows and nothing else; 0 while nothing is known."""
        if not n or not self._decode:
            return 0.0
        known = self._decode.get(n)
        if known is not None:
            return known
        nearest = min(self._decode, key=lambda other: abs(other - n))
        return self._decode[nearest]

    def rows(self) -> int:
        """Rows of prompts for a step with decode rows, at least LEAST_ROWS."""
        if not self._row:
            return LEAST_ROWS
        tiles = round(self.budget / self._row / LEAST_ROWS)
        # Never more than twice the last: what a row costs is known for chunks of about that size.
        self._last = max(LEAST_ROWS, min(tiles * LEAST_ROWS, 2 * self._last))
        return self._last

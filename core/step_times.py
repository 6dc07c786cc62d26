"""How long steps take, learned while running, and how many rows of prompts fit into one.

A step of ``n`` decode rows and ``m`` prompt rows takes about ``decode(n) + m * row``, and a row that attends to more
takes longer: ``row = base * (1 + slope * depth)``. ``decode`` and ``base`` are moving averages, so they follow the
machine's load and the size of the chunks; ``slope`` belongs to the model, and is fitted to the last few dozen steps.
"""

from __future__ import annotations

#: Rows that a step with decode rows takes of prompts at least, so that they get on however slow the machine is.
LEAST_ROWS = 8
#: What a step takes is a multiple of it: products take rows in tiles of four or more, those of matrix units of sixteen.
TILE = 4
#: The same of a step that takes so many rows or more, of which a tile is a small part.
MANY_ROWS, WIDE_TILE = 128, 16
_FORGET_DECODE = 0.2
_FORGET_ROW = 0.4
_FEWEST = 4  # prompt rows from which on a step says something about their time
_FORGET_FIT = 0.03
_LEAST_SPREAD = 100.0  # of the depths (their standard deviation), from which on they tell a slope


class StepTimes:
    """See the module.

    Args:
        budget: milliseconds that rows of prompts may add to a step with decode rows.
    """

    def __init__(self, budget: float = 50.0) -> None:
        self.budget = budget
        self._decode: dict[int, float] = {}  # ms by number of decode rows
        self._base = 0.0  # ms of a row that attends to nothing; 0: unknown
        self._slope = 0.0  # by how much of it each position adds
        self._fit = [0.0] * 5  # decayed sums of weights, depths, rows' ms, and of depths times either
        self._last = LEAST_ROWS

    def observe(self, n_decode: int, n_prompt: int, ms: float, depth: float = 0.0) -> None:
        """Take in how long a step took.

        Args:
            depth: positions in front of a row of prompts, on average.
        """
        if not n_prompt:
            old = self._decode.get(n_decode)
            self._decode[n_decode] = ms if old is None else old + _FORGET_DECODE * (ms - old)
        elif n_prompt >= _FEWEST:
            row = max(ms - self.decode(n_decode), 0.05 * ms) / n_prompt
            known = self._row(depth)
            self._learn_slope(depth, row)
            now = row if not known else known + _FORGET_ROW * (row - known)
            self._base = now / (1.0 + self._slope * depth)

    def _learn_slope(self, depth: float, row: float) -> None:
        """Fit a line to what rows took at their depths; old steps count less and less."""
        seen = (1.0, depth, row, depth * depth, depth * row)
        fit = self._fit = [(1.0 - _FORGET_FIT) * a + b for a, b in zip(self._fit, seen, strict=True)]
        n = fit[0]
        mean_depth, mean_row = fit[1] / n, fit[2] / n
        variance = fit[3] / n - mean_depth**2
        if variance < _LEAST_SPREAD**2:
            return
        rise = max((fit[4] / n - mean_depth * mean_row) / variance, 0.0)
        self._slope = rise / max(mean_row - rise * mean_depth, 0.1 * mean_row)

    def _row(self, depth: float) -> float:
        """Milliseconds of a row of prompts behind so many positions; 0: unknown."""
        return self._base * (1.0 + self._slope * depth)

    def decode(self, n: int) -> float:
        """Milliseconds of a step with ``n`` decode rows and nothing else; 0 while nothing is known."""
        if not n or not self._decode:
            return 0.0
        known = self._decode.get(n)
        if known is not None:
            return known
        nearest = min(self._decode, key=lambda other: abs(other - n))
        return self._decode[nearest]

    def rows(self, depth: float = 0.0) -> int:
        """Rows of prompts for a step with decode rows, behind so many positions on average; at least LEAST_ROWS."""
        row = self._row(depth)
        if not row:
            return LEAST_ROWS
        # Never more than twice the last: what a row costs is known for chunks of about that size.
        fitting = min(self.budget / row, 2.0 * self._last)
        tile = WIDE_TILE if fitting >= MANY_ROWS else TILE
        self._last = max(LEAST_ROWS, round(fitting / tile) * tile)
        return self._last

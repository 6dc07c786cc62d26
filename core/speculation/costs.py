"""What a step costs by the number of its rows, measured while running.

A step of a few rows reads the same weights as a step of one, so drafts are nearly free up to some number of rows that
depends on the model, the format and the machine; kernels work on rows in tiles, so the costs rise in steps.
"""

from __future__ import annotations

#: Of the cost of one row, what each further row is taken to cost until it was measured.
GUESS_PER_ROW = 0.08
#: Weight of a measurement below, or above, what was known: a busy machine makes steps longer, never shorter.
DOWN, UP = 0.25, 0.05
#: How much of a change seen at one number of rows goes to the others: contexts grow, and all steps with them.
SHARED = 0.02
#: A single measurement counts as at most this many times what was known.
MOST = 3.0


class StepCosts:
    """Seconds of a step with so many decode rows and no others.

    Args:
        most_rows: rows up to which costs are kept.
    """

    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows
        self._seconds = [0.0] * (most_rows + 1)  # 0: not measured

    def note(self, n_rows: int, seconds: float) -> None:
        """A step with ``n_rows`` decode rows took ``seconds``."""
        if not 0 < n_rows <= self.most_rows or seconds <= 0.0:
            return
        known = self._seconds[n_rows]
        if not known:
            self._seconds[n_rows] = seconds
            return
        seconds = min(seconds, MOST * known)
        self._seconds[n_rows] = known + (DOWN if seconds < known else UP) * (seconds - known)
        factor = 1.0 + SHARED * (self._seconds[n_rows] / known - 1.0)
        for i, other in enumerate(self._seconds):
            if other and i != n_rows:
                self._seconds[i] = other * factor

    def of(self, n_rows: int) -> float:
        """Seconds of a step of ``n_rows`` rows, guessed from its neighbours where it was not measured; 0: unknown."""
        seconds = self._seconds
        if n_rows <= self.most_rows and seconds[n_rows]:
            return seconds[n_rows]
        below = next((i for i in range(min(n_rows, self.most_rows), 0, -1) if seconds[i]), 0)
        above = next((i for i in range(n_rows + 1, self.most_rows + 1) if seconds[i]), 0)
        if not below and not above:
            return 0.0
        if not below:
            return seconds[above] / (1.0 + GUESS_PER_ROW * (above - n_rows))
        first = next(i for i in range(1, self.most_rows + 1) if seconds[i])
        if not above:
            return seconds[below] + GUESS_PER_ROW * seconds[first] * (n_rows - below)
        share = (n_rows - below) / (above - below)
        return seconds[below] + share * (seconds[above] - seconds[below])

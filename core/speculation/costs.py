"""What a step costs by the number of its rows, measured while running.

A step of a few rows reads the same weights as a step of one, so drafts cost little up to some number of rows that
depends on the model, the format and the machine; kernels work on rows in tiles, so the costs rise in steps. What was
not measured is taken to be cheap, so that it is tried when there is something to try it with.
"""

from __future__ import annotations

#: Of the cost of one row, what each further row is taken to cost until it was measured.
GUESS_PER_ROW = 0.08
#: Measurements that are needed before a number is believed, for the first steps of a kind are slow, and machines busy.
SURE = 3
#: Weight of a measurement below, or above, what was known: a busy machine makes steps longer, never shorter.
DOWN, UP = 0.25, 0.05
#: A single measurement counts as at most this many times what was known.
MOST = 3.0
#: How much of a change seen at one number of rows goes to the others: contexts grow, and all steps with them.
SHARED = 0.02
#: Steps after which what was not measured again is believed less.
STALE = 256


class StepCosts:
    """Seconds of a step with so many decode rows and no others.

    Args:
        most_rows: rows up to which costs are kept.
    """

    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows
        self._seconds = [0.0] * (most_rows + 1)
        self._counts = [0] * (most_rows + 1)
        self._noted = [0] * (most_rows + 1)  # at which step last
        self._n_steps = 0

    def note(self, n_rows: int, seconds: float) -> None:
        """A step with ``n_rows`` decode rows took ``seconds``."""
        self._n_steps += 1
        if not 0 < n_rows <= self.most_rows or seconds <= 0.0:
            return
        known, count = self._seconds[n_rows], self._counts[n_rows]
        self._counts[n_rows], self._noted[n_rows] = count + 1, self._n_steps
        if count < SURE:
            self._seconds[n_rows] = min(known, seconds) if count else seconds
            return
        seconds = min(seconds, MOST * known)
        self._seconds[n_rows] = known + (DOWN if seconds < known else UP) * (seconds - known)
        factor = 1.0 + SHARED * (self._seconds[n_rows] / known - 1.0)
        for i in range(1, self.most_rows + 1):
            if i != n_rows:
                self._seconds[i] *= factor

    def of(self, n_rows: int) -> float:
        """Seconds of a step of ``n_rows`` rows; guessed from fewer rows, and low, while not sure; 0: unknown."""
        if n_rows <= self.most_rows and self._is_sure(n_rows):
            return self._seconds[n_rows]
        sure = [i for i in range(1, self.most_rows + 1) if self._counts[i] >= SURE and i != n_rows]
        if not sure:
            return 0.0
        below = max((i for i in sure if i < n_rows), default=0)
        above = min((i for i in sure if i > n_rows), default=0)
        if not below:
            return self._seconds[above] / (1.0 + GUESS_PER_ROW * (above - n_rows))
        guess = self._seconds[below] + GUESS_PER_ROW * self._seconds[sure[0]] * (n_rows - below)
        return min(guess, self._seconds[above]) if above else guess

    def _is_sure(self, n_rows: int) -> bool:
        """Whether the cost was measured often enough, and not too long ago."""
        if self._counts[n_rows] < SURE:
            return False
        if self._n_steps - self._noted[n_rows] > STALE:
            self._counts[n_rows] = SURE - 1  # one more measurement makes sure again
            return False
        return True

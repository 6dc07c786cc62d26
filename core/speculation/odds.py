"""How often guesses of one request come true, and how many are worth verifying."""

from __future__ import annotations

from collections.abc import Callable, Iterable

#: Kinds of guesses: looked up behind a match of at least so many tokens, a draft model's, and those a grammar forces.
MATCHES = (2, 3, 4, 6, 10, 20)
MODEL, FORCED = len(MATCHES), len(MATCHES) + 1
#: What is believed of each kind before any was judged, and how many guesses that belief counts for.
BELIEFS = (0.25, 0.35, 0.5, 0.6, 0.75, 0.9, 0.7, 0.9)
BELIEF_COUNTS = 3.0
#: How much of the past is left after each judgement.
KEEP = 0.9
#: Chances that are let pass before a kind that does not pay is tried again; doubled by each trial that fails.
PATIENCE, MOST_PATIENCE = 16, 1024
#: Of the time of a token: what a draft has to bring at least.
LEAST_GAIN = 0.03


def kind_of_match(length: int) -> int:
    """The kind of guesses that come from a match of ``length`` tokens, at least two."""
    kind = 0
    while kind + 1 < len(MATCHES) and length >= MATCHES[kind + 1]:
        kind += 1
    return kind


class Odds:
    """Acceptance of one request's guesses by kind."""

    def __init__(self) -> None:
        self._tried = [0.0] * len(BELIEFS)
        self._kept = [0.0] * len(BELIEFS)
        self._waited = [0] * len(BELIEFS)
        self._patience = [PATIENCE] * len(BELIEFS)

    def rate(self, kind: int) -> float:
        """The share of guesses that come true, of those whose predecessors did."""
        return (self._kept[kind] + BELIEFS[kind] * BELIEF_COUNTS) / (self._tried[kind] + BELIEF_COUNTS)

    def judge(self, kind: int, n_proposed: int, n_kept: int) -> None:
        """Of ``n_proposed`` guesses the first ``n_kept`` came true."""
        self._tried[kind] = KEEP * self._tried[kind] + min(n_kept + 1, n_proposed)
        self._kept[kind] = KEEP * self._kept[kind] + n_kept
        if n_kept == n_proposed:
            self._patience[kind] = PATIENCE

    def worth(
        self, kind: int, choices: Iterable[int], cost: Callable[[int], float], token_seconds: float
    ) -> int:
        """How many guesses to verify: one of ``choices``, or 0.

        Args:
            choices: numbers of guesses, rising.
            cost: seconds that so many further rows (and making the guesses) add to the step.
            token_seconds: what a token costs without guesses.
        """
        best, gain, rate = 0, LEAST_GAIN * token_seconds, self.rate(kind)
        least = 0
        for n in choices:
            least = least or n
            # Of n guesses, each of which comes true at this rate if those before it did: rate + rate^2 + ...
            expected = n if rate >= 1.0 else rate * (1.0 - rate**n) / (1.0 - rate)
            this = expected * token_seconds - cost(n)
            if this > gain:
                best, gain = n, this
        if best or not least:
            return best
        self._waited[kind] += 1
        if self._waited[kind] < self._patience[kind]:
            return 0
        self._waited[kind] = 0
        self._patience[kind] = min(2 * self._patience[kind], MOST_PATIENCE)
        return least

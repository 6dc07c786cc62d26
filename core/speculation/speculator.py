"""Who guesses what, and how much of it: the part of speculation that the scheduler talks to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ggfw.errors import InvalidRequest, UnsupportedError, brief
from ggfw.graph.cache_layout import state_of
from ggfw.sampling.constraint import Foreseeing
from ggfw.speculation.costs import StepCosts
from ggfw.speculation.ngram import NgramIndex
from ggfw.speculation.odds import FORCED, MODEL, Odds, kind_of_match

if TYPE_CHECKING:
    from ggfw.model import LoadedModel
    from ggfw.running import Running
    from ggfw.speculation.draft import DraftModel, DraftState

#: Ways to guess: look-up in the text, a draft model, whatever is there, nothing.
MODES = ("auto", "ngram", "draft", "off")
#: Most guesses of one request in one step.
MOST_DRAFTS = 15
#: The same where recurrent states have to be kept for each of them.
RECURRENT_DRAFTS = 7
#: The same where log-probabilities are noted, of which a native sampler keeps eight.
NOTED_DRAFTS = 7
#: Decode rows of a step, guesses included: beyond, kernels may take another route, and rows are no longer cheap.
MOST_ROWS = 24

#: Rows of which none is wasted: kernels work on tiles of up to eight.
GOOD_ROWS = (2, 4, 8, 10, 12, 16, 20, 24)

#: Ops whose kernels keep the state after each row that may turn out to be the last.
_REWINDABLE = ("short_conv", "ssm_scan", "gated_delta_rule")


class Track:
    """What speculation knows of one request.

    Attributes:
        index: its text.
        odds: how its guesses fared.
        kind: of the guesses under way.
        draft: what a draft model has read of it.
        foreseeing: its constraint, if that can tell what follows.
    """

    __slots__ = ("index", "odds", "kind", "draft", "foreseeing", "n_taken")

    def __init__(self, prompt: Sequence[int], constraint: object) -> None:
        self.index = NgramIndex(prompt)
        self.odds = Odds()
        self.kind = 0
        self.draft: DraftState | None = None
        self.foreseeing = constraint if isinstance(constraint, Foreseeing) else None
        self.n_taken = 0  # drawn tokens in the index

    def follow(self, tokens: Sequence[int]) -> None:
        """Take in what was drawn since."""
        for token in tokens[self.n_taken :]:
            self.index.push(token)
        self.n_taken = len(tokens)

    def close(self) -> None:
        """Give back what the draft model holds for it."""
        if self.draft is not None:
            self.draft.close()
            self.draft = None


class Speculator:
    """Guesses for the requests of one model. The scheduler's thread owns it.

    Args:
        model: the model.
        mode: one of MODES; ``auto`` looks up, and asks the draft model where there is one.
        draft: a draft model.

    Attributes:
        off: why nothing is guessed, or None.
        costs: of steps, by their rows.

    Raises:
        UnsupportedError: ``ngram`` or ``draft`` was asked for, and the model cannot take guesses back.
    """

    def __init__(self, model: LoadedModel, mode: str = "auto", draft: DraftModel | None = None) -> None:
        self.off = "it was switched off" if mode == "off" else why_off(model)
        if self.off is not None and mode not in ("auto", "off"):
            raise UnsupportedError(f"speculation is off for {model.name}: {self.off}; load with spec off")
        self.draft = draft if mode in ("auto", "draft") else None
        self.costs = StepCosts(MOST_ROWS)
        self._looks_up = mode in ("auto", "ngram")
        cache, executor = model.cache, model.executor
        self._most_rows = min(MOST_ROWS, executor.max_rows, executor.max_outputs)
        self._most = min(MOST_DRAFTS, cache.n_ring - 2) if cache.n_slots else MOST_DRAFTS

    def propose(self, decoding: Sequence[Running]) -> list[list[int]]:
        """Guess for requests that draw a token each in the next step.

        Returns:
            Guesses for each; none where they would not pay, or could not be used.
        """
        n = len(decoding)
        guesses: list[list[int]] = [[] for _ in decoding]
        base = self.costs.of(n)
        n_rows = n + sum(one.n_ahead for one in decoding)
        if self.off is not None or n_rows >= self._most_rows or not base:
            return guesses
        token_seconds = base / n
        asked: list[tuple[int, int]] = []
        for i, one in enumerate(decoding):
            room = self._room(one, n_rows)
            if room < 1 or one.n_ahead:
                continue
            if one.track is None:
                one.track = Track(one.request.prompt, one.masked)
            found = self._look(one, one.track, room, n_rows, token_seconds)
            if found:
                guesses[i] = found
                n_rows += len(found)
            elif self.draft is not None:
                asked.append((i, room))
        if asked:
            self._ask(decoding, asked, guesses, n_rows, token_seconds)
        return guesses

    def note(self, n_rows: int, seconds: float) -> None:
        """A step with ``n_rows`` decode rows and nothing else took ``seconds``."""
        self.costs.note(n_rows, seconds)

    @staticmethod
    def judge(one: Running, n_proposed: int, n_kept: int) -> None:
        """Of ``n_proposed`` guesses for a request the first ``n_kept`` came true."""
        if one.track is not None:
            one.track.odds.judge(one.track.kind, n_proposed, n_kept)

    def close(self) -> None:
        """Close the draft model."""
        if self.draft is not None:
            self.draft.close()

    def _room(self, one: Running, n_rows: int) -> int:
        """How many guesses a request can use."""
        room = min(self._most, one.limit - len(one.tokens) - 1, self._most_rows - n_rows)
        return min(room, NOTED_DRAFTS) if one.logprobs is not None else room

    def _cost(self, n_rows: int, each: float, n: int) -> float:
        """Seconds that ``n`` guesses, made in ``each`` seconds, add to a step of ``n_rows`` rows."""
        return self.costs.of(n_rows + n) - self.costs.of(n_rows) + n * each

    def _look(self, one: Running, track: Track, room: int, n_rows: int, token_seconds: float) -> list[int]:
        """Guesses that need no model."""
        if track.foreseeing is not None:
            found, kind = track.foreseeing.forced()[:room], FORCED
        else:
            found, kind = [], FORCED
        if not found and self._looks_up:
            track.follow(one.tokens)
            found, length = track.index.guess(room)
            if found:
                kind = kind_of_match(length)
                if track.foreseeing is not None:
                    found = found[: track.foreseeing.allowed_prefix(found)]
        if not found:
            return found
        track.kind = kind
        cost = partial(self._cost, n_rows, 0.0)
        n = track.odds.worth(kind, choices(n_rows, len(found)), cost, token_seconds)
        return found[:n]

    def _ask(
        self,
        decoding: Sequence[Running],
        asked: list[tuple[int, int]],
        guesses: list[list[int]],
        n_rows: int,
        token_seconds: float,
    ) -> None:
        """Fill in the draft model's guesses."""
        draft = self.draft
        assert draft is not None
        wanted: list[tuple[DraftState | None, list[int], int]] = []
        for i, room in asked:
            one = decoding[i]
            track = one.track
            assert track is not None
            if track.draft is None:
                track.draft = draft.begin()
            n = track.odds.worth(
                MODEL,
                choices(n_rows, min(room, self._most_rows - n_rows)),
                partial(self._cost, n_rows, draft.seconds),
                token_seconds,
            )
            n_rows += n
            wanted.append((track.draft, [*one.request.prompt, *one.tokens] if n else [], n))
        for (i, _), found in zip(asked, draft.guess(wanted), strict=True):
            track = decoding[i].track
            assert track is not None
            if found:
                if track.foreseeing is not None:
                    found = found[: track.foreseeing.allowed_prefix(found)]
                track.kind = MODEL
                guesses[i] = found


def check_spec(spec: str, has_draft: bool) -> None:
    """Check how guessing is asked for.

    Raises:
        InvalidRequest: ``spec`` is unknown, or asks for a draft model that is not there.
    """
    if not isinstance(spec, str) or spec not in MODES:
        raise InvalidRequest(f"spec is {brief(spec)}; {', '.join(MODES)} are known", "spec")
    if spec == "draft" and not has_draft:
        raise InvalidRequest(
            "spec draft needs a draft model; name one with draft, or take spec auto", "draft"
        )


def choices(n_rows: int, most: int) -> list[int]:
    """How many rows may be added to ``n_rows``, so that the sum fills the kernels' tiles; ``most`` at most, or just."""
    fitting = [n for rows in GOOD_ROWS if 0 < (n := rows - n_rows) < most]
    return [*fitting, most] if most > 0 else fitting


def why_off(model: LoadedModel) -> str | None:
    """Why guesses cannot be verified by a model, or None."""
    if not getattr(model.executor, "verifies", False):
        return f"the executor {model.executor.name} verifies no drafts"
    for node in model.graph.nodes:
        if state_of(node) is not None and node.op not in _REWINDABLE:
            return f"the recurrent state of {node.op} cannot be rewound"
    if model.cache.n_slots and model.cache.n_ring < 3:
        return "it was loaded without room for the recurrent states behind drafts"
    return None

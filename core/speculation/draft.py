"""A small model that guesses for a large one: greedily, with a cache of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ggfw.cache import OutOfPages, Sequence
from ggfw.errors import InvalidRequest
from ggfw.execute.batch import Batch, Segment
from ggfw.sampling import Params, SamplerSetup

if TYPE_CHECKING:
    from ggfw.model import LoadedModel

#: More waiting tokens than this are rows of a prompt for the kernels.
MOST_DECODE_ROWS = 8


class DraftState:
    """What the draft model has read of one request's text."""

    def __init__(self, sequence: Sequence, sampler: Any) -> None:
        self.sequence = sequence
        self.sampler = sampler
        self.fed: list[int] = []
        self.n_sure = 0  # of them that are the text, not guesses

    def close(self) -> None:
        """Give its pages back."""
        self.sequence.close()


class DraftModel:
    """Guesses with a second model of the same vocabulary. One thread at a time may call it.

    Args:
        model: the draft model, loaded for as many sequences and positions as the target; :meth:`close` closes it.
        target: the model it guesses for.

    Raises:
        InvalidRequest: the vocabularies differ, or the model cannot draft.
    """

    def __init__(self, model: LoadedModel, target: LoadedModel) -> None:
        check_pair(model, target)
        self.model = model
        #: Seconds that a guess takes, as measured.
        self.seconds = 0.0

    def guess(self, asked: list[tuple[DraftState | None, list[int], int]]) -> list[list[int]]:
        """Guess what follows.

        Args:
            asked: for each request its state (from :meth:`begin`; None: no guesses), its whole text, and how many
                tokens to guess.

        Returns:
            The guesses; none where there are many tokens to read first, of which each call reads some.
        """
        guesses: list[list[int]] = [[] for _ in asked]
        segments: list[tuple[int, Segment]] = []
        room = self.model.executor.max_rows
        for i, (state, tokens, n) in enumerate(asked):
            if state is None or n < 1 or room < 1 or len(tokens) >= self.model.n_ctx:
                continue
            segment = self._next_rows(state, tokens, room)
            room -= len(segment.tokens)
            segments.append((i, segment))
        while segments:
            begun = time.perf_counter()
            try:
                out = self.model.executor.step(Batch([segment for _, segment in segments]))
            except OutOfPages:  # guessing can wait
                break
            further: list[tuple[int, Segment]] = []
            only_single = True
            for (i, segment), token in zip(segments, out.sampled, strict=True):
                state, tokens, n = asked[i]
                assert state is not None
                only_single = only_single and len(segment.tokens) == 1
                state.fed += segment.tokens
                if len(state.fed) < len(tokens) or token is None or token < 0:
                    continue
                guesses[i].append(token)
                if len(guesses[i]) < n and state.sequence.n_positions < self.model.n_ctx:
                    further.append((i, Segment(state.sequence, [token], sampler=state.sampler)))
            if only_single:
                took = time.perf_counter() - begun
                self.seconds += 0.1 * (took - self.seconds) if self.seconds else took
            segments = further
        return guesses

    def begin(self) -> DraftState | None:
        """The state of a new request; None when the draft model has no room for it."""
        try:
            sequence = self.model.cache.sequence()
        except OutOfPages:
            return None
        return DraftState(sequence, self.model.executor.new_sampler(SamplerSetup(Params(temperature=0)), []))

    @staticmethod
    def _next_rows(state: DraftState, tokens: list[int], room: int) -> Segment:
        """The rows that lead from what was read to the end of the text, or the first ``room`` of them."""
        fed, sequence = state.fed, state.sequence
        n, most = state.n_sure, min(len(fed), len(tokens) - 1)
        while n < most and fed[n] == tokens[n]:
            n += 1
        del fed[n:]
        state.n_sure = sequence.n_positions = n
        # What guesses push out of a window is needed again when they fail.
        windowed = [pool.spec.first_block(n) for pool in sequence.cache.pools if pool.spec.window]
        sequence.keep_from = min(windowed, default=None)
        rows = tokens[n : n + room]
        return Segment(sequence, rows, prompt=len(rows) > MOST_DECODE_ROWS, sampler=state.sampler)

    def close(self) -> None:
        """Close the draft model."""
        self.model.close()


def check_pair(draft: LoadedModel, target: LoadedModel) -> None:
    """Check that one model can guess for the other.

    Raises:
        InvalidRequest: it cannot.
    """
    way_out = "take a smaller model of the same family, or load without a draft model"
    if draft.cache.n_slots:
        raise InvalidRequest(f"{draft.name} has recurrent state and cannot draft; {way_out}", "draft")
    if not (draft.architecture.causal and draft.architecture.chunkable and draft.n_vocab):
        raise InvalidRequest(f"{draft.name} does not generate text and cannot draft; {way_out}", "draft")
    if draft.executor.new_sampler(SamplerSetup(Params(temperature=0)), []) is None:
        raise InvalidRequest(
            f"the backend of {draft.name} has no native sampler; choose another backend", "draft"
        )
    ours, theirs = (m.gguf.get("tokenizer.ggml.tokens") for m in (draft, target))
    if draft.n_vocab != target.n_vocab or len(ours) != len(theirs):
        raise InvalidRequest(
            f"the draft model {draft.name} has a vocabulary of {draft.n_vocab} tokens, {target.name} one of "
            f"{target.n_vocab}; they must share it: {way_out}",
            "draft",
        )
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a != b:
            raise InvalidRequest(
                f"token {i} is {a!r} in the draft model {draft.name} and {b!r} in {target.name}; "
                f"they must share the vocabulary: {way_out}",
                "draft",
            )

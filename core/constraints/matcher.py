"""A compiled grammar at work on one answer: the state between two tokens."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ggfw.constraints.helper import submit

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from ggfw.constraints.vocabulary import TokenTable

#: Seconds. Masks that take longer are computed beside the model, all of them in advance. Usual ones take 0.01 to 0.1
#: ms, less than waking another thread costs, and nine of ten are never asked for: a model that knows what to write
#: draws allowed tokens.
SLOW_MASK = 1e-3
#: How much of the slowest mask so far is forgotten with each further one.
FORGET = 0.1
_ITEMS = re.compile(r"row has \d+ items; max is (\d+)")


def in_words(error: str) -> str:
    """An error of llguidance that names its own parts, said in words; others as they are."""
    if "NoExtensionBias" in error:
        return "what it demands is impossible, or its references lead back to themselves"
    items = _ITEMS.search(error)
    if items:
        most = items[1]
        return f"it leaves more than {most} ways to go on at one place; use fewer alternatives or optional properties"
    return error


class GrammarConstraint:
    """One answer's grammar state: the :class:`ggfw.sampling.MaskedConstraint` of llguidance. Not thread-safe.

    Args:
        table: the vocabulary.
        matcher: a matcher of its own, in its first state.
    """

    def __init__(self, table: TokenTable, matcher: LLMatcher) -> None:
        self.table = table
        self._matcher = matcher
        self._words: NDArray[np.uint32] = np.zeros(table.n_words, np.uint32)
        self._fresh = False  # whether _words belong to the present state
        self._job: Future[None] | None = None
        self._slowest = 0.0  # seconds
        self._ended = False  # whether the last token was one that ends the answer
        self._asked: int | None = None  # the token that was found allowed in the present state
        #: Tokens accepted so far.
        self.n_tokens = 0

    # -- the protocol ---------------------------------------------------------------------------------------------

    def allows(self, token: int) -> bool:
        """Whether ``token`` may come next."""
        self._join()
        if token == self._asked:
            return True
        if self._ended or not 0 <= token < self.table.n_vocab:
            return False
        if self._matcher.is_stopped():
            allowed = token in self.table.eog_ids and self.complete
        else:
            allowed = self._matcher.validate_tokens([token]) == 1
        if allowed:
            self._asked = token
        return allowed

    def accept(self, token: int) -> None:
        """Advance by ``token``; one that is not allowed leaves the state untouched."""
        if not self.allows(token):
            return
        self._join()
        if token in self.table.eog_ids:
            self._ended = True  # the matcher stays where it is, for it cannot take an end token back
        else:
            self._matcher.consume_token(token)
        self._changed(1)

    def first_bytes(self) -> NDArray[np.bool_]:
        """(256,) bool: the bytes with which the next token may begin; index 0 also stands for tokens without bytes."""
        lead = np.zeros(256, np.bool_)
        lead[self.table.first_bytes[self.mask()]] = True
        lead[0] = True
        return lead

    def first_byte(self, token: int) -> int:
        """First byte of ``token``; 0 if it has none or ends the answer."""
        return int(self.table.first_bytes[token])

    def mask(self) -> NDArray[np.bool_]:
        """(n_vocab,) bool: which tokens may come next."""
        bits = np.unpackbits(self.bitmask().view(np.uint8), count=self.table.n_vocab, bitorder="little")
        return bits.view(np.bool_)

    def prepare(self) -> None:
        """Begin to compute the mask in a helper thread, if the last ones took long enough to be worth it."""
        if not self._fresh and self._job is None and self._slowest > SLOW_MASK:
            self._job = submit(self._fill)

    @property
    def complete(self) -> bool:
        """Whether the grammar is satisfied and nothing but the end may follow."""
        self._join()
        return self._ended or (
            self._matcher.is_stopped() and not self._matcher.is_error() and self._matcher.is_accepting()
        )

    # -- beyond it ------------------------------------------------------------------------------------------------

    def bitmask(self) -> NDArray[np.uint32]:
        """(n_words,) uint32, valid until the state changes: bit i % 32 of word i // 32 says whether i may come next."""
        self._join()
        if not self._fresh:
            self._fill()
        return self._words

    @property
    def accepting(self) -> bool:
        """Whether the answer may end here."""
        self._join()
        return not self._matcher.is_error() and self._matcher.is_accepting()

    @property
    def failure(self) -> str | None:
        """Why nothing can follow although the grammar is not satisfied; None if all is well."""
        self._join()
        if self._matcher.is_error():
            return in_words(self._matcher.get_error()).split("\n", 1)[0] or "the grammar engine failed"
        return None

    def allowed_prefix(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens`` may follow one after the other; the state does not change (for drafts)."""
        self._join()
        return self._matcher.validate_tokens(list(tokens))

    def forced(self) -> list[int]:
        """Tokens that spell what has to follow, [] where there is a choice (for drafts: others may spell it, too)."""
        self._join()
        if self._ended or self._matcher.is_stopped():
            return []
        spelled = self._matcher.compute_ff_bytes()
        return self.table.ll.tokenize_bytes(spelled) if spelled else []

    def sole(self) -> int | None:
        """The only token that may come next; None where there are others, or where only the whole mask could tell."""
        forced = self.forced()
        # Of a piece of several bytes the first byte alone is a token, too.
        if not forced or len(self.table.piece(forced[0])) > 1:
            return None
        words = self.bitmask()
        [used] = np.nonzero(words)
        if used.size != 1:
            return None
        bits = int(words[used[0]])
        return None if bits & (bits - 1) else 32 * int(used[0]) + bits.bit_length() - 1

    def rollback(self, n: int) -> None:
        """Take the last ``n`` accepted tokens back."""
        self._join()
        if n > 0:
            self._matcher.rollback(n - self._ended)
            self._ended = False
        self._changed(-n)

    def copy(self) -> GrammarConstraint:
        """An independent constraint in the same state."""
        self._join()
        out = GrammarConstraint(self.table, self._matcher.deep_copy())
        out.n_tokens, out._ended = self.n_tokens, self._ended
        return out

    # -- inside ---------------------------------------------------------------------------------------------------

    def _changed(self, n: int) -> None:
        self._fresh = False
        self._asked = None
        self.n_tokens += n

    def _join(self) -> None:
        """Wait for the helper: a matcher serves one thread at a time."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    def _fill(self) -> None:
        words = self._words
        begun = time.perf_counter()
        if self._ended or self._matcher.is_stopped():
            words[:] = 0
            if not self._ended and not self._matcher.is_error() and self._matcher.is_accepting():
                for token in self.table.eog_ids:
                    words[token >> 5] |= np.uint32(1 << (token & 31))
        else:
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            if self._matcher.is_error():  # then the words hold the end tokens
                words[:] = 0
            self._check_control_tokens()
        took = time.perf_counter() - begun
        self._slowest = max(took, self._slowest * (1 - FORGET))
        self._fresh = True

    def _check_control_tokens(self) -> None:
        """Take control tokens out of the mask that llguidance would refuse.

        It writes them as bytes that no text has, which negated expressions match all the same.
        """
        doubtful = self._words & self.table.control_words
        if doubtful.any():
            for token in np.flatnonzero(np.unpackbits(doubtful.view(np.uint8), bitorder="little")).tolist():
                if self._matcher.validate_tokens([token]) != 1:
                    self._words[token >> 5] &= ~np.uint32(1 << (token & 31))

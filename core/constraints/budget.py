"""A limit on the tokens of a reasoning block: when they are used up, the block is closed in the model's place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ggfw.constraints.matcher import GrammarConstraint
from ggfw.constraints.reasoning import AfterReasoning
from ggfw.sampling.constraint import Constraint

if TYPE_CHECKING:
    from ggfw.chat.dialect import Reasoning
    from ggfw.tokenizer import Tokenizer

_Phase = Literal["before", "inside", "closing", "answer"]
_Inner = GrammarConstraint | AfterReasoning


class ReasoningBudget:
    """A :class:`ggfw.sampling.MaskedConstraint` that allows everything but a block that is too long. Not thread-safe.

    Tokens between the opening and the closing text count, those of several blocks together. When ``limit`` of them have
    come, only the next token of the closing text is allowed, until it is written.

    Args:
        inner: the constraint of the answer, which sees every token; None: the answer is free.
        tokenizer: the vocabulary.
        block: how the block is opened and closed.
        limit: tokens.
    """

    def __init__(self, inner: _Inner | None, tokenizer: Tokenizer, block: Reasoning, limit: int) -> None:
        self.inner = inner
        self.limit = limit
        #: Tokens that came inside so far.
        self.n_inside = 0
        self._tokenizer, self._block = tokenizer, block
        self._piece: Callable[[int], bytes] = tokenizer.piece
        self._open, self._close, self._between = (
            text.encode() for text in (block.open, block.close, block.between)
        )
        self._interrupts = [text.encode() for text in block.interrupts] if inner is None else []
        self._phase: _Phase = "inside" if block.inside else "before"
        self._tail = b""  # text of the phase so far, as much of it as matters
        self._forced: list[int] = []
        if self._phase == "inside":
            self._check_limit()

    # -- the protocol ---------------------------------------------------------------------------------------------

    def allows(self, token: int) -> bool:
        """Whether ``token`` may come next."""
        if self._forced:
            return token == self._forced[0]
        if self.inner is not None:
            return self.inner.allows(token)
        return 0 <= token < self._tokenizer.n_vocab

    def accept(self, token: int) -> None:
        """Advance by ``token``; one that is not allowed leaves the state untouched."""
        if not self.allows(token):
            return
        if self.inner is not None:
            self.inner.accept(token)
        if self._forced:
            self._forced.pop(0)
            if not self._forced:
                self._phase, self._tail = "before", b""
        elif self._phase == "inside":
            self._inside(self._piece(token))
        elif self._phase == "before":
            self._before(self._piece(token))

    def mask(self) -> NDArray[np.bool_]:
        """(n_vocab,) bool: which tokens may come next."""
        if not self._forced and self.inner is not None:
            return self.inner.mask()
        out = np.ones(self._tokenizer.n_vocab, np.bool_)
        if self._forced:
            out[:] = False
            out[self._forced[0]] = True
        return out

    def bitmask(self) -> NDArray[np.uint32]:
        """The mask as bits; see :meth:`GrammarConstraint.bitmask`."""
        if not self._forced and self.inner is not None:
            return self.inner.bitmask()
        mask = self.mask()
        padded = np.zeros(-(-mask.size // 32) * 32, np.bool_)
        padded[: mask.size] = mask
        return np.packbits(padded, bitorder="little").view(np.uint32)

    def first_bytes(self) -> NDArray[np.bool_]:
        """(256,) bool: bytes with which the next token may begin."""
        if self._forced or self.inner is None:
            return np.ones(256, np.bool_)
        return self.inner.first_bytes()

    def first_byte(self, token: int) -> int:
        """First byte of ``token``; 0 if it has none."""
        return next(iter(self._piece(token)), 0)

    def prepare(self) -> None:
        """Let the answer's constraint compute its mask, where it is asked next."""
        if self.inner is not None and not self._forced:
            self.inner.prepare()

    @property
    def complete(self) -> bool:
        """Whether the answer is satisfied and nothing but the end may follow."""
        return self.inner is not None and not self._forced and self.inner.complete

    @property
    def failure(self) -> str | None:
        """Why nothing can follow although the answer is not satisfied; None if all is well."""
        return None if self.inner is None or self._forced else self.inner.failure

    def forced(self) -> list[int]:
        """Tokens that have to follow, or spell what has to; see :meth:`GrammarConstraint.forced`."""
        if self._forced or self.inner is None:
            return list(self._forced)
        return self.inner.forced()

    def sole(self) -> int | None:
        """The only token that may come next; see :meth:`GrammarConstraint.sole`."""
        if self._forced:
            return self._forced[0]
        return None if self.inner is None else self.inner.sole()

    def allowed_prefix(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens`` may follow one after the other, as far as that is known without trying."""
        if self._forced:
            pairs = zip(tokens, self._forced, strict=False)
            n = min(len(tokens), len(self._forced))
            return next((i for i, (one, other) in enumerate(pairs) if one != other), n)
        return len(tokens) if self.inner is None else self.inner.allowed_prefix(tokens)

    def copy(self) -> ReasoningBudget:
        """An independent constraint in the same state."""
        inner = None if self.inner is None else self.inner.copy()
        out = ReasoningBudget(inner, self._tokenizer, self._block, self.limit)
        out.n_inside, out._phase, out._tail = self.n_inside, self._phase, self._tail
        out._forced = list(self._forced)
        return out

    # -- inside ---------------------------------------------------------------------------------------------------

    def _before(self, piece: bytes) -> None:
        """Text in front of the answer: white space, then perhaps a block."""
        text = (self._tail + piece).lstrip()
        bare = text.removeprefix(self._between).lstrip() if self._between else text
        if self._open and bare.startswith(self._open):
            self._phase, self._tail = "inside", bare[len(self._open) :]
            self._check_limit()
        elif self._open and (self._open.startswith(bare) or self._between.startswith(text)):
            self._tail = text
        else:
            self._phase = "answer"

    def _inside(self, piece: bytes) -> None:
        text = self._tail + piece
        _, closed, rest = text.partition(self._close)
        if closed:
            self._phase, self._tail = "before", b""
            self._before(rest)
            return
        if any(mark in text for mark in self._interrupts):
            self._phase = "answer"
            return
        self.n_inside += 1
        longest = max(map(len, (self._close, *self._interrupts)))
        self._tail = text[-longest + 1 :] if longest > 1 else b""
        self._check_limit()

    def _check_limit(self) -> None:
        if self.n_inside < self.limit:
            return
        # The model may have begun to close the block itself: then only the rest is missing.
        begun = next((n for n in range(len(self._close), 0, -1) if self._tail.endswith(self._close[:n])), 0)
        if begun:
            text = self._close[begun:].decode("utf-8", "replace") + self._layout()
        else:
            text = self._block.forced or f"\n{self._block.close}{self._layout()}"
        self._forced = self._tokenizer.encode(text, add_special=False, parse_special=True)
        self._phase = "closing" if self._forced else "before"

    def _layout(self) -> str:
        """What stands behind the closing text."""
        forced = self._block.forced
        return forced.partition(self._block.close)[2] if forced else "\n\n"


def can_limit(constraint: Constraint | None) -> bool:
    """Whether :func:`limit_reasoning` can stand in front of ``constraint``."""
    return constraint is None or isinstance(constraint, _Inner)


def limit_reasoning(
    constraint: Constraint | None, tokenizer: Tokenizer, block: Reasoning, limit: int
) -> Constraint | None:
    """``constraint``, of a grammar or None, with at most ``limit`` tokens of reasoning in front of the answer."""
    if not block.inside and not block.open:
        return constraint
    return ReasoningBudget(constraint, tokenizer, block, limit)  # type: ignore[arg-type]

"""Free reasoning, constrained answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ggfw.constraints.matcher import GrammarConstraint
from ggfw.sampling.constraint import Constraint

if TYPE_CHECKING:
    from ggfw.chat.dialect import Reasoning
    from ggfw.tokenizer import Tokenizer

#: White space that may stand between reasoning and answer; models write a line break or two.
MAX_SPACE = 16

_Phase = Literal["before", "inside", "behind", "answer"]


class AfterReasoning:
    """A constraint that begins when the reasoning block has ended. Not thread-safe.

    Inside the block everything is allowed but ending the generation, for then there would be no answer; the token that
    closes the block must not run into the answer, which no grammar has looked at. White space behind the block is
    layout and belongs to neither.

    Args:
        answer: the constraint of the answer, in its first state.
        tokenizer: the vocabulary.
        block: how the block is closed, and whether the prompt has opened it.
    """

    def __init__(self, answer: GrammarConstraint, tokenizer: Tokenizer, block: Reasoning) -> None:
        self.answer = answer
        self._block = block
        self._piece: Callable[[int], bytes] = tokenizer.piece
        self._close = block.close.encode()
        self._open_id = None if block.inside else single_token(tokenizer, block.open)
        self._phase: _Phase = "inside" if block.inside else "before"
        self._tail = b""  # the end of the block's text, where the closing mark may have begun
        self._n_space = 0
        self._tokenizer = tokenizer

    # -- the protocol ---------------------------------------------------------------------------------------------

    def allows(self, token: int) -> bool:
        """Whether ``token`` may come next."""
        if self._phase == "answer":
            return self.answer.allows(token)
        if not 0 <= token < self.answer.table.n_vocab:
            return False
        if self._phase == "inside":
            if token in self.answer.table.eog_ids:
                return False
            _, closed, rest = (self._tail + self._piece(token)).partition(self._close)
            return not closed or not rest.strip()
        if self._phase == "before" and token == self._open_id:
            return True
        return self._is_layout(token) or self.answer.allows(token)

    def accept(self, token: int) -> None:
        """Advance by ``token``; one that is not allowed leaves the state untouched."""
        if not self.allows(token):
            return
        if self._phase == "inside":
            text = self._tail + self._piece(token)
            _, closed, rest = text.partition(self._close)
            if closed:
                self._phase, self._n_space = "behind", len(rest)
            else:
                self._tail = (
                    text[len(text) - len(self._close) + 1 :] if len(text) >= len(self._close) else text
                )
        elif self._phase == "before" and token == self._open_id:
            self._phase = "inside"
        elif self._phase != "answer" and not self.answer.allows(token):
            self._n_space += len(self._piece(token))
        else:
            self._phase = "answer"
            self.answer.accept(token)

    def mask(self) -> NDArray[np.bool_]:
        """(n_vocab,) bool: which tokens may come next."""
        if self._phase == "answer":
            return self.answer.mask()
        if self._phase == "inside":
            out = np.ones(self.answer.table.n_vocab, np.bool_)
            out[list(self.answer.table.eog_ids)] = False
            for token in self._enders():
                out[token] = self.allows(token)
            return out
        out = self.answer.mask().copy()
        if self._phase == "before" and self._open_id is not None:
            out[self._open_id] = True
        for token in self._spaces():
            out[token] = out[token] or self._is_layout(token)
        return out

    def bitmask(self) -> NDArray[np.uint32]:
        """The mask as bits; see :meth:`GrammarConstraint.bitmask`."""
        if self._phase == "answer":
            return self.answer.bitmask()
        mask = self.mask()
        padded = np.zeros(-(-mask.size // 32) * 32, np.bool_)
        padded[: mask.size] = mask
        return np.packbits(padded, bitorder="little").view(np.uint32)

    def first_bytes(self) -> NDArray[np.bool_]:
        """(256,) bool: bytes with which the next token may begin; outside the answer all."""
        return self.answer.first_bytes() if self._phase == "answer" else np.ones(256, np.bool_)

    def first_byte(self, token: int) -> int:
        """First byte of ``token``; 0 if it has none or ends the answer."""
        return self.answer.first_byte(token)

    def prepare(self) -> None:
        """Begin to compute the answer's mask in a helper thread, where it is next."""
        if self._phase != "inside":
            self.answer.prepare()

    @property
    def complete(self) -> bool:
        """Whether the answer is satisfied and nothing but the end may follow."""
        return self._phase == "answer" and self.answer.complete

    @property
    def failure(self) -> str | None:
        """Why nothing can follow although the answer is not satisfied; None if all is well."""
        return None if self._phase == "inside" else self.answer.failure

    def forced(self) -> list[int]:
        """Tokens that spell what has to follow; see :meth:`GrammarConstraint.forced`."""
        return self.answer.forced() if self._phase == "answer" else []

    def sole(self) -> int | None:
        """The only token that may come next; see :meth:`GrammarConstraint.sole`."""
        return self.answer.sole() if self._phase == "answer" else None

    def allowed_prefix(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens`` may follow one after the other, as far as that is known without trying."""
        return self.answer.allowed_prefix(tokens) if self._phase == "answer" else len(tokens)

    def copy(self) -> AfterReasoning:
        """An independent constraint in the same state."""
        out = AfterReasoning(self.answer.copy(), self._tokenizer, self._block)
        out._phase, out._tail, out._n_space = self._phase, self._tail, self._n_space
        return out

    # -- inside ---------------------------------------------------------------------------------------------------

    def _is_layout(self, token: int) -> bool:
        """Whether ``token`` may be white space in front of the answer."""
        if token in self.answer.table.eog_ids or self.answer.table.first_bytes[token] == 0:
            return False
        piece = self._piece(token)
        return not piece.strip() and self._n_space + len(piece) <= MAX_SPACE

    def _spaces(self) -> list[int]:
        return self.answer.table.ids_where("space", lambda piece: bool(piece) and not piece.strip())

    def _enders(self) -> list[int]:
        """Tokens that might end the closing mark and go on with something else."""
        last = self._close[-1:]
        return self.answer.table.ids_where(
            f"behind {self._block.close}", lambda piece: bool(piece.partition(last)[2].strip())
        )


def after_reasoning(constraint: Constraint, tokenizer: Tokenizer, block: Reasoning | None) -> Constraint:
    """``constraint``, to begin behind ``block`` if an answer may begin with one: the prompt has opened it, or one token
    of the vocabulary can. Constraints that are not of a grammar look after themselves.
    """
    if block is None or not isinstance(constraint, GrammarConstraint):
        return constraint
    if not block.inside and single_token(tokenizer, block.open) is None:
        return constraint
    return AfterReasoning(constraint, tokenizer, block)


def single_token(tokenizer: Tokenizer, text: str) -> int | None:
    """The token that ``text`` is, control tokens included, or None if it is none or several."""
    ids = tokenizer.encode(text, add_special=False, parse_special=True) if text else []
    return ids[0] if len(ids) == 1 else None

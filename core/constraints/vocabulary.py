"""A vocabulary as grammars see it: the bytes of every token in a prefix tree, and which tokens are special."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ggfw.tokenizer import Tokenizer


class _Source:
    """What llguidance asks a tokenizer for. It keeps this object, so the tokenizer itself is not held."""

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], special: list[int]) -> None:
        self.tokens = tokens
        self.special_token_ids = special
        self.bos_token_id = tokenizer.bos_id
        # With no end token llguidance adds one behind the vocabulary, which no sampler can draw.
        self.eos_token_id = min(tokenizer.eog_ids, default=None)
        self._tokenizer = weakref.ref(tokenizer)

    def __call__(self, text: bytes) -> list[int]:
        tokenizer = self._tokenizer()
        return tokenizer.encode(text, add_special=False) if tokenizer is not None else []


class TokenTable:
    """The prefix tree of one vocabulary; see :meth:`of`. Building takes some tenths of a second per 50,000 tokens.

    Marks (control tokens and their like) and end-of-generation tokens have no bytes here: text never matches them, a
    grammar reaches them by id only.

    Attributes:
        n_vocab: tokens of the vocabulary.
        ll: llguidance's tokenizer.
        n_words: 32-bit words of a mask.
        eog_ids: ids that end the answer, allowed where the grammar may end.
        control_words: (n_words,) uint32, the mask of the tokens that have no bytes here.
        first_bytes: (n_vocab,) uint8, the first byte of every token; 0 for those without bytes.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self.n_vocab = n = tokenizer.n_vocab
        self.eog_ids = tokenizer.eog_ids
        tokens = tokenizer.pieces()
        special = sorted({i for i in range(n) if tokenizer.is_mark(i)} | self.eog_ids)
        first = bytearray(token[0] if token else 0 for token in tokens)
        for token in special:
            first[token] = 0
        self.first_bytes: NDArray[np.uint8] = np.frombuffer(first, np.uint8)
        source = TokenizerWrapper(_Source(tokenizer, tokens, special))
        # Slices are sets of tokens that a JSON string swallows whole: they make masks inside strings cheap.
        self.ll = LLTokenizer(
            source, eos_token=sorted(self.eog_ids) or None, slices=LLTokenizer.json_slices()
        )
        source.tokens = source._gtokenizer.tokens = []  # the tree has its own copy
        self._tokenizer = weakref.ref(tokenizer)
        self._ids: dict[str, list[int]] = {}
        self.n_words = (self.ll.vocab_size + 31) // 32
        control = np.zeros(32 * self.n_words, np.bool_)
        control[special] = True
        self.control_words: NDArray[np.uint32] = np.packbits(control, bitorder="little").view(np.uint32)

    def ids_where(self, name: str, test: Callable[[bytes], bool]) -> list[int]:
        """Ids of the tokens whose bytes pass ``test``; found once per ``name``."""
        found = self._ids.get(name)
        if found is None:
            tokenizer = self._tokenizer()
            assert tokenizer is not None
            found = self._ids[name] = [i for i, piece in enumerate(tokenizer.pieces()) if test(piece)]
        return found

    def piece(self, token: int) -> bytes:
        """The bytes of a token; none for those without bytes here."""
        tokenizer = self._tokenizer()
        assert tokenizer is not None
        return tokenizer.piece(token) if self.first_bytes[token] else b""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenTable:
        """The table of ``tokenizer``, built on the first call and kept as long as the tokenizer."""
        with _lock:
            found = _tables.get(tokenizer)
            if found is None:
                found = _tables[tokenizer] = cls(tokenizer)
            return found


_tables: weakref.WeakKeyDictionary[Tokenizer, TokenTable] = weakref.WeakKeyDictionary()
_lock = threading.Lock()

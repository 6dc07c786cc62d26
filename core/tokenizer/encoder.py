"""What a kind of vocabulary must offer: turning stretches of plain text into ids, and ids into bytes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable

from ggfw.tokenizer.lenient import lenient_text
from ggfw.tokenizer.vocabulary import Vocabulary

_CACHE_LIMIT = 1 << 16  # pieces remembered; the cache is emptied when full
_YIELD_EVERY = 1024  # characters merged between two chances for other threads
_YIELD_ABOVE = 8192  # characters; shorter texts are through in a few milliseconds


class Encoder(ABC):
    """Encodes text that holds no special tokens any more.

    Args:
        vocab: the vocabulary.
    """

    def __init__(self, vocab: Vocabulary) -> None:
        self.vocab = vocab
        self._cache: dict[str, tuple[int, ...]] = {}

    @abstractmethod
    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """Ids of a stretch of plain text; ``at_start``: it begins the text or follows a special token."""

    def text_of(self, data: bytes) -> str:
        """Bytes that ought to be UTF-8, as text; ill-formed ones are taken the way llama.cpp takes them."""
        return lenient_text(data)

    @abstractmethod
    def split(self, text: str) -> list[str]:
        """The pieces in which ``text`` is merged; joined they are the text (spaces possibly escaped)."""

    @abstractmethod
    def piece(self, token: int) -> bytes:
        """The bytes that a token prints."""

    @abstractmethod
    def _encode_piece(self, piece: str) -> list[int]:
        """Merge one piece, without cache."""

    def _encode_pieces(self, pieces: Iterable[str], size: int) -> list[int]:
        """Merge pieces one by one, remembering them; other threads get their turn in texts of many characters."""
        cache = self._cache
        out: list[int] = []
        worked = 0
        polite = size > _YIELD_ABOVE
        for piece in pieces:
            ids = cache.get(piece)
            if ids is None:
                ids = tuple(self._encode_piece(piece))
                if len(piece) <= 64:
                    if len(cache) >= _CACHE_LIMIT:
                        cache.clear()
                    cache[piece] = ids
                worked += len(piece)
                if polite and worked > _YIELD_EVERY:
                    worked = 0
                    time.sleep(1e-6)  # zero would give the lock up and win it back before anybody woke
            out += ids
        return out

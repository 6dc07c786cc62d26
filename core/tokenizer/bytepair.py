"""Byte-pair vocabularies with stored merges (``tokenizer.ggml.model = gpt2``, ``gemma4``, ``whitespace``).

Text is cut by the pre-tokenizer rule, each piece is written in the byte alphabet (or left as characters), and
the stored merge of lowest rank is applied until none fits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from threading import Lock
from typing import Any

from ggfw.errors import ModelFileError
from ggfw.tokenizer import attributes as attr
from ggfw.tokenizer.bulk import BulkEncoder
from ggfw.tokenizer.byte_level import byte_of_token, byte_token, from_byte_alphabet, to_byte_alphabet
from ggfw.tokenizer.encoder import Encoder
from ggfw.tokenizer.merging import NO_MERGE, merge_pairs
from ggfw.tokenizer.pretokenizers import PreTokenizerRule
from ggfw.tokenizer.spaces import SPACE, WHITE_SPACE, SpaceCutter, lower_simple
from ggfw.tokenizer.splitter import Splitter
from ggfw.tokenizer.vocabulary import Vocabulary, text_array


class BytePairEncoder(Encoder):
    """Encoder for vocabularies with merges.

    Args:
        vocab: the vocabulary.
        rule: the pre-tokenizer.
        metadata: of the GGUF file, for the merges.

    Attributes:
        bulk_from: texts of so many characters go to the native engine (``bulk``), which frees other threads meanwhile
            but takes 0.1 to 0.5 s to build, once.

    Raises:
        ModelFileError: the file has no merges.
    """

    bulk_from: int = 32_768

    def __init__(self, vocab: Vocabulary, rule: PreTokenizerRule, metadata: Mapping[str, Any]) -> None:
        super().__init__(vocab)
        self.rule = rule
        merges = text_array(metadata, "tokenizer.ggml.merges")
        if merges is None:
            raise ModelFileError("the file has no tokenizer.ggml.merges, which a byte-pair vocabulary needs")
        # "left right" is looked up as it is stored: symbols hold no spaces, so the text is unambiguous.
        self._ranks = dict(zip(merges, range(len(merges)), strict=True))
        if len(self._ranks) != len(merges):  # of equal merges the first counts
            self._ranks = dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))
        self._cutter = SpaceCutter(self._spanned)
        self._splitter = Splitter(rule.patterns)
        self._bulk: BulkEncoder | None = None
        self._bulk_lock = Lock()

    def _key(self, left: str, right: str) -> float:
        return self._ranks.get(f"{left} {right}", NO_MERGE)

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        if len(text) >= self.bulk_from and self.rule.byte_level:
            ids = self.bulk.encode(text)
            if ids is not None:
                return ids
        return self._encode_pieces(self._work_pieces(text), len(text))

    @property
    def bulk(self) -> BulkEncoder:
        """The native engine for long texts, built on first use."""
        with self._bulk_lock:
            if self._bulk is None:
                self._bulk = BulkEncoder(self.vocab, self.rule, self._ranks, self._splitter, self._fallback)
            return self._bulk

    def split(self, text: str) -> list[str]:
        """The pieces of the pre-tokenizer rule, before they are written in the byte alphabet."""
        return self._splitter.split(text.replace(" ", SPACE) if self.rule.escape_spaces else text)

    def _work_pieces(self, text: str) -> list[str]:
        pieces = self.split(text)
        if not self.rule.escape_spaces:
            return pieces
        # Lines are long; cut them further where no merge can cross, as for SentencePiece vocabularies.
        return [part for piece in pieces for part in self._cutter.cut(piece)]

    def _spanned(self) -> set[str]:
        """Characters that some merge joins with a following U+2581."""
        return set(re.findall(f"([^{SPACE}\n]) {SPACE}", "\n".join(self._ranks)))

    def _encode_piece(self, piece: str) -> list[int]:
        index, not_text = self.vocab.index, self.vocab.not_text
        rule = self.rule
        word = to_byte_alphabet(piece) if rule.byte_level else piece
        if rule.ignore_merges or (rule.newline_token and not piece.strip("\n")):
            token = index.get(word)
            if token is not None and token not in not_text:
                return [token]
        out: list[int] = []
        for symbol in merge_pairs(list(word), self._key):
            token = index.get(symbol)
            if token is not None and token not in not_text:
                out.append(token)
            else:
                out += self._fallback(symbol)
        return out

    def _fallback(self, symbol: str) -> list[int]:
        """A symbol that is no token: its characters or bytes as far as they are tokens."""
        names = symbol if self.rule.byte_level else map(byte_token, symbol.encode("utf-8", "surrogatepass"))
        ids = (self.vocab.index.get(name) for name in names)
        return [i for i in ids if i is not None]

    def piece(self, token: int) -> bytes:
        text = self.vocab.tokens[token]
        bits = int(self.vocab.bits[token])
        if not bits & (attr.SPECIAL | attr.USER_DEFINED):
            if bits & attr.BYTE:
                byte = byte_of_token(text)
                if byte is not None:
                    return bytes([byte])
            elif not bits & attr.NORMAL:
                return b""
            if self.rule.escape_spaces:
                text = text.replace(SPACE, " ")
            elif self.rule.byte_level:
                return from_byte_alphabet(text)
        return text.encode("utf-8", "surrogateescape")


class WhitespaceEncoder(BytePairEncoder):
    """Encoder for ``whitespace`` vocabularies: white space only separates, and is lost.

    Args:
        lowercase: capitals are written small before merging.
    """

    def __init__(
        self, vocab: Vocabulary, rule: PreTokenizerRule, metadata: Mapping[str, Any], *, lowercase: bool
    ) -> None:
        super().__init__(vocab, rule, metadata)
        self._lowercase = lowercase

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        return self._encode_pieces(self.split(text), len(text))

    def split(self, text: str) -> list[str]:
        words = WHITE_SPACE.split(text)
        if self._lowercase:
            words = ["".join(map(lower_simple, word)) for word in words]
        return [piece for word in words if word for piece in self._splitter.split(word)]

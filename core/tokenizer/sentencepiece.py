"""SentencePiece-style vocabularies (``tokenizer.ggml.model = llama``): best-scored pair first, bytes as last resort.

Spaces become U+2581 and there is no pre-tokenizer: a whole text is one piece. Merges are not stored; two
neighbours merge if their joined text is a token, the best score first. That needs nothing but the table of
texts, so a vocabulary of 262,144 tokens is ready as soon as its strings are read, where a list of its half a
million possible merges would take a second to derive and to load.
"""

from __future__ import annotations

import numpy as np

from ggfw.tokenizer import attributes as attr
from ggfw.tokenizer.byte_level import byte_of_token, byte_token
from ggfw.tokenizer.encoder import Encoder
from ggfw.tokenizer.lenient import bytes_with_raw, raw_byte_text
from ggfw.tokenizer.merging import NO_MERGE, merge_pairs
from ggfw.tokenizer.spaces import SPACE, SpaceCutter
from ggfw.tokenizer.vocabulary import Vocabulary


class SentencePieceEncoder(Encoder):
    """Encoder for ``llama`` vocabularies.

    Args:
        vocab: the vocabulary.
        space_prefix: a space is put in front of text at the start and after special tokens.
    """

    def __init__(self, vocab: Vocabulary, *, space_prefix: bool) -> None:
        super().__init__(vocab)
        self._prefix = " " if space_prefix else ""
        keys = -vocab.scores
        # What is not text must not come out of merging: users could otherwise write control tokens letter by letter.
        keys[(vocab.bits & (attr.SPECIAL | attr.BYTE)) != 0] = np.inf
        keys[np.isnan(keys)] = np.inf
        self._key_of_id = keys.data
        self._cutter = SpaceCutter(self._spanned)
        self._bytes = [vocab.index.get(byte_token(b)) for b in range(256)]

    def _key(self, left: str, right: str) -> float:
        token = self.vocab.index.get(left + right)
        return NO_MERGE if token is None else self._key_of_id[token]

    def text_of(self, data: bytes) -> str:
        return raw_byte_text(data)

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        return self._encode_pieces(self.split(self._prefix + text if at_start else text), len(text))

    def split(self, text: str) -> list[str]:
        """Cut before spaces wherever no token could span the cut: this changes no id, but makes pieces short."""
        return self._cutter.cut(text.replace(" ", SPACE))

    def _spanned(self) -> set[str]:
        """Characters that some token has before U+2581: a merge across c|▁ makes a token with c▁ inside it."""
        joined = np.frombuffer("\0".join(self.vocab.tokens).encode("utf-32-le", "surrogatepass"), np.uint32)
        before = joined[:-1][joined[1:] == ord(SPACE)]
        return {chr(c) for c in set(before.tolist())} - {"\0"}

    def _encode_piece(self, piece: str) -> list[int]:
        index, not_text = self.vocab.index, self.vocab.not_text
        out: list[int] = []
        for symbol in merge_pairs(list(piece), self._key):
            token = index.get(symbol)
            if token is not None and token not in not_text:
                out.append(token)
            else:
                out += self._byte_ids(symbol)
        return out

    def _byte_ids(self, symbol: str) -> list[int]:
        ids: list[int] = []
        for byte in bytes_with_raw(symbol):
            token = self._bytes[byte]
            if token is None and byte < 0x80:
                token = self.vocab.index.get(chr(byte))
            if token is None:
                token = self.vocab.roles["unk"]
            if token is not None:
                ids.append(token)
        return ids

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
            text = text.replace(SPACE, " ")
        return text.encode("utf-8", "surrogateescape")

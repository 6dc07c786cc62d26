"""WordPiece vocabularies (``tokenizer.ggml.model = bert``): longest match first, word by word.

Words are cut at white space and around punctuation and Chinese characters, written small and without accents
unless the file says otherwise. A token that begins a word is stored with U+2581 in front. A word that cannot
be covered is one unknown token.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from ggfw.tokenizer import attributes as attr
from ggfw.tokenizer.encoder import Encoder
from ggfw.tokenizer.spaces import SPACE, WHITE_SPACE, lower_simple
from ggfw.tokenizer.vocabulary import Vocabulary

# Ideographs that are words of their own. (Extension E begins late, as in the tokenizer the models were trained with.)
_IDEOGRAPH = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f]"
)


class WordPieceEncoder(Encoder):
    """Encoder for ``bert`` vocabularies.

    Args:
        vocab: the vocabulary.
        metadata: of the GGUF file, for ``normalizer.lowercase`` and ``normalizer.strip_accents``.
    """

    def __init__(self, vocab: Vocabulary, metadata: Mapping[str, Any]) -> None:
        super().__init__(vocab)
        self._lowercase = bool(metadata.get("tokenizer.ggml.normalizer.lowercase", True))
        self._strip = bool(metadata.get("tokenizer.ggml.normalizer.strip_accents", self._lowercase))
        self._longest = max(map(len, vocab.tokens))

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        return self._encode_pieces(self.split(text), len(text))

    def split(self, text: str) -> list[str]:
        """The words after normalisation; unlike other kinds they do not join back to the text."""
        words: list[str] = []
        for chunk in WHITE_SPACE.split(text):
            word = ""
            for char in chunk:
                if self._strip:
                    char = unicodedata.normalize("NFD", char)[0]
                category = unicodedata.category(char)
                if char == "\ufffd" or category in ("Cc", "Cf", "Co", "Cs"):
                    continue
                if self._strip and category[0] == "M":
                    continue
                alone = category[0] == "P" or (category[0] == "S" and char < "\x7f") or _IDEOGRAPH.match(char)
                if self._lowercase:
                    char = lower_simple(char)
                if alone:
                    words += [word, char]
                    word = ""
                else:
                    word += char
            words.append(word)
        return [w for w in words if w]

    def _encode_piece(self, piece: str) -> list[int]:
        index = self.vocab.index
        word = SPACE + piece
        out: list[int] = []
        at = 0
        while at < len(word):
            for end in range(min(len(word), at + self._longest), at, -1):
                token = index.get(word[at:end])
                if token is not None and token not in self.vocab.not_text:
                    out.append(token)
                    at = end
                    break
            else:
                unknown = self.vocab.roles["unk"]
                return [] if unknown is None else [unknown]
        return out

    def piece(self, token: int) -> bytes:
        text = self.vocab.tokens[token]
        bits = int(self.vocab.bits[token])
        if bits & attr.NORMAL and not bits & (attr.SPECIAL | attr.USER_DEFINED):
            text = text.replace(SPACE, " ")
        return text.encode("utf-8", "surrogateescape")

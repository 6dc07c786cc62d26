"""Bytes of tokens back to text: incrementally for streams, and llama.cpp's clean-up for whole texts."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Decoder:
    """Decodes a stream of ids; characters whose bytes are spread over several tokens come out whole.

    Args:
        piece: bytes that a token prints.

    What can no longer become a valid character is given out at once as U+FFFD. The joined output of a stream, ``flush``
    included, equals decoding all bytes at once with ``errors="replace"``.
    """

    __slots__ = ("_piece", "_utf8")

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._utf8 = _Utf8Decoder("replace")

    def push(self, token: int) -> str:
        """The text that became certain with this token; may be empty."""
        text = self._utf8.decode(self._piece(token))
        pending = self.pending
        if (
            pending[:1] == b"\xed" and pending[1:2] >= b"\xa0"
        ):  # half a surrogate: Python's decoder waits in vain
            text += self.flush()
        return text

    def flush(self) -> str:
        """What an unfinished character leaves at the end of a stream: nothing or one U+FFFD. Starts afresh."""
        rest = self._utf8.decode(b"", True)
        self._utf8.reset()
        return rest

    @property
    def pending(self) -> bytes:
        """Bytes held back because they may still become a character."""
        return self._utf8.getstate()[0]


_BEFORE_PUNCTUATION = re.compile(rb"(?<=.) (?=[?!.,])", re.DOTALL)


def clean_spaces(text: bytes) -> bytes:
    """The clean-up that llama.cpp's detokenizer applies for some vocabularies.

    Drops the space before ``? ! . ,``, both spaces around a lone apostrophe, and the space before ``'s 'm 're 've``. It
    is not an inverse of encoding, so streams never use it.
    """
    out = bytearray()
    for i, c in enumerate(text):
        if i and text[i - 1] == 0x20 and c in b"?!.,":
            out.pop()
        out.append(c)
    text, out = bytes(out), bytearray()
    i = 0
    while i < len(text):
        c = text[i]
        if i and c == 0x27 and i + 1 < len(text) and text[i - 1] == 0x20 and text[i + 1] == 0x20:
            out.pop()
            out.append(c)
            i += 2
            continue
        out.append(c)
        i += 1
    return re.sub(rb"(?<!\A) (?='(?:[sm]|re|ve))", b"", bytes(out))

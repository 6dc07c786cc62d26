"""Bytes as tokens: the printable byte alphabet of byte-level BPE, and ``<0xHH>`` byte tokens.

Byte-level BPE (GPT-2) writes every byte as one printable character, so that merges can be stored as text:
bytes that print keep their character, the other 68 get U+0100, U+0101, … in order.
"""

from __future__ import annotations

import re


def _byte_alphabet() -> list[str]:
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(0x100, 0x200))
    return [chr(b) if b in printing else chr(next(shifted)) for b in range(256)]


BYTE_TO_CHAR: list[str] = _byte_alphabet()
CHAR_TO_BYTE: dict[str, int] = {c: b for b, c in enumerate(BYTE_TO_CHAR)}
_TO_ALPHABET = {b: c for b, c in enumerate(BYTE_TO_CHAR) if ord(c) != b}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def to_byte_alphabet(text: str) -> str:
    """``text`` as UTF-8, one printable character per byte.

    Lone surrogates are written as the three bytes that UTF-8 would use for them.
    """
    if text.isascii():
        return text.translate(_TO_ALPHABET)
    return text.encode("utf-8", "surrogatepass").decode("latin-1").translate(_TO_ALPHABET)


def from_byte_alphabet(text: str) -> bytes:
    """The bytes that a byte-level token stands for; characters outside the alphabet stay as their own UTF-8."""
    try:
        return bytes([CHAR_TO_BYTE[c] for c in text])
    except KeyError:
        return b"".join(
            bytes([CHAR_TO_BYTE[c]]) if c in CHAR_TO_BYTE else c.encode("utf-8", "surrogateescape")
            for c in text
        )


def byte_of_token(text: str) -> int | None:
    """The byte named by ``<0xHH>`` with exactly two hexadecimal digits, or None for any other text."""
    match = _BYTE_TOKEN.fullmatch(text)
    return int(match[1], 16) if match else None


def byte_token(byte: int) -> str:
    """The name of a byte token, as in ``<0x0A>``."""
    return f"<0x{byte:02X}>"

"""Ill-formed UTF-8 as input, read as llama.cpp reads it: nothing is refused, and the same ids come out.

Byte-pair vocabularies see code points: bit patterns are taken at their word (overlong forms and surrogates
too), and a byte that begins nothing is U+FFFD. SentencePiece vocabularies see bytes: a lead byte claims as
many as it announces, and a group that is no character is encoded byte by byte.
"""

from __future__ import annotations

_RAW = 0xDC00  # a raw byte b travels through text as the lone surrogate U+DC00 + b


def lenient_text(data: bytes) -> str:
    """Code points of ``data``; may hold lone surrogates."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    out: list[str] = []
    at, size = 0, len(data)
    while at < size:
        lead = data[at]
        length = 1 if lead < 0x80 else 0 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        tail = data[at + 1 : at + length]
        code = lead if length == 1 else lead & (0x7F >> length)
        if not length or lead >= 0xF8 or len(tail) < length - 1 or any(b & 0xC0 != 0x80 for b in tail):
            code, length = 0xFFFD, 1
        for b in tail if length > 1 else b"":
            code = code << 6 | b & 0x3F
        out.append(chr(code) if code <= 0x10FFFF else "\ufffd")
        at += length
    return "".join(out)


def raw_byte_text(data: bytes) -> str:
    """Characters of ``data`` as far as it is well-formed, and raw bytes as U+DC00 to U+DCFF."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    # Spaces are U+2581 by the time llama.cpp counts bytes, so a broken character may claim a part of one.
    data = data.replace(b" ", b"\xe2\x96\x81")
    out: list[str] = []
    at = 0
    while at < len(data):
        lead = data[at]
        length = 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        group = data[at : at + length]
        try:
            out.append(group.decode("utf-8"))
        except UnicodeDecodeError:
            out += [chr(_RAW + b) for b in group]
        at += length
    return "".join(out).replace("\u2581", " ")


def bytes_with_raw(text: str) -> bytes:
    """UTF-8 of ``text``, raw bytes restored."""
    return b"".join(
        bytes([ord(c) - _RAW]) if _RAW <= ord(c) < _RAW + 256 else c.encode("utf-8", "surrogatepass")
        for c in text
    )

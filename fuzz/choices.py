"""Bytes as decisions: structure-aware targets build their input from what a fuzzer gave them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

#: Numbers at which lengths, counts and offsets go wrong.
EDGES = (
    0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1,
    2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip

#: Text at which readers of text go wrong.
TRAPS = (
    "", " ", "\n", "\r\n", "\t", "\0", "\x7f", "\x85", "\u2028", "\ufeff", "\ufffd", "\uffff", "\u202e", "\u200b",
    "\u200d", "\U0001f600", "\U0001f468\u200d\U0001f469", "\u0301", "\U0010ffff", "\ud800", "\udfff", "İ", "ß", "ﬃ",
    "\u1e9e", "Ω", "\u0130\u0307", "\\", '"', "'", "</", "{{", "}}", "{%", "<|", "|>", "[", "]", "{", "}", "\ue000",
)  # fmt: skip


class Choices:
    """Reads decisions off a string of bytes; behind its end every decision is the first one, zero or empty."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        """Bytes that were not used."""
        return len(self._data) - self._at

    def raw(self, n: int) -> bytes:
        """Up to ``n`` bytes."""
        out = self._data[self._at : self._at + n]
        self._at += len(out)
        return out

    def number(self, n_bytes: int = 1) -> int:
        """An unsigned number of that many bytes."""
        return int.from_bytes(self.raw(n_bytes), "little")

    def below(self, n: int) -> int:
        """A number from 0 to ``n - 1``."""
        return self.number(1 if n <= 256 else 4) % max(n, 1)

    def between(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``, both included."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        """True in about that many of a hundred cases; False behind the end."""
        return self.left > 0 and self.number() * 100 < percent * 256

    def pick(self, options: Sequence[T]) -> T:
        """One of several."""
        return options[self.below(len(options))]

    def edge(self) -> int:
        """A number at which something may go wrong, or any number."""
        if self.chance(60):
            return self.pick(EDGES)
        return self.number(self.pick((1, 2, 4, 8)))

    def text(self, most: int = 40) -> str:
        """Text of letters, traps, and whatever bytes give."""
        out = []
        for _ in range(self.below(most)):
            kind = self.below(4)
            if kind == 0:
                out.append(self.pick(TRAPS))
            elif kind == 1:
                out.append(self.raw(self.between(1, 6)).decode("utf-8", "replace"))
            else:
                out.append(chr(self.between(97, 122)))
        return "".join(out)

    def json(self, depth: int = 4) -> object:
        """Any JSON value."""
        kind = self.below(9 if depth else 6)
        if kind == 0:
            return None
        if kind == 1:
            return self.chance(50)
        if kind == 2:
            return self.edge() * self.pick((1, -1))
        if kind == 3:
            return self.pick((0.0, -0.0, 0.5, 1e308, -1e308, 5e-324, 1e-7, 3.14))
        if kind <= 5:
            return self.text(8)
        if kind == 6:
            return [self.json(depth - 1) for _ in range(self.below(5))]
        return {self.text(6): self.json(depth - 1) for _ in range(self.below(5))}


def cuts(choices: Choices, text: str) -> list[str]:
    """``text`` in pieces of random length."""
    out, at = [], 0
    while at < len(text):
        n = choices.between(1, 12) if choices.left else len(text)
        out.append(text[at : at + n])
        at += n
    return out


def spoiled(choices: Choices, data: bytes, most: int = 8) -> bytes:
    """``data`` with a few bytes changed, cut out, doubled or put in."""
    out = bytearray(data)
    for _ in range(choices.below(most)):
        at = choices.number(3) % (len(out) + 1)
        kind = choices.below(6)
        if kind == 0:
            out[at : at + 1] = choices.raw(1)
        elif kind == 1:
            width = choices.pick((1, 2, 4, 8))
            value = choices.edge() % (1 << 8 * width)
            out[at : at + width] = value.to_bytes(width, "little")
        elif kind == 2:
            del out[at : at + choices.between(1, 64)]
        elif kind == 3:
            n = choices.between(1, 64)
            out[at:at] = out[at : at + n]
        elif kind == 4:
            out[at:at] = choices.raw(choices.between(1, 8))
        elif at < len(out):
            out[at] ^= 1 << choices.below(8)
    return bytes(out)

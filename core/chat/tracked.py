"""Strings that remember which of their characters came from outside the chat template.

A rendered prompt mixes the template's own text, whose control tokens are meant, with what users, tools and models
wrote, which must stay text. Every string that goes into a template is a :class:`Tracked`; whatever the template does
with it (trim, slice, split, replace, concatenate), the marks go along. Plain ``str`` is the template's own. An
operation that is not followed character by character gives a wholly foreign string: a mistake here can lose a control
token of the template, but never let one in from outside.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

OWN, FOREIGN = b"\0", b"\1"


class Tracked(str):
    """A string with one mark per character.

    Args:
        text: the characters.
        marks: as many bytes, 1 = foreign, 0 = the template's own; default: all foreign.
    """

    __slots__ = ("_marks",)
    _marks: bytes

    def __new__(cls, text: str, marks: bytes | None = None) -> Tracked:
        self = super().__new__(cls, str.__str__(text))
        self._marks = FOREIGN * len(self) if marks is None else marks
        return self

    def __str__(self) -> str:
        return self  # str(x) keeps the marks; templates convert a lot

    def __getitem__(self, index: Any) -> str:
        text = str.__getitem__(self, index)
        marks = self._marks[index] if isinstance(index, slice) else self._marks[index : index + 1 or None]
        return make(text, marks)

    def __iter__(self) -> Iterator[str]:
        for char, mark in zip(plain(self), self._marks, strict=True):
            yield Tracked(char) if mark else char

    def __add__(self, other: Any) -> Any:
        return join((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return join((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, n: Any) -> Any:
        return make(str.__mul__(self, n), self._marks * n) if isinstance(n, int) else NotImplemented

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> str:
        return Tracked(plain(self) % to_plain(values))

    def __rmod__(self, template: Any) -> Any:
        return Tracked(template % plain(self)) if isinstance(template, str) else NotImplemented

    def __format__(self, spec: str) -> str:
        return Tracked(str.__format__(plain(self), spec))

    # -- followed character by character

    def lstrip(self, chars: str | None = None) -> str:
        """``str.lstrip``; marks kept."""
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None) -> str:
        """``str.rstrip``; marks kept."""
        return self[: len(str.rstrip(self, chars))]

    def strip(self, chars: str | None = None) -> str:
        """``str.strip``; marks kept."""
        end = len(str.rstrip(self, chars))
        return self[end - len(str.lstrip(str.__getitem__(self, slice(0, end)), chars)) : end]

    def removeprefix(self, prefix: str) -> str:
        """``str.removeprefix``; marks kept."""
        return self[len(prefix) :] if prefix and self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> str:
        """``str.removesuffix``; marks kept."""
        return self[: -len(suffix)] if suffix and self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: int = -1) -> list[str]:  # type: ignore[override]
        """``str.split``; marks kept."""
        return self._located(str.split(self, sep, maxsplit))

    def rsplit(self, sep: str | None = None, maxsplit: int = -1) -> list[str]:  # type: ignore[override]
        """``str.rsplit``; marks kept."""
        return self._located(str.rsplit(self, sep, maxsplit))

    def splitlines(self, keepends: bool = False) -> list[str]:  # type: ignore[override]
        """``str.splitlines``; marks kept."""
        at, out = 0, []
        for line, whole in zip(str.splitlines(self), str.splitlines(self, True), strict=True):
            out.append(self[at : at + len(whole if keepends else line)])
            at += len(whole)
        return out

    def partition(self, sep: str) -> tuple[str, str, str]:
        """``str.partition``; marks kept."""
        at = self.find(sep)
        return (self, "", "") if at < 0 else (self[:at], self[at : at + len(sep)], self[at + len(sep) :])

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        """``str.rpartition``; marks kept."""
        at = self.rfind(sep)
        return ("", "", self) if at < 0 else (self[:at], self[at : at + len(sep)], self[at + len(sep) :])

    def replace(self, old: str, new: str, count: int = -1) -> str:  # type: ignore[override]
        """``str.replace``; marks kept."""
        if not old:
            return Tracked(str.replace(self, old, new, count))
        marks, fresh = bytearray(), marks_of(new)
        at, left = 0, count
        while left:
            found = str.find(self, old, at)
            if found < 0:
                break
            marks += self._marks[at:found]
            marks += fresh
            at = found + len(old)
            left -= 1
        marks += self._marks[at:]
        return make(str.replace(self, old, new, count), bytes(marks))

    def join(self, parts: Iterable[str]) -> str:
        """``str.join``; marks kept."""
        return join(parts, self)

    def lower(self) -> str:
        """``str.lower``; marks kept."""
        return self._same_length(str.lower(self))

    def upper(self) -> str:
        """``str.upper``; marks kept."""
        return self._same_length(str.upper(self))

    def capitalize(self) -> str:
        """``str.capitalize``; marks kept."""
        return self._same_length(str.capitalize(self))

    def swapcase(self) -> str:
        """``str.swapcase``; marks kept."""
        return self._same_length(str.swapcase(self))

    # -- not followed: wholly foreign

    def casefold(self) -> str:
        """``str.casefold``; the result is foreign."""
        return Tracked(str.casefold(self))

    def title(self) -> str:
        """``str.title``; the result is foreign."""
        return Tracked(str.title(self))

    def center(self, width: int, fill: str = " ") -> str:  # type: ignore[override]
        """``str.center``; the result is foreign."""
        return Tracked(str.center(self, width, fill))

    def ljust(self, width: int, fill: str = " ") -> str:  # type: ignore[override]
        """``str.ljust``; the result is foreign."""
        return Tracked(str.ljust(self, width, fill))

    def rjust(self, width: int, fill: str = " ") -> str:  # type: ignore[override]
        """``str.rjust``; the result is foreign."""
        return Tracked(str.rjust(self, width, fill))

    def zfill(self, width: int) -> str:  # type: ignore[override]
        """``str.zfill``; the result is foreign."""
        return Tracked(str.zfill(self, width))

    def expandtabs(self, tabsize: int = 8) -> str:  # type: ignore[override]
        """``str.expandtabs``; the result is foreign."""
        return Tracked(str.expandtabs(self, tabsize))

    def translate(self, table: Any) -> str:
        """``str.translate``; the result is foreign."""
        return Tracked(str.translate(self, table))

    def format(self, *args: Any, **kwargs: Any) -> str:
        """``str.format``; the result is foreign."""
        return Tracked(str.format(plain(self), *to_plain(args), **to_plain(kwargs)))

    def format_map(self, mapping: Any) -> str:
        """``str.format_map``; the result is foreign."""
        return Tracked(str.format_map(plain(self), to_plain(mapping)))

    def _same_length(self, text: str) -> str:
        return make(text, self._marks) if len(text) == len(self) else Tracked(text)

    def _located(self, pieces: list[str]) -> list[str]:
        """Pieces of this string, in order and not overlapping, with their marks."""
        at, out = 0, []
        for piece in pieces:
            # Between two pieces there is only a separator, in which no piece can begin earlier than it does.
            at = str.find(self, piece, at)
            out.append(self[at : at + len(piece)])
            at += len(piece)
        return out


def plain(text: str) -> str:
    """The same characters as a real ``str``."""
    return str.__str__(text)


def marks_of(text: str) -> bytes:
    """One byte per character."""
    return text._marks if isinstance(text, Tracked) else OWN * len(text)


def make(text: str, marks: bytes) -> str:
    """A string with these marks; a plain one if nothing in it is foreign."""
    return Tracked(text, marks) if 1 in marks else plain(text)


def join(parts: Iterable[str], sep: str = "") -> str:
    """``sep.join(parts)`` with the marks of all."""
    parts = list(parts)
    text = str.join(plain(sep), map(plain, parts))
    if not isinstance(sep, Tracked) and not any(isinstance(p, Tracked) for p in parts):
        return text
    return make(text, marks_of(sep).join(map(marks_of, parts)))


def own(text: str) -> Tracked:
    """A text that counts as the template's own even among the values that it is given: control tokens are meant."""
    return Tracked(text, bytes(len(text)))


def track(value: Any) -> Any:
    """Mark everything in a JSON-like value as foreign, keys too. Lists become :class:`GivenList`."""
    if isinstance(value, Tracked):  # a dialect's marks around text from outside
        return value
    if isinstance(value, str):
        return Tracked(value) if value else ""
    if isinstance(value, Mapping):
        return {track(k): track(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return GivenList(track(v) for v in value)
    return value


class GivenList(list[Any]):
    """A list that was given to the template, which may read but not change it."""


def is_foreign(value: Any) -> bool:
    """Whether anything in ``value`` is, or could be, foreign."""
    if value is None or isinstance(value, bool | int | float):
        return False
    if isinstance(value, str):
        return isinstance(value, Tracked)
    if isinstance(value, Mapping):
        return any(is_foreign(k) or is_foreign(v) for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(is_foreign, value))
    return not isinstance(value, types.FunctionType | types.BuiltinFunctionType)


def to_plain(value: Any) -> Any:
    """The same value with plain strings; generators become lists."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {to_plain(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(map(to_plain, value))
    if isinstance(value, list | types.GeneratorType):
        return [to_plain(v) for v in value]
    return value


def spans(text: str) -> list[tuple[str, bool]]:
    """Cut a string into (piece, whether it is the template's own), neighbours differing."""
    whole, marks = plain(text), marks_of(text)
    out: list[tuple[str, bool]] = []
    at = 0
    while at < len(whole):
        own = marks[at] == 0
        end = marks.find(FOREIGN if own else OWN, at)
        end = len(whole) if end < 0 else end
        out.append((whole[at:end], own))
        at = end
    return out

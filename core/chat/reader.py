"""Characters for the bodies of tool calls, one at a time, and what a body gives out.

A body is a generator: it reads with ``c = yield from reader.read()`` and so stops wherever the text that has come so
far ends, to go on with the next piece. What it writes cannot depend on where the text was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
#: A part of a body: ``yield`` waits for the next character, which is sent in; "" is the end of the answer.
Chars = Generator[None, str, T]

#: What white space is between the parts of a call.
SPACE = " \t\r\n"


class Broken(Exception):
    """What was read is not a call of this form; the splitter shows it as text."""


class Reader:
    """The characters of one block, from behind its opening marker, with as much look-ahead as wanted."""

    def __init__(self) -> None:
        self._back: list[str] = []  # to be read again, the next one last
        #: Characters that came in and were not read again since.
        self.n_read = 0

    def read(self) -> Chars[str]:
        """The next character; "" when the answer is over, as often as one asks."""
        c = self._back.pop() if self._back else (yield)
        self.n_read += len(c)
        return c

    def unread(self, text: str) -> None:
        """Put characters back; they are read again."""
        self._back.extend(reversed(text))
        self.n_read -= len(text)

    def peek(self) -> Chars[str]:
        """The next character, left where it is; "" at the end."""
        c = yield from self.read()
        self.unread(c)
        return c

    def space(self) -> Chars[str]:
        """Skip white space; gives it."""
        out = ""
        while True:
            c = yield from self.read()
            if not c or c not in SPACE:
                self.unread(c)
                return out
            out += c

    def match(self, text: str) -> Chars[bool]:
        """Read ``text`` if it comes next; else read nothing."""
        got = ""
        for wanted in text:
            c = yield from self.read()
            if c != wanted:
                self.unread(got + c)
                return False
            got += c
        return True

    def expect(self, text: str) -> Chars[None]:
        """Read ``text``.

        Raises:
            Broken: something else comes.
        """
        if not (yield from self.match(text)):
            raise Broken(text)

    def until(self, *ends: str, limit: int = 1 << 30) -> Chars[tuple[str, str]]:
        """Read up to the first of ``ends``; gives (what stands before it, the end).

        Raises:
            Broken: the answer ends, or ``limit`` characters have come, before it.
        """
        got = ""
        while True:
            c = yield from self.read()
            if not c or len(got) > limit:
                raise Broken(ends[0])
            got += c
            for end in ends:
                if got.endswith(end):
                    return got[: len(got) - len(end)], end

    @property
    def back(self) -> str:
        """What was put back and not read again."""
        return "".join(reversed(self._back))


class Sink:
    """Takes the calls of a block from its body.

    Args:
        begin: a call has begun and its name is known.
        arguments: the next piece of its arguments' JSON text.
        end: the call is complete.
    """

    def __init__(
        self, begin: Callable[[str], None], arguments: Callable[[str], None], end: Callable[[], None]
    ) -> None:
        self.begin, self.arguments, self.end = begin, arguments, end

    def call(self, name: str, arguments: str) -> None:
        """A whole call."""
        self.begin(name)
        self.arguments(arguments)
        self.end()

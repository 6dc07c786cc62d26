"""Limits of one rendering: time, steps and memory. Whatever template code can repeat is charged before it runs."""

from __future__ import annotations

import time
from contextvars import ContextVar

from jinja2 import TemplateRuntimeError

#: Seconds of this thread's CPU time one rendering may take, and at most with what is added for each given megabyte:
#: templates that look through all messages for each message take their time.
MAX_SECONDS = 0.6
SECONDS_PER_MEGABYTE = 1.0
MOST_SECONDS = 1.5
#: Steps of one rendering, and for each given byte; a step is at most about a microsecond of work.
MAX_STEPS = 1_000_000
STEPS_PER_GIVEN = 1
#: Bytes that one value, or the whole prompt, may have, beside :data:`SIZE_PER_GIVEN` for each byte that was given.
MAX_SIZE = 1 << 23
SIZE_PER_GIVEN = 4
#: Bytes of everything a rendering makes together, beside :data:`TOTAL_PER_GIVEN` for each byte that was given, and at
#: most: templates that add to one text message by message make it as often as there are messages.
MAX_TOTAL = 1 << 25
TOTAL_PER_GIVEN = 256
MOST_TOTAL = 1 << 28
#: Widths, counts and tab sizes that a template may ask a function for.
MAX_NUMBER = 1_000_000
#: Bits that an integer may have.
MAX_BITS = 4096
#: Tokens that a template may have; the longest known one has 3,770.
MAX_TOKENS = 16384
#: Levels of lists and dicts in one another.
MAX_DEPTH = 200
#: Characters that functions take which need much time per character.
MAX_SLOW = 1 << 16


class LimitExceeded(TemplateRuntimeError):
    """The template does more than a chat template ever needs to."""


class Budget:
    """What is left of one rendering.

    Args:
        given: bytes of messages, tools and variables, more of which may cost more.
        seconds: CPU time.
    """

    __slots__ = ("_checked", "_end", "_size", "_steps", "_steps_left", "_total")

    def __init__(self, given: int = 0, seconds: float = MAX_SECONDS) -> None:
        seconds = min(seconds + SECONDS_PER_MEGABYTE * given / 1e6, MOST_SECONDS)
        self._end = time.thread_time() + seconds
        self._steps = 0
        self._checked = 64
        self._steps_left = MAX_STEPS + STEPS_PER_GIVEN * given
        self._size = MAX_SIZE + SIZE_PER_GIVEN * given
        self._total = min(MAX_TOTAL + TOTAL_PER_GIVEN * given, MOST_TOTAL)

    def tick(self, steps: int = 1) -> None:
        """``steps`` are about to be taken."""
        self._steps += steps
        if self._steps >= self._checked:
            self._checked = self._steps + 64
            if self._steps > self._steps_left:
                raise LimitExceeded(f"it took more than {self._steps_left} steps")
            if time.thread_time() > self._end:
                raise LimitExceeded("it ran for too long")

    def spend(self, size: int, steps: int = 1) -> None:
        """A value of ``size`` bytes is about to be made, in ``steps``."""
        self.tick(steps)
        self._total -= size
        if size > self._size:
            raise LimitExceeded(f"it makes a value of more than {self._size} bytes")
        if self._total < 0:
            raise LimitExceeded("it makes too many and too large values")


_current: ContextVar[Budget | None] = ContextVar("ggfw_template_budget", default=None)


def budget() -> Budget:
    """The budget of the rendering that runs in this thread; a fresh one outside."""
    return _current.get() or Budget()


class limited:
    """Context manager: everything inside is one rendering.

    Args:
        given, seconds: see :class:`Budget`.
    """

    def __init__(self, given: int = 0, seconds: float = MAX_SECONDS) -> None:
        self._fresh = Budget(given, seconds)

    def __enter__(self) -> Budget:
        self._token = _current.set(self._fresh)
        return self._fresh

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)

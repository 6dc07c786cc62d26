"""Limits of one rendering: time and size. Template code counts against the budget wherever it can repeat something."""

from __future__ import annotations

import time
from contextvars import ContextVar

from jinja2 import TemplateRuntimeError

#: Seconds one rendering may take.
MAX_SECONDS = 1.5
#: Loop passes, calls and made values of one rendering.
MAX_TICKS = 1_000_000
#: Characters (or 8-byte list entries) that one value, or the whole prompt, may have.
MAX_SIZE = 1 << 24
#: The same, for everything a rendering makes together.
MAX_TOTAL = 1 << 27
#: Widths, counts and tab sizes that a template may ask a function for.
MAX_NUMBER = 1_000_000
#: Bits that an integer may have.
MAX_BITS = 4096


class LimitExceeded(TemplateRuntimeError):
    """The template does more than a chat template ever needs to."""


class Budget:
    """What is left of one rendering."""

    __slots__ = ("_end", "_ticks", "_total")

    def __init__(self) -> None:
        self._end = time.monotonic() + MAX_SECONDS
        self._ticks = 0
        self._total = 0

    def tick(self) -> None:
        """One more repetition."""
        self._ticks += 1
        if not self._ticks & 63 and time.monotonic() > self._end:
            raise LimitExceeded(f"it ran for more than {MAX_SECONDS:g} s")
        if self._ticks > MAX_TICKS:
            raise LimitExceeded(f"it took more than {MAX_TICKS} steps")

    def spend(self, size: int) -> None:
        """A value of ``size`` characters is about to be made."""
        self.tick()
        self._total += size
        if size > MAX_SIZE or self._total > MAX_TOTAL:
            raise LimitExceeded(f"it makes a text of more than {MAX_SIZE} characters")


_current: ContextVar[Budget | None] = ContextVar("ggfw_template_budget", default=None)


def budget() -> Budget:
    """The budget of the rendering that runs in this thread; a fresh one outside (when constants are folded)."""
    return _current.get() or Budget()


class limited:
    """Context manager: everything inside is one rendering."""

    def __enter__(self) -> Budget:
        fresh = Budget()
        self._token = _current.set(fresh)
        return fresh

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)

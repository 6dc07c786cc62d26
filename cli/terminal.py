"""What is written where: answers to stdout, everything else to stderr, all of it UTF-8."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterator
from typing import Any, TextIO

__all__ = [
    "columns",
    "cut",
    "end_line",
    "error",
    "harmless",
    "interactive",
    "is_terminal",
    "prepare",
    "print_json",
    "print_table",
    "say",
    "without_echo",
    "write",
]


def prepare() -> None:
    """Make stdout and stderr UTF-8 whatever the locale says (``LANG=C``), and never fail over a character.

    One that was closed by whoever started the program (``>&-``) leads nowhere.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")


def say(message: str) -> None:
    """Write a line to stderr; see :func:`write` for control characters."""
    print(harmless(message) if is_terminal(sys.stderr) else message, file=sys.stderr, flush=True)


def error(message: str) -> None:
    """Write ``ggfw: error: message`` to stderr, as one line."""
    with contextlib.suppress(OSError):  # what is to be said may be that stdout cannot be written
        sys.stdout.flush()
    say(f"ggfw: error: {' '.join(message.split())}")


def end_line() -> None:
    """End the line on which ``^C`` was shown."""
    if is_terminal(sys.stderr):
        say("")


#: Control characters but tab and line feed: a model must not be able to move the cursor or retitle the window.
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


def harmless(text: str) -> str:
    """Return a text of a model with control characters shown as U+FFFD; tab and line feed stay."""
    return text.translate(_CONTROLS)


def write(text: str) -> None:
    """Write a piece of an answer, or what a file says, to stdout and let it go at once, also into a pipe.

    On a terminal, control characters are shown as U+FFFD; elsewhere every character goes through.
    """
    sys.stdout.write(harmless(text) if is_terminal(sys.stdout) else text)
    sys.stdout.flush()


def write_bytes(data: bytes) -> None:
    """Write bytes to stdout as they are."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; False for one that is closed or absent."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def interactive() -> bool:
    """Whether a person can be asked: stdin and stderr are terminals."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def coloured(stream: TextIO) -> bool:
    """Whether to use colour: a terminal, and no ``NO_COLOR``."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_json(value: Any) -> None:
    """Print a value as JSON, indented; characters stay characters, and numbers that JSON does not have are null."""
    import json

    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:  # rare, and most values are large
        text = json.dumps(_finite(value), indent=2, ensure_ascii=False, default=str)
    write(f"{text}\n")


def _finite(value: Any) -> Any:
    """A value in which infinities, and what is no number, are None."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def columns(stream: TextIO | None = None) -> int:
    """How wide lines may be on a stream (None: stdout): the terminal's width, and 80 for everything else."""
    stream = stream or sys.stdout
    if not is_terminal(stream):
        return 80
    if os.environ.get("COLUMNS", "").isdigit() or stream is sys.stdout:
        return shutil.get_terminal_size((80, 24)).columns
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def cut(text: str, width: int) -> str:
    """The beginning of a text, with … where it takes more than ``width`` columns."""
    if _cells(text) <= width:
        return text
    while text and _cells(text) >= width:
        text = text[:-1]
    return f"{text}…"


@contextlib.contextmanager
def without_echo() -> Iterator[None]:
    """Do not show keys while the block runs: ``^C`` and what is typed ahead would stand in the middle of an answer.

    What is typed is not lost: who reads next gets it.
    """
    before = None
    if is_terminal(sys.stdin):
        with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no termios
            import termios

            try:
                before = termios.tcgetattr(sys.stdin)
                changed = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, changed)
            except termios.error:
                before = None
    try:
        yield
    finally:
        if before is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def print_table(columns: list[str], rows: list[list[str]], *, width: int = 0, groups: bool = False) -> None:
    """Print rows in aligned columns under capital headings; the last column is not padded.

    Args:
        width: longest line; what does not fit of the last column goes on below it. 0: no limit.
        groups: the first column becomes a line above the rows that share it.
    """
    if is_terminal(sys.stdout):
        rows = [[harmless(cell).replace("\n", "\ufffd") for cell in row] for row in rows]
    table = [[name.upper().replace("_", " ") for name in columns], *rows]
    first = int(groups)
    widths = [max(_cells(row[i]) for row in table) for i in range(first, len(columns))]
    indent = 2 * first
    at = indent + sum(widths[:-1]) + 2 * len(widths[:-1])
    group = ""
    for n, row in enumerate(table):
        if groups and n and row[0] != group:
            group = row[0]
            print(group)
        cells = [cell + " " * (w - _cells(cell)) for cell, w in zip(row[first:], widths, strict=True)]
        lead = " " * indent + "".join(f"{cell}  " for cell in cells[:-1])
        if not width or not row[-1] or _cells(lead) + _cells(row[-1]) <= width:
            print(f"{lead}{row[-1]}".rstrip())
            continue
        if not n:  # a heading on a line of its own would look like a row
            print(lead.rstrip())
            continue
        wrapped = _wrapped(row[-1], width - at)
        if len(wrapped) <= 3 and max(map(_cells, wrapped)) <= width - at:
            print(f"{lead}{wrapped.pop(0)}".rstrip())
            below = at
        else:  # too much for the room beside the others: below them
            print(lead.rstrip())
            below = indent + 4
            wrapped = _wrapped(row[-1], width - below)
        for more in wrapped:
            print(f"{' ' * below}{more}".rstrip())


def _cells(text: str) -> int:
    """Columns that a text takes on a terminal; DeepSeek's marks have characters that are two wide."""
    if text.isascii():
        return len(text)
    return len(text) + sum(unicodedata.east_asian_width(character) in "WF" for character in text)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of a text; words stay whole, so that they can be searched for."""
    wide = _cells(text) - len(text)
    return textwrap.wrap(text, max(width - wide, 1), break_long_words=False, break_on_hyphens=False) or [""]

"""What is written where: answers to stdout, everything else to stderr, all of it UTF-8."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

__all__ = [
    "end_line",
    "error",
    "harmless",
    "interactive",
    "is_terminal",
    "prepare",
    "print_json",
    "print_table",
    "say",
    "write",
]


def prepare() -> None:
    """Make stdout and stderr UTF-8 whatever the locale says (``LANG=C``), and never fail over a character."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")


def say(message: str) -> None:
    """Write a line to stderr."""
    print(message, file=sys.stderr, flush=True)


def error(message: str) -> None:
    """Write ``ggfw: error: message`` to stderr, as one line."""
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
    """Write a piece of an answer to stdout and let it go at once, also into a pipe.

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
    """Print a value as JSON, indented; characters stay characters."""
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Print rows in aligned columns under capital headings; the last column is not padded."""
    table = [[name.upper().replace("_", " ") for name in columns], *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())

"""Progress on stderr: a bar on a terminal, one line per stage elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ggfw.cli import terminal
from ggfw.model_source import Progress
from ggfw.threads import start_if_possible

__all__ = ["showing_progress", "size", "waiting"]


def size(n_bytes: float) -> str:
    """Return a number of bytes for people: ``98.4 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"


@contextmanager
def showing_progress() -> Iterator[Progress]:
    """Give a callback (what, done, total) that draws bars, or says each stage once where there is no terminal."""
    if not terminal.is_terminal(sys.stderr):
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, int] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)  # type: ignore[arg-type]

        yield show


class _Lines:
    """Says each stage once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if what not in self._said:
            self._said.add(what)
            terminal.say(f"{what} ({size(total)})" if total else what)


@contextmanager
def waiting(what: str | Callable[[], str], after: float = 0.5) -> Iterator[Callable[[], None]]:
    """Show ``what`` on the terminal while the block takes longer than ``after`` seconds; remove it at the end.

    Gives a function that removes it at once. ``what`` may be a function; where it returns nothing, nothing is shown.
    """
    if not terminal.is_terminal(sys.stderr):
        yield lambda: None
        return
    over = threading.Event()

    def show() -> None:
        if over.wait(after):
            return
        for mark in _turning():
            text = what if isinstance(what, str) else what()
            # What goes on in the next line would stay there.
            text = terminal.cut(text, terminal.columns(sys.stderr) - 3)
            sys.stderr.write(f"\r{mark} {text}\x1b[K" if text else "\r\x1b[K")
            sys.stderr.flush()
            if over.wait(0.1):
                break
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()

    thread = threading.Thread(target=show, daemon=True)
    shown = start_if_possible(thread)

    def end() -> None:
        over.set()
        if shown:
            thread.join()

    try:
        yield end
    finally:
        end()


def _turning() -> Iterator[str]:
    while True:
        yield from "|/-\\"

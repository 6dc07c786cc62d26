"""An answer as rendered Markdown while it comes, on a terminal.

Finished blocks (up to an empty line outside of code) are printed once and stay; only the block that is being written
is drawn again and again, at most as many of its last lines as fit the screen.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from ggfw.cli import terminal

if TYPE_CHECKING:
    from rich.console import Console, RenderResult

__all__ = ["MarkdownWriter", "finished_blocks"]

_ITEM = re.compile(r"(?:[-+*]|\d{1,9}[.)])[ \t\n]")
#: What may become the beginning of an item.
_ITEM_BEGINS = re.compile(r"[-+*]|\d{1,9}[.)]?")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


def finished_blocks(text: str) -> list[int]:
    """Return the ends of the whole blocks at the beginning of ``text``: nothing that follows changes them.

    A block ends with an empty line outside of a code fence. What is indented goes on with what stands above it, and
    so do the items of a list.
    """
    fence, at, ends = "", 0, []
    blank = in_list = fresh = False
    for line in text.splitlines(keepends=True):
        whole = line.endswith("\n")
        if line.strip() and not fence and line[0] not in " \t":
            item = _ITEM.match(line) is not None
            unsure = not whole and _ITEM_BEGINS.fullmatch(line) is not None
            if blank and not (in_list and (item or unsure)):
                ends.append(at)
                fresh = True
            if blank and not unsure:
                in_list = item
        if at == 0 or fresh:
            in_list, fresh = _ITEM.match(line) is not None, False
        if not whole:
            break
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence) and not found[2].strip():
            fence = ""
        blank = not line.strip()
        at += len(line)
    return ends


class MarkdownWriter:
    """Takes the text of one answer piece by piece. Use it as a context manager, so that the screen is left in order.

    Args:
        console: where to; None: stdout.
    """

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self.console = console or Console(file=sys.stdout, highlight=False)
        self._text = ""
        self._live: Any = None
        self._first = True

    def __enter__(self) -> MarkdownWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.pause()

    def write(self, text: str) -> None:
        """Show more text."""
        self._text += terminal.harmless(text)
        self._flush()
        if self._text.strip():
            self._show()

    def _flush(self) -> None:
        """Print the finished blocks."""
        begin = 0
        for end in finished_blocks(self._text):
            self._stop()
            self._print(self._text[begin:end])
            begin = end
        self._text = self._text[begin:]

    def pause(self) -> None:
        """Print what there is; something else may be written then."""
        self._stop()
        if self._text.strip():
            self._print(self._text)
        self._text = ""

    def _print(self, block: str) -> None:
        if not block.strip():
            return
        if not self._first:
            self.console.print()
        self._first = False
        self.console.print(_rendered(block))

    def _show(self) -> None:
        from rich.live import Live

        view = _Tail(self._text, gap=not self._first)
        if self._live is None:
            self._live = Live(
                view, console=self.console, transient=True, refresh_per_second=12, redirect_stderr=False
            )
            self._live.start()
        else:
            self._live.update(view)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _rendered(text: str) -> Any:
    """Markdown in which nothing is lost: tags of HTML are text, and addresses of links are shown."""
    from markdown_it import MarkdownIt
    from rich.markdown import Markdown

    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    shown = Markdown(text, hyperlinks=False)
    shown.parsed = parser.parse(text)
    return shown


class _Tail:
    """The end of a block: as many lines as the screen has."""

    def __init__(self, text: str, gap: bool) -> None:
        self.text, self.gap = text, gap

    def __rich_console__(self, console: Any, options: Any) -> RenderResult:
        from rich.segment import Segment, Segments

        lines = console.render_lines(_rendered(self.text), options.update(height=None), pad=False)
        room = max(1, console.size.height - 2)
        shown = [[Segment("")], *lines][-room:] if self.gap else lines[-room:]
        for i, line in enumerate(shown):
            yield Segments([*line, *([Segment.line()] if i + 1 < len(shown) else [])])

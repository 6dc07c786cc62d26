"""A small writer of SVG: shapes, text and hover titles, in colours that follow the reader's light or dark setting."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["PALETTE", "Svg", "text_width"]

#: Fills that stay legible on light and dark ground, in the order in which they are given out.
PALETTE = ("#4c78a8", "#e28743", "#54a06a", "#b05ca0", "#c2a633", "#5aa9b8", "#c45a5a", "#7d6fb3")

#: The look of everything: text and lines take the colours of the page, so that dark ground needs no second drawing.
_STYLE = """
svg { color-scheme: light dark; background: var(--ground); --ground: #ffffff; --ink: #1b1f24; --soft: #6a737d;
  --line: #aab2bb; --panel: #f6f8fa; --box: #ffffff; font: 13px system-ui, 'Segoe UI', Roboto, sans-serif; }
@media (prefers-color-scheme: dark) { svg { --ground: #14171b; --ink: #e6e9ec; --soft: #9aa4ae; --line: #59636e;
  --panel: #1c2127; --box: #252b33; } }
text { fill: var(--ink); } .soft { fill: var(--soft); font-size: 11px; } .head { font-size: 17px; font-weight: 600; }
.strong { font-weight: 600; } .mono { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12px; }
.line { stroke: var(--line); fill: none; stroke-width: 1.4; } .grid { stroke: var(--line); stroke-opacity: .35; }
.panel { fill: var(--panel); stroke: var(--line); stroke-opacity: .5; } .box { fill: var(--box); stroke: var(--line); }
.spread { stroke: var(--ink); stroke-opacity: .65; fill: none; }
.inside { fill: #ffffff; font-weight: 600; font-size: 11px; }
g.hover:hover > rect { stroke: var(--ink); stroke-width: 2; }
"""


def text_width(text: str, size: float = 13.0) -> float:
    """About how wide a text is, in pixels: fonts differ, so a little more than most of them take."""
    narrow = sum(character in "iljtf.,:;|!'()[] 1" for character in text)
    return size * (0.63 * (len(text) - narrow) + 0.38 * narrow)


class Svg:
    """A drawing under construction; coordinates are pixels from the upper left corner.

    Args:
        title: what the drawing shows, for those who do not see it.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = []
        self._right = self._bottom = 0.0

    def _reach(self, x: float, y: float) -> None:
        self._right, self._bottom = max(self._right, x), max(self._bottom, y)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str = "box",
        *,
        fill: str = "",
        radius: float = 5,
        hover: str = "",
    ) -> None:
        """A rectangle of class ``kind``, or filled with a colour; ``hover`` is shown under the pointer."""
        self._reach(x + width, y + height)
        look = f'fill="{fill}"' if fill else f'class="{kind}"'
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}"'
        title = f"<title>{escape(hover)}</title>" if hover else ""
        self._parts.append(f"<rect {place} {look}>{title}</rect>" if title else f"<rect {place} {look}/>")

    def text(self, x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> None:
        """A line of text whose baseline begins, is centred (middle) or ends (end) at a point."""
        begin = {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        self._reach(x + text_width(text) * (1 - begin), y + 4)
        look = f' class="{kind}"' if kind else ""
        place = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{look}{place}>{escape(text)}</text>')

    def path(
        self, points: Iterable[tuple[float, float]], kind: str = "line", *, curved: bool = False
    ) -> None:
        """A line through points; curved: leaves and reaches them vertically, for two points."""
        first, *rest = points
        for x, y in (first, *rest):
            self._reach(x, y)
        if curved and len(rest) == 1:
            (x0, y0), (x1, y1) = first, rest[0]
            middle = (y0 + y1) / 2
            way = f"M{x0:.1f} {y0:.1f}C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
        else:
            way = f"M{first[0]:.1f} {first[1]:.1f}" + "".join(f"L{x:.1f} {y:.1f}" for x, y in rest)
        self._parts.append(f'<path class="{kind}" d="{way}"/>')

    def begin(self, hover: str = "") -> None:
        """Begin a group; everything up to :meth:`end` shows ``hover`` under the pointer."""
        title = f"<title>{escape(hover)}</title>" if hover else ""
        self._parts.append(f'<g class="hover">{title}')

    def end(self) -> None:
        """End the group."""
        self._parts.append("</g>")

    def __str__(self) -> str:
        width, height = self._right + 16, self._bottom + 16
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(self.title)}">\n'
            f"<title>{escape(self.title)}</title>\n<style>{_STYLE}</style>\n"
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )

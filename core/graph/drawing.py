"""Pictures of architectures: the outline of a graph as SVG, or as a page that stands alone.

Boxes are laid out in ranks (an operation stands below all that it reads) and ordered by the barycentres of their
neighbours, as Sugiyama, Tagawa and Toda (1981) describe; lines that pass a rank get a place of their own in it.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from ggfw.graph.outline import Box, Outline, Section
from ggfw.svg import PALETTE, Svg, text_width

__all__ = ["draw", "page"]

#: Colour of a box by the family of its op: first match of the beginning counts.
_FAMILIES = (
    (("attention",), 1, "attention"),
    (("linear", "moe_"), 0, "matrices"),
    (("rms_norm", "layer_norm", "l2_norm"), 2, "norms"),
    (("embed", "gather", "pool"), 4, "look-up"),
    (("ssm_scan", "short_conv", "gated_delta_rule"), 3, "recurrent"),
    (("",), 5, "per element, and ops of plugins"),
)
_HEIGHT, _GAP, _RANK = 38.0, 18.0, 62.0
_EDGE = 16.0


def draw(found: Outline, title: str, type_name: Callable[[int], str] = str, facts: str = "") -> str:
    """The outline as SVG; shapes, formats and parameters are shown under the pointer.

    Args:
        found: see :func:`ggfw.graph.outline.outline`.
        title: head of the picture.
        type_name: name of a tensor type by its id.
        facts: a line below the head.
    """
    svg = Svg(title)
    svg.text(_EDGE, 30, title, "head")
    order = f"{len(found.order)} layers: {found.describe()}" if len(found.kinds) > 1 else ""
    lines = [line for line in (facts, order) if line]
    for i, line in enumerate(lines):
        svg.text(_EDGE, 50 + 17 * i, line, "soft")
    top = _legend(svg, _EDGE, 56.0 + 17 * len(lines))
    left = _EDGE
    if len(found.kinds) > 1:
        left = _stack(svg, found, _EDGE, top) + 18
    panels = [_Panel(section, type_name) for section in found.sections]
    most = max((p.width for p in panels), default=0.0)
    limit = left + max(most, 1180.0)
    x, y, row = left, top, 0.0
    for panel in panels:
        if x > left and x + panel.width > limit:
            x, y, row = left, y + row + 18, 0.0
        panel.draw(svg, x, y)
        x, row = x + panel.width + 18, max(row, panel.height)
    return str(svg)


def page(found: Outline, title: str, type_name: Callable[[int], str] = str, facts: str = "") -> str:
    """A page with the picture, which needs no other file; a box's facts stay in view when it is clicked on."""
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(title)}</title>
<style>body {{ margin: 0; color-scheme: light dark; font: 14px system-ui, sans-serif; }}
#facts {{ position: fixed; right: 1em; bottom: 1em; max-width: 30em; white-space: pre-wrap; padding: .8em 1em;
  border: 1px solid #8888; border-radius: 6px; background: Canvas; color: CanvasText; }}
#facts:empty {{ display: none; }}
g.hover {{ cursor: pointer; }}</style>
{draw(found, title, type_name, facts)}<pre id="facts"></pre>
<script>
document.querySelectorAll("g.hover").forEach(box => box.addEventListener("click", event => {{
  document.getElementById("facts").textContent = box.querySelector("title").textContent;
  event.stopPropagation();
}}));
document.addEventListener("click", () => document.getElementById("facts").textContent = "");
</script></html>
"""


def _family(op: str) -> tuple[int, str]:
    return next((colour, name) for starts, colour, name in _FAMILIES if op.startswith(starts))


def _legend(svg: Svg, x: float, y: float) -> float:
    for _, colour, name in _FAMILIES:
        svg.rect(x, y - 10, 11, 11, fill=PALETTE[colour], radius=2)
        svg.text(x + 16, y, name, "soft")
        x += 30 + text_width(name, 11)
    return y + 22


def _stack(svg: Svg, found: Outline, x: float, y: float) -> float:
    """A strip with one cell per layer, coloured and lettered by its kind; returns its right side."""
    height = max(9.0, min(18.0, 620.0 / max(len(found.order), 1)))
    for i, kind in enumerate(found.order):
        letter = chr(ord("A") + kind % 26)
        svg.begin(f"layer {i}: {found.kinds[kind].title}")
        svg.rect(x, y + i * height, 30, height - 1.5, fill=PALETTE[kind % len(PALETTE)], radius=2)
        if height >= 13:
            svg.text(x + 15, y + i * height + height / 2 + 3.5, letter, "inside", anchor="middle")
        svg.end()
        if i % 5 == 0 or i == len(found.order) - 1:
            svg.text(x + 35, y + i * height + height / 2 + 4, str(i), "soft")
    return x + 55


class _Panel:
    """A section as a panel: its places are worked out first, so that panels can be set side by side."""

    def __init__(self, section: Section, type_name: Callable[[int], str]) -> None:
        self.section = section
        self.type_name = type_name
        self.x: list[float] = []  # centres
        self.w: list[float] = []  # widths
        self.rank: list[int] = []
        self.edges: list[list[int]] = []
        self._places()
        left = min((x - w / 2 for x, w in zip(self.x, self.w, strict=True)), default=0.0)
        right = max((x + w / 2 for x, w in zip(self.x, self.w, strict=True)), default=0.0)
        self.x = [x - left + _EDGE for x in self.x]
        self.width = max(right - left, text_width(section.title) + 20) + 2 * _EDGE
        self.height = 44 + max(self.rank, default=0) * _RANK + _HEIGHT + _EDGE

    def _places(self) -> None:
        """Ranks, order inside each rank, and abscissas, of boxes, inputs, and lines that pass a rank."""
        section = self.section
        n_in, boxes = len(section.inputs), section.boxes
        sources = [[i + n_in if i >= 0 else -i - 1 for i in dict.fromkeys(box.inputs)] for box in boxes]
        self.rank = [0] * n_in
        for reads in sources:
            self.rank.append(1 + max((self.rank[i] for i in reads), default=-1 if not n_in else 0))
        self.w = [self._wide(name, "") for name in map(self._input, range(n_in))]
        self.w += [self._wide(box.label, self._shapes(box)) for box in boxes]
        for at, reads in enumerate(sources, n_in):
            for source in reads:
                way = [source]
                for between in range(self.rank[source] + 1, self.rank[at]):
                    self.rank.append(between)
                    self.w.append(6.0)
                    way.append(len(self.rank) - 1)
                self.edges.append([*way, at])
        self._arrange()

    def _arrange(self) -> None:
        n = len(self.rank)
        near: list[list[list[int]]] = [[[], []] for _ in range(n)]
        for way in self.edges:
            for above, below in zip(way, way[1:], strict=False):
                near[below][0].append(above)
                near[above][1].append(below)
        rows = [[i for i in range(n) if self.rank[i] == r] for r in range(max(self.rank, default=-1) + 1)]
        self.x = [0.0] * n
        for row in rows:
            self._spread(row, [0.0] * len(row))
        for sweep in range(12):
            side = sweep % 2
            for row in rows if side == 0 else reversed(rows):
                wanted = {
                    i: sum(self.x[j] for j in near[i][side]) / len(near[i][side])
                    if near[i][side]
                    else self.x[i]
                    for i in row
                }
                if sweep < 8:  # later sweeps keep the order and only straighten
                    row.sort(key=lambda i: wanted[i])
                self._spread(row, [wanted[i] for i in row])

    def _spread(self, row: list[int], wanted: list[float]) -> None:
        """Give a row places near the wanted ones, without overlaps: the mean of packing from left and from right."""
        gap = [(self.w[a] + self.w[b]) / 2 + _GAP for a, b in zip(row, row[1:], strict=False)]
        left, right = list(wanted), list(wanted)
        for k, space in enumerate(gap):
            left[k + 1] = max(left[k + 1], left[k] + space)
        for k in range(len(gap) - 1, -1, -1):
            right[k] = min(right[k], right[k + 1] - gap[k])
        for i, a, b in zip(row, left, right, strict=True):
            self.x[i] = (a + b) / 2

    @staticmethod
    def _wide(label: str, below: str) -> float:
        return max(text_width(label), text_width(below, 11)) + 22

    def _input(self, i: int) -> str:
        if i == 0 and self.section.layers:
            return "from the layer before"
        return self.section.inputs[i].partition("#")[0]

    @staticmethod
    def _shapes(box: Box) -> str:
        def said(shape: tuple[int, ...]) -> str:
            return " x ".join(map(str, shape))

        out = ", ".join(dict.fromkeys(map(said, box.out_shapes)))
        first = said(box.in_shapes[0]) if box.in_shapes else ""
        return out if first in ("", out) else f"{first} → {out}"

    def _hover(self, box: Box) -> str:
        lines = [box.op, *(f"{key}: {value}" for key, value in box.settings.items())]
        reads = ", ".join(str(list(shape)) for shape in box.in_shapes)
        lines.append(f"{reads + ' -> ' if reads else ''}{', '.join(str(list(s)) for s in box.out_shapes)}")
        for name, (shape, formats) in box.weights.items():
            said = ", ".join(
                f"{self.type_name(kind)}{f' in {len(where)} layers' if len(formats) > 1 else ''}"
                for kind, where in formats.items()
            )
            lines.append(f"{name} {list(shape)}: {said}")
        if box.parameters:
            lines.append(f"{box.parameters:,} parameters" + (" in each layer" if self.section.layers else ""))
        return "\n".join(lines)

    def _y(self, i: int) -> float:
        return 44 + self.rank[i] * _RANK

    def draw(self, svg: Svg, x: float, y: float) -> None:
        """Draw the panel with its upper left corner at a point."""
        svg.rect(x, y, self.width, self.height, "panel", radius=8)
        svg.text(x + _EDGE, y + 22, self.section.title, "strong")
        if self.section.parameters:
            said = f"{self.section.parameters / 1e6:.2f} M parameters" + (
                " each" if len(self.section.layers) > 1 else ""
            )
            svg.text(x + _EDGE, y + 37, said, "soft")
        y += 8
        for way in self.edges:
            points: list[tuple[float, float]] = []
            for k, i in enumerate(way):
                at, top = x + self.x[i], y + self._y(i)
                points += [(at, top)] if k else []
                points += [(at, top + _HEIGHT)] if k < len(way) - 1 else []
            for a, b in zip(points, points[1:], strict=False):
                svg.path([a, b], curved=a[0] != b[0])
        n_in = len(self.section.inputs)
        for i in range(n_in):
            svg.text(x + self.x[i], y + self._y(i) + _HEIGHT - 6, self._input(i), "soft", anchor="middle")
        for i, box in enumerate(self.section.boxes, n_in):
            self._box(svg, box, x + self.x[i] - self.w[i] / 2, y + self._y(i), self.w[i])

    def _box(self, svg: Svg, box: Box, x: float, y: float, width: float) -> None:
        svg.begin(self._hover(box))
        svg.rect(x, y, width, _HEIGHT, "box")
        svg.rect(x, y, 5, _HEIGHT, fill=PALETTE[_family(box.op)[0]], radius=2)
        svg.text(x + width / 2 + 2, y + 16, box.label, anchor="middle")
        svg.text(x + width / 2 + 2, y + 30, self._shapes(box), "soft", anchor="middle")
        svg.end()

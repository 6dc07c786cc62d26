"""Bar charts as SVG: groups of horizontal bars, with the spread of the measurements and the values beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from ggfw.records import dataclass
from ggfw.svg import PALETTE, Svg, text_width

__all__ = ["Bar", "Group", "bars", "rounded"]

_BAR, _GAP, _PLOT = 17.0, 4.0, 420.0


@dataclass(frozen=True)
class Bar:
    """One bar.

    Args:
        series: what it belongs to; gives the colour.
        value: its length; 0 or more.
        low, high: ends of the spread, or None.
        note: set behind the value.
    """

    series: str
    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Group:
    """Bars on one scale of their own, or on that of all groups.

    Args:
        title: set in front of them.
        bars: from top to bottom.
        unit: of the values.
    """

    title: str
    bars: Sequence[Bar] = field(default_factory=tuple)
    unit: str = ""


def rounded(value: float) -> str:
    """A value with three significant digits, and none after the point from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def bars(
    title: str,
    groups: Sequence[Group],
    *,
    facts: str = "",
    shared_scale: bool = False,
    show: Callable[[float], str] = rounded,
) -> str:
    """Draw groups of bars below each other.

    Args:
        title: head of the chart.
        groups: from top to bottom; a group without bars is a heading.
        facts: a line below the head: what was measured, on what, when.
        shared_scale: one scale for all groups; else each group's longest bar fills the width.
        show: text of a value.

    Returns:
        SVG text.
    """
    svg = Svg(title)
    svg.text(16, 30, title, "head")
    if facts:
        svg.text(16, 50, facts, "soft")
    series = list(dict.fromkeys(bar.series for group in groups for bar in group.bars))
    colours = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(series)}
    x, y = 16.0, 76.0
    for name in series:
        svg.rect(x, y - 10, 11, 11, fill=colours[name], radius=2)
        svg.text(x + 16, y, name, "soft")
        x += 34 + text_width(name, 11)
    left = 34 + max((text_width(group.title) for group in groups if group.bars), default=0.0)
    longest = [max((bar.high or bar.value for bar in group.bars), default=0.0) for group in groups]
    y += 22
    for group, most in zip(groups, longest, strict=True):
        if not group.bars:
            svg.text(16, y + 12, group.title, "strong")
            y += 26
            continue
        scale = _PLOT / max(max(longest) if shared_scale else most, 1e-30)
        height = len(group.bars) * (_BAR + _GAP) - _GAP
        svg.text(left - 12, y + height / 2 + 4, group.title, anchor="end")
        svg.path([(left, y - 3), (left, y + height + 3)], "grid")
        for bar in group.bars:
            _bar(svg, bar, left, y, scale, colours[bar.series], group.unit, show)
            y += _BAR + _GAP
        y += 12
    return str(svg)


def _bar(
    svg: Svg,
    bar: Bar,
    x: float,
    y: float,
    scale: float,
    colour: str,
    unit: str,
    show: Callable[[float], str],
) -> None:
    spread = bar.low is not None and bar.high is not None and bar.high > bar.low
    hover = f"{bar.series}: {show(bar.value)} {unit}"
    if spread:
        hover += f" ({show(bar.low or 0.0)} to {show(bar.high or 0.0)})"
    svg.rect(x, y, max(bar.value * scale, 1.0), _BAR, fill=colour, radius=2, hover=hover)
    end = bar.value * scale
    if spread and bar.low is not None and bar.high is not None:
        a, b, middle = x + bar.low * scale, x + bar.high * scale, y + _BAR / 2
        svg.path([(a, middle), (b, middle)], "spread")
        svg.path([(a, middle - 4), (a, middle + 4)], "spread")
        svg.path([(b, middle - 4), (b, middle + 4)], "spread")
        end = max(end, bar.high * scale)
    svg.text(
        x + end + 8, y + _BAR - 4, f"{show(bar.value)} {unit}".strip() + (f"  {bar.note}" if bar.note else "")
    )

"""Finished pairs on disk, their medians and ratios, and the table.

One JSON file holds an entry per comparison. An entry's key is the hash of everything the figures depend on
(machine, model file, both builds, measure, lengths, threads), so an interrupted comparison goes on where it
stopped, and changing anything starts a new entry instead of mixing figures.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers_run import is_disturbed

FORMAT = 1


def entry_key(facts: dict[str, Any]) -> str:
    """16 hex digits of the canonical JSON of ``facts``."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


class Results:
    """The results file. Every change is written at once and atomically (new file, then rename)."""

    def __init__(self, path: Path) -> None:
        """Open ``path``; a missing file is empty, an unreadable one raises ValueError with its name."""
        self.path = path
        self.entries: dict[str, dict[str, Any]] = {}
        if path.is_file():
            try:
                data = json.loads(path.read_text())
                if data["format"] != FORMAT:
                    raise ValueError(f"format {data['format']}, expected {FORMAT}")
                self.entries = data["entries"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path} cannot be read ({error}): move it away or use --fresh") from error

    def entry(self, facts: dict[str, Any], fresh: bool = False) -> dict[str, Any]:
        """The entry of ``facts``, made when absent; ``fresh`` forgets what it held."""
        key = entry_key(facts)
        if fresh or key not in self.entries:
            self.entries[key] = {"facts": facts, "flash_attention": None, "pairs": []}
        return self.entries[key]

    def save(self) -> None:
        """Write the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(f".part-{os.getpid()}")
        part.write_text(json.dumps({"format": FORMAT, "entries": self.entries}, indent=1) + "\n")
        part.replace(self.path)


def pair_disturbed(pair: dict[str, Any], timed: bool = True) -> bool:
    """Whether either run of a pair was disturbed; a measure that is not ``timed`` cannot be."""
    return timed and any(is_disturbed(side["foreign_cpu"]) for side in (pair["llama"], pair["ggfw"]) if side)


def wants_pair(pairs: list[dict[str, Any]], wanted: int, timed: bool = True) -> bool:
    """Whether one more pair is to be run: until ``wanted`` undisturbed ones, but at most 2 * ``wanted`` in all."""
    calm = sum(not pair_disturbed(pair, timed) for pair in pairs)
    return calm < wanted and len(pairs) < 2 * wanted


@dataclass(frozen=True)
class Summary:
    """Medians over the pairs of one entry. ``ratio`` is ggfw / llama.cpp, the median of the pairs' ratios.

    ``llama`` and ``ggfw`` are in the measure's unit; ``spread`` is (lowest, highest) ratio. ``pairs`` counts
    the pairs used and ``disturbed`` the disturbed ones among all that were run: these are left out unless
    fewer than half of the wanted pairs were calm, in which case all are used and ``calm`` is False.
    ``foreign`` is the median share of others over the pairs used. ``ggfw``, ``ratio`` and ``spread`` are
    None where llama.cpp was measured alone.
    """

    pairs: int
    llama: float
    ggfw: float | None
    ratio: float | None
    spread: tuple[float, float] | None
    disturbed: int
    calm: bool
    foreign: float


def summarise(pairs: list[dict[str, Any]], wanted: int, timed: bool = True) -> Summary:
    """Medians and ratios of ``pairs`` (each ``{"llama": sample, "ggfw": sample | None, …}``), at least one.

    Whether a pair is left out depends on what other processes did, never on the pair's values.
    """
    if not pairs:
        raise ValueError("no finished pair to summarise")
    quiet = [pair for pair in pairs if not pair_disturbed(pair, timed)]
    calm = 2 * len(quiet) >= wanted
    used = quiet[:wanted] if calm else pairs
    ratios = [pair["ggfw"]["value"] / pair["llama"]["value"] for pair in used if pair["ggfw"]]
    both = len(ratios) == len(used)
    return Summary(
        pairs=len(used),
        llama=statistics.median(pair["llama"]["value"] for pair in used),
        ggfw=statistics.median(pair["ggfw"]["value"] for pair in used) if both else None,
        ratio=statistics.median(ratios) if both else None,
        spread=(min(ratios), max(ratios)) if both else None,
        disturbed=len(pairs) - len(quiet),
        calm=calm,
        foreign=statistics.median(
            max(side["foreign_cpu"] for side in (pair["llama"], pair["ggfw"]) if side) for pair in used
        ),
    )


def format_value(value: float | None, unit: str) -> str:
    """A value with a sensible number of digits: bytes as MB (10**6), seconds to the millisecond."""
    if value is None:
        return "–"
    if unit == "bytes":
        return f"{value / 1e6:.0f} MB"
    if unit == "s":
        return f"{value:.3f} s"
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"


def table_rows(reports: list[dict[str, Any]]) -> list[list[str]]:
    """Header and one row of text per report (see `peers.report_of`)."""
    rows = [
        [
            "model",
            "build",
            "measure",
            "llama.cpp",
            "-fa",
            "ggfw",
            "ggfw / llama.cpp",
            "lowest–highest",
            "pairs",
            "others' CPU",
        ]
    ]
    for report in reports:
        ratio, spread = report["ratio"], report["spread"]
        better = "higher" if report["higher_is_better"] else "lower"
        left_out = "left out" if report["calm"] else "USED: too few calm ones"
        kept = report.get("kept") or {}
        title = report["title"]
        if kept:
            names = {"llama": "llama.cpp", "ggfw": "ggfw"}
            title += f" ({', '.join(f'{names[side]} keeps {share:.0%}' for side, share in kept.items())})"
        notes = f"{report['foreign_cpu']:.0%}" + (
            f", {report['disturbed']} disturbed pairs {left_out}" if report["disturbed"] else ""
        )
        rows.append(
            [
                report["model"],
                report["build"],
                title,
                format_value(report["llama"], report["unit"]),
                "on" if report["flash_attention"]["chosen"] else "off",
                format_value(report["ggfw"], report["unit"]),
                "–" if ratio is None else f"{ratio:.2f}x ({better} is better)",
                "–" if spread is None else f"{spread[0]:.2f}–{spread[1]:.2f}",
                str(report["pairs"]),
                notes + (", FORCED" if report["forced"] else ""),
            ]
        )
    return rows


def format_table(rows: list[list[str]]) -> str:
    """``rows`` (the first is the header) as a Markdown table with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)

"""Draw the pictures of the documentation, and write the measured tables of README.md and docs/performance.md.

    python .ci/pictures.py                                     everything, from bench/measured/*.json
    python .ci/pictures.py --take bench/peers/report.json      take over what `make peers` has measured first
    python .ci/pictures.py --check                             only say whether all of it is up to date

Nothing here is typed in by hand: a figure that no benchmark wrote cannot get into a chart or a table.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import recording

from ggfw.charts import Bar, Group, bars, rounded
from ggfw.svg import PALETTE, Svg

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "bench" / "measured" / "peers.json"
IMAGES = ROOT / "docs" / "images"
BEGIN, END = "<!-- made by .ci/pictures.py: begin -->", "<!-- end -->"

#: Measure -> what it is called in tables and charts.
TITLES = {
    "prompt": "read a prompt of 512 tokens",
    "decode": "write 128 tokens, one sequence",
    "parallel": "write, 16 sequences at once",
    "start": "start of the program to first token",
    "memory": "peak memory, 512 + 128 tokens",
}


def take(report: Path) -> None:
    """Take over the rows of a report of bench/peers.py; rows of measures that it lacks stay, with their own dates."""
    new = json.loads(report.read_text(encoding="utf-8"))
    old = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {"rows": []}
    rows = {(row["model"], row["measure"]): row for row in old["rows"]}
    for row in new["rows"]:
        if row["measure"] not in TITLES or row.get("build", "best") != new["llama_cpp"]["variant"]:
            continue  # the tables show the best build
        if row["ratio"] is None or row["forced"] and row["foreign_cpu"] > 0.1 or not row["calm"]:
            print(
                f"left out, because the machine was not quiet: {row['model']} {row['measure']}",
                file=sys.stderr,
            )
            continue
        kept = {
            key: row[key]
            for key in ("model", "measure", "unit", "higher_is_better", "llama", "ggfw", "ratio")
        }
        kept |= {"spread": row["spread"], "pairs": row["pairs"], "date": new["date"][:10]}
        pairs = [pair for pair in row["samples"] if pair.get("ggfw")]
        kept |= {
            f"{side}_spread": [f(pair[side]["value"] for pair in pairs) for f in (min, max)]
            for side in ("llama", "ggfw")
        }
        rows[row["model"], row["measure"]] = kept
    order = list(TITLES)
    models = list(dict.fromkeys(model for model, _ in rows))
    found = {
        "machine": f"{new['machine']['cpu']}, {new['machine']['physical_cores']} cores, "
        f"{'AVX-512' if any('avx512' in f for f in new['machine']['features']) else 'AVX2'}",
        "threads": new["threads"],
        "peer": f"llama.cpp of {new['llama_cpp']['package']} {new['llama_cpp']['version']}, built with "
        f"{new['llama_cpp']['compiler'].partition(' (')[0].removeprefix('Debian ')}",
        "rows": sorted(rows.values(), key=lambda r: (models.index(r["model"]), order.index(r["measure"]))),
    }
    MEASURED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def value(row: dict[str, Any], which: float) -> str:
    """A measured value with its unit."""
    if row["unit"] == "bytes":
        return f"{which / 1e6:.0f} MB"
    return f"{which:.2f} s" if row["unit"] == "s" else f"{rounded(which)} tok/s"


def short(model: str) -> str:
    """A file's name for people."""
    return (
        model.removesuffix(".gguf")
        .replace("-q4_k_m", " Q4_K_M")
        .replace(".Q4_1", " Q4_1")
        .replace("-Instruct", "")
    )


def told(found: dict[str, Any]) -> str:
    """What was measured on what, and when."""
    dates = sorted({row["date"] for row in found["rows"]})
    return f"{found['machine']}, {found['threads']} threads, {' and '.join(dates)}; {found['peer']}"


def table(found: dict[str, Any]) -> str:
    """The measurements as Markdown."""
    lines = ["| file | | llama.cpp | ggfw | ratio |", "|---|---|---|---|---|"]
    last = ""
    for row in found["rows"]:
        name = short(row["model"])
        better = row["ratio"] >= 1 if row["higher_is_better"] else row["ratio"] <= 1
        mark = "**" if better else ""
        lines.append(
            f"| {name if name != last else ''} | {TITLES[row['measure']]} | {value(row, row['llama'])} "
            f"| {value(row, row['ggfw'])} | {mark}{row['ratio']:.2f}x{mark} |"
        )
        last = name
    note = (
        "Ratios are ggfw / llama.cpp, medians of pairs taken in turn; bold where ggfw is ahead (of times and"
    )
    return "\n".join([*lines, "", f"{told(found)}.", f"{note} memory less is better)."])


def chart(found: dict[str, Any]) -> str:
    """Speeds as bars; times and memory are in the table."""
    groups: list[Group] = []
    last = ""
    for row in found["rows"]:
        if row["unit"] in ("bytes", "s"):
            continue
        if row["model"] != last:
            groups.append(Group(short(row["model"])))
            last = row["model"]
        pair = [
            Bar("llama.cpp", row["llama"], *row["llama_spread"]),
            Bar("ggfw", row["ggfw"], *row["ggfw_spread"], note=f"{row['ratio']:.2f}x"),
        ]
        groups.append(Group(TITLES[row["measure"]], pair, "tok/s"))
    return bars("Tokens per second", groups, facts=told(found))


#: Rooms of the core: (name, what is in it).
ROOMS = (
    ("gguf", "header, tensors, splits"),
    ("tokenizer", "text to ids, ids to text"),
    ("graph", "what plugins describe"),
    ("execute", "native plan, NumPy twin"),
    ("cache", "pages, shared prefixes"),
    ("sampling", "stages and constraints"),
    ("chat", "templates, tools, skills"),
    ("engine", "many requests in one batch"),
    ("library", "ggfw.load and its model"),
)
KINDS = (
    "architectures", "quant formats", "kernel backends", "chat dialects", "skills", "model sources", "sampler stages",
)  # fmt: skip


def house() -> str:
    """The house: who stands on whom, and the one door for plugins."""
    svg = Svg("How ggfw is laid out")
    svg.text(20, 34, "The house", "head")
    svg.text(20, 54, "Each folder imports only what stands below it; plugins come through one door.", "soft")
    for i, (name, what) in enumerate(
        (("cli/", "ggfw run, chat, serve, bench ..."), ("server/", "OpenAI, Ollama, Anthropic"))
    ):
        x = 20 + 290 * i
        svg.rect(x, 74, 276, 58, "panel")
        svg.rect(x, 74, 6, 58, fill=PALETTE[1], radius=2)
        svg.text(x + 18, 98, name, "strong")
        svg.text(x + 18, 118, what, "soft")
        svg.path([(x + 138, 132), (x + 138, 156)])
    svg.rect(20, 156, 566, 282, "panel", radius=8)
    svg.rect(20, 156, 6, 282, fill=PALETTE[0], radius=2)
    svg.text(38, 180, "core/", "strong")
    svg.text(86, 180, "import ggfw: silent, no HTTP, no terminal", "soft")
    for i, (name, what) in enumerate(ROOMS):
        x, y = 38 + 180 * (i % 3), 196 + 66 * (i // 3)
        svg.rect(x, y, 170, 56)
        svg.text(x + 12, y + 23, name, "strong")
        svg.text(x + 12, y + 42, what, "soft")
    svg.text(38, 416, "registry.py: discovery, isolation, selection by one rule", "soft")
    svg.rect(20, 470, 566, 66, "panel", radius=8)
    svg.rect(20, 470, 6, 66, fill=PALETTE[3], radius=2)
    svg.text(38, 495, "kernels_c/", "strong")
    svg.text(
        38, 516, "C11: executor, thread pool, one library per instruction set, chosen at run time", "soft"
    )
    svg.path([(303, 438), (303, 470)])
    svg.text(313, 458, "one call per step", "soft")
    svg.rect(690, 156, 240, 282, "panel", radius=8)
    svg.rect(690, 156, 6, 282, fill=PALETTE[2], radius=2)
    svg.text(708, 180, "plugins/", "strong")
    svg.text(776, 180, "the built-in ones", "soft")
    for i, kind in enumerate(KINDS):
        svg.rect(708, 196 + 33 * i, 206, 27)
        svg.text(720, 214 + 33 * i, kind)
    svg.rect(690, 470, 240, 66, "panel", radius=8)
    svg.rect(690, 470, 6, 66, fill=PALETTE[2], radius=2)
    svg.text(708, 495, "contrib/ and yours", "strong")
    svg.text(708, 516, "packages of their own", "soft")
    svg.rect(612, 262, 52, 84, "box", radius=8)
    svg.text(638, 300, "the", "soft", anchor="middle")
    svg.text(638, 316, "door", "strong", anchor="middle")
    svg.path([(690, 304), (664, 304)])
    svg.path([(612, 304), (586, 304)])
    svg.path([(690, 503), (638, 503), (638, 346)])
    svg.text(646, 496, "pip", "soft")
    return str(svg)


def outputs() -> dict[Path, str]:
    """Every file this makes -> what is to stand in it."""
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    made = {IMAGES / "house.svg": house(), IMAGES / "peers.svg": chart(found)}
    made[IMAGES / "first-minute.svg"] = recording.draw(
        recording.read(), "The first minute with ggfw, recorded"
    )
    for page in (ROOT / "README.md", ROOT / "docs" / "performance.md"):
        text = page.read_text(encoding="utf-8")
        before, begin, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise SystemExit(f"{page} has not the two marks {BEGIN} and {END}")
        made[page] = f"{before}{BEGIN}\n{table(found)}\n{END}{after}"
    return made


def main() -> int:
    """Write, or check, what is made."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--take", type=Path, metavar="REPORT", help="a report of bench/peers.py to take over first"
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 where something is out of date"
    )
    args = parser.parse_args()
    if args.take:
        take(args.take)
    stale = []
    for path, text in outputs().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if not args.check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{'out of date' if args.check else 'written'}: {path.relative_to(ROOT)}")
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())

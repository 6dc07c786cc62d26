"""Write the tables of docs/plugins.md: hooks, descriptor fields and rules of the check, from the code's own docstrings.

Run it without arguments after a change; ``--check`` only says whether the page is up to date.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import MISSING, fields
from pathlib import Path

from ggfw import hookspecs
from ggfw.cli.plugin_new import SHORT
from ggfw.descriptors import KINDS, Descriptor
from ggfw.testing import checks_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "plugins.md"
BEGIN, END = "<!-- made by .ci/plugin_tables.py: begin -->", "<!-- end -->"


def told(cls: type) -> dict[str, str]:
    """Field -> its description, from the ``Args`` of a docstring."""
    text = (inspect.getdoc(cls) or "").partition("Args:\n")[2].partition("\n\n")[0]
    parts = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", text, re.M)
    return {name: " ".join(words.split()).replace("``", "`") for name, words in parts}


def plain(text: str) -> str:
    """A docstring's text for a table cell."""
    text = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", text.replace("``", "`"))
    return text.replace("|", "\\|")


def tables() -> str:
    """The text between the two marks."""
    out = ["### Fields that all descriptors have\n", "| field | default | meaning |", "|---|---|---|"]
    common = {f.name for f in fields(Descriptor)}
    out += rows(Descriptor, common)
    for short, (kind, _) in SHORT.items():
        cls, checks = KINDS[kind], checks_of(kind)
        hook = f"ggfw_register_{kind}"
        spec = inspect.getdoc(getattr(hookspecs, hook)) or ""
        out += [
            f"\n### {cls.__name__}\n",
            f"`{hook}{inspect.signature(getattr(hookspecs, hook))}`".replace("'", ""),
        ]
        out += [plain(" ".join(spec.split())), f"`ggfw plugins new {short} NAME` writes one.\n"]
        out += ["| field | default | meaning |", "|---|---|---|"]
        out += rows(cls, {f.name for f in fields(cls)} - common)
        out += ["\n| rule of `ggfw plugins check` | what it asks |", "|---|---|"]
        out += [f"| {rule} | {plain(asks)} |" for rule, asks in checks.explained().items()]
    return "\n".join(out)


def rows(cls: type, names: set[str]) -> list[str]:
    """One line for each of the fields."""
    meaning = told(cls)
    missing = names - meaning.keys()
    assert not missing, f"{cls.__name__} does not describe {', '.join(sorted(missing))}"
    found = []
    for f in fields(cls):
        if f.name in names:
            default = "" if f.default is MISSING and f.default_factory is MISSING else f"`{value(f)!r}`"
            found.append(f"| `{f.name}` | {default} | {plain(meaning[f.name])} |")
    return found


def value(f: object) -> object:
    return f.default if f.default is not MISSING else f.default_factory()  # type: ignore[attr-defined]


def page(text: str) -> str:
    """The page with fresh tables."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{tables()}\n\n{END}{tail}"


if __name__ == "__main__":
    before = PAGE.read_text(encoding="utf-8")
    after = page(before)
    if "--check" in sys.argv:
        sys.exit(before != after and "docs/plugins.md is out of date; run .ci/plugin_tables.py")
    PAGE.write_text(after, encoding="utf-8")

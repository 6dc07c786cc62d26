"""What the pages about the command line say is so: verbs, options and variables exist, and none is left out."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from ggfw.cli.commands import HELP, NAMES
from ggfw.cli.main import VERBS
from ggfw.cli.main import cli as root
from ggfw.cli.settings import Setting

DOCS = Path(__file__).parents[1] / "docs"
CONTEXT = click.Context(root)
#: Variables that are no option.
OTHERS = {
    "GGFW_CONFIG", "GGFW_TRACEBACK", "GGFW_PLUGINS", "GGFW_DISABLE_PLUGINS", "GGFW_STRICT_PLUGINS", "GGFW_NAME",
}  # fmt: skip


def options() -> dict[str, set[str]]:
    """Verb (and verb of a family) -> its options."""
    found: dict[str, set[str]] = {}
    for verb in VERBS:
        command = root.get_command(CONTEXT, verb)
        assert command is not None
        found[verb] = {
            o for p in command.params if isinstance(p, Setting) for o in (*p.opts, *p.secondary_opts)
        }
        for child in getattr(command, "commands", {}).values():
            found[verb] |= {o for p in child.params if isinstance(p, Setting) for o in p.opts}
    return found


OPTIONS = options()
EVERY = set().union(*OPTIONS.values()) | {"--help", "--version", "--config", "-h"}


@pytest.mark.parametrize("page", ["command-line.md", "coming-from.md"])
def test_what_is_named_exists(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    if page == "coming-from.md":  # the first column is other programs' language
        rows = [line.split("|")[2] for line in text.splitlines() if line.startswith("| ") and "`" in line]
        text = "\n".join(rows)
    for code in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S)):
        words = code.split() or [""]
        if words[0] == "ggfw" and len(words) > 1 and words[1].isalpha() and words[1].islower():
            assert words[1] in VERBS, code
            for option in re.findall(r"(?<![\w-])(--[a-z-]+)", code):
                assert option in OPTIONS[words[1]] | {"--help"}, code
        elif words[0].startswith("--"):
            assert words[0].partition("=")[0] in EVERY, code
    variables = {name for name in re.findall(r"GGFW_[A-Z_]+", text)}
    known = {f"GGFW_{o[2:].upper().replace('-', '_')}" for o in EVERY if o.startswith("--")}
    assert variables <= known | OTHERS, variables - known - OTHERS


def test_every_verb_is_on_the_page() -> None:
    text = (DOCS / "command-line.md").read_text(encoding="utf-8")
    for verb, (_, summary) in VERBS.items():
        assert f"| `{verb}` | {summary.removesuffix('.')} |" in text, verb


def test_every_command_of_a_chat_is_explained() -> None:
    text = (DOCS / "command-line.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"/{name}" in HELP and f"`/{name}" in text, name

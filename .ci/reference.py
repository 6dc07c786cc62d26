"""Pages that are made when the documentation is built: every verb's ``--help``, and the changelog.

A hook of mkdocs (``hooks:`` in mkdocs.yml); nothing it makes is kept in the tree.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]


def command_line() -> str:
    """One section for each verb, with what ``--help`` says."""
    from ggfw.cli.main import VERBS, cli

    root = click.Context(cli, info_name="ggfw", max_content_width=100)
    parts = ["# Reference: the command line\n", "What `ggfw VERB --help` says.\n"]

    def section(command: click.Command, name: str, parent: click.Context, depth: int) -> None:
        context = click.Context(
            command, info_name=name, parent=parent, max_content_width=100, terminal_width=100
        )
        parts.append(f"{'#' * depth} {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n")
        for child, inner in getattr(command, "commands", {}).items():
            section(inner, child, context, depth + 1)

    for verb in VERBS:
        command = cli.get_command(root, verb)
        assert command is not None
        section(command, verb, root, 2)
    return "\n".join(parts)


def on_startup(command: str, dirty: bool) -> None:
    """Show the sources under the names that they have when installed: folder X of the checkout is ggfw.X."""
    view = ROOT / "build" / "docs" / "ggfw"
    shutil.rmtree(view, ignore_errors=True)
    view.mkdir(parents=True)
    for path in (
        *(ROOT / "core").iterdir(),
        *(ROOT / name for name in ("cli", "kernels_c", "plugins", "server")),
    ):
        (view / path.name).symlink_to(path)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("(docs/", "(")
    for path, text in (("reference/cli.md", command_line()), ("changelog.md", changes)):
        files.append(File.generated(config, path, content=text))
    return files

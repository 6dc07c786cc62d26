"""``ggfw config show``: which settings are in force, and where each comes from."""

from __future__ import annotations

import os
from collections.abc import Set
from typing import Any

import click

from ggfw.cli import terminal
from ggfw.cli.settings import Setting, config_path, read_config, setting, verb

__all__ = ["config_verb"]

#: Names of which the value is never shown.
_SECRET = ("key", "token", "password", "secret")


@click.group("config")
def config_verb() -> None:
    """Show the settings that are in force, and where they come from."""


@verb("show")
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def show_verb(ctx: click.Context, as_json: bool) -> None:
    """List the settings of the environment and of the configuration file; secrets are not shown."""
    chosen = (ctx.find_root().obj or {}).get("config")
    rows = _rows(read_config(chosen), ctx.meta.get("ggfw.from_file", frozenset()))
    path = config_path(chosen)
    if as_json:
        terminal.print_json({"file": str(path), "there": path.is_file(), "settings": rows})
        return
    print(f"{path} ({'there' if path.is_file() else 'not there'})")
    if rows:
        terminal.print_table(
            ["verb", "setting", "value", "source"],
            [[row["verb"] or "all", row["setting"], str(row["value"]), row["source"]] for row in rows],
        )


@verb("path")
@click.pass_context
def path_verb(ctx: click.Context) -> None:
    """Print where the configuration file is, or would be."""
    print(config_path((ctx.find_root().obj or {}).get("config")))


config_verb.add_command(show_verb)
config_verb.add_command(path_verb)


def _rows(config: dict[str, Any], from_file: Set[str]) -> list[dict[str, Any]]:
    """The settings, those of the environment first; one that a variable overrides is not listed from the file.

    Args:
        config: what the file says.
        from_file: variables that were set because the file says so.
    """
    rows: list[dict[str, Any]] = []
    for name in sorted((_variables() & set(os.environ)) - from_file):
        key = name.removeprefix("GGFW_").lower().replace("_", "-")
        rows.append({"verb": None, "setting": key, "value": _shown(key, os.environ[name]), "source": name})
    named = {row["setting"] for row in rows}
    flat: list[tuple[str | None, str, Any]] = [
        (None, key, value) for key, value in config.items() if not isinstance(value, dict)
    ]
    flat += [
        (table, k, v) for table, inner in config.items() if isinstance(inner, dict) for k, v in inner.items()
    ]
    for table, key, value in flat:
        key = key.replace("_", "-")
        if key not in named:
            rows.append({"verb": table, "setting": key, "value": _shown(key, value), "source": "file"})
    return rows


def _variables() -> set[str]:
    """All variables that a verb reads, and those of the program as a whole."""
    from ggfw.cli.main import VERBS, cli

    names = {"GGFW_CONFIG", "GGFW_PLUGINS", "GGFW_DISABLE_PLUGINS", "GGFW_STRICT_PLUGINS", "GGFW_TRACEBACK"}
    context = click.Context(cli)
    commands = [command for verb in VERBS if (command := cli.get_command(context, verb)) is not None]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        for param in command.params:
            if isinstance(param, Setting):
                names |= {*(param.envvar or ()), *param.no_envvar}
    return names


def _shown(key: str, value: Any) -> Any:
    return "(set, not shown)" if any(word in key for word in _SECRET) and "max-tokens" not in key else value

"""``ggfw plugins list|show|check|new|enable|disable``."""

from __future__ import annotations

import os
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggfw.cli import plugin_new, terminal
from ggfw.cli.settings import Choice, setting, verb
from ggfw.descriptors import KINDS, Descriptor
from ggfw.errors import PluginError

if TYPE_CHECKING:
    from ggfw.registry import Registry, Row

_COLUMNS = ("kind", "name", "version", "distribution", "state", "reason")
_BROKEN = ("failed", "incompatible")


def _registry() -> Registry:
    """All plugins. Strictness is this verb's own affair: a list has to show what is broken, not die of it."""
    from ggfw.registry import Registry

    return Registry.load(environ={k: v for k, v in os.environ.items() if k != "GGFW_STRICT_PLUGINS"})


@click.group("plugins")
def plugins_verb() -> None:
    """List, show, check and write plugins, and leave some out."""


@verb("list")
@setting("--kind", type=Choice([*KINDS, "plugin"]), help="Only rows of this kind.")
@setting("--strict", is_flag=True, help="Exit with 1 when any plugin is broken, not only a built-in one.")
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
def list_verb(kind: str | None, strict: bool, as_json: bool) -> int:
    """List everything that plugins offer, and the plugins that could not be used.

    Exits with 1 when a built-in plugin is broken.
    """
    rows = _registry().rows()
    shown = [row for row in rows if kind is None or row.kind == kind]
    if as_json:
        terminal.print_json(
            [{name: getattr(row, name) for name in _COLUMNS} | {"reason": _reason(row)} for row in shown]
        )
    else:
        terminal.print_table(
            list(_COLUMNS),
            [[row.kind, row.name, row.version, row.distribution, row.state, _why(row)] for row in shown],
            width=terminal.columns(),
            groups=True,
        )
    strict = strict or os.environ.get("GGFW_STRICT_PLUGINS", "") not in ("", "0")
    return int(any(row.state in _BROKEN and (strict or row.distribution == "ggfw") for row in rows))


def _why(row: Row) -> str:
    """The reason with its stage; for a sound plugin, what it says about itself."""
    if not row.reason:
        return row.summary
    return f"{row.stage}: {_reason(row)}" if row.stage else _reason(row)


def _reason(row: Row) -> str:
    """The reason; a plugin that the configuration file leaves out says so, not the variable that carries it."""
    from ggfw.cli.plugin_switches import KEY, VARIABLE

    if row.state == "disabled" and VARIABLE in click.get_current_context().meta.get("ggfw.from_file", ()):
        return row.reason.replace(VARIABLE, f"{KEY} of the configuration file")
    return row.reason


def _named(registry: Registry, name: str) -> list[tuple[Row, Descriptor | None]]:
    """Rows of a descriptor, a plugin or a distribution, with the descriptors behind the usable ones."""
    found: list[tuple[Row, Descriptor | None]] = []
    for row in registry.rows():
        if name in (row.name, f"{row.kind}.{row.name}", row.plugin, row.distribution):
            offered = getattr(registry, row.kind, {}) if row.state in ("ok", "available") else {}
            found.append((row, offered.get(row.name)))
    if not found:
        from difflib import get_close_matches

        near = get_close_matches(name, {row.name for row in registry.rows()}, n=3)
        hint = f"near: {', '.join(near)}" if near else "ggfw plugins list shows all"
        raise PluginError(f"there is no plugin, descriptor or distribution {name!r}; {hint}")
    return found


@verb("show")
@click.argument("name")
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
def show_verb(name: str, as_json: bool) -> None:
    """Show what the plugin, descriptor or distribution NAME offers, field by field."""
    out: list[dict[str, Any]] = []
    for row, descriptor in _named(_registry(), name):
        record: dict[str, Any] = {column: getattr(row, column) for column in _COLUMNS}
        record["plugin"], record["stage"] = row.plugin, row.stage
        if descriptor is not None:
            record["fields"] = {f.name: _plain(getattr(descriptor, f.name)) for f in fields(descriptor)}
        out.append(record)
    if as_json:
        terminal.print_json(out)
        return
    for record in out:
        click.echo(f"{record['kind']}.{record['name']}: {record['state']}")
        extra = record.pop("fields", {})
        for key, value in {**record, **extra}.items():
            if key not in ("kind", "name", "state") and value not in ("", None):
                click.echo(f"  {key:13} {value}")


def _plain(value: Any) -> Any:
    if callable(value):
        return f"{value.__module__}:{value.__qualname__}"
    return list(value) if isinstance(value, tuple) else dict(value) if hasattr(value, "keys") else value


@verb("check")
@click.argument("name")
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
def check_verb(name: str, as_json: bool) -> int:
    """Run the conformance checks over what the plugin, descriptor or distribution NAME offers.

    Says which rules are broken and why. Exits with 1 when one is.
    """
    results = []
    for row, descriptor in _named(_registry(), name):
        rules: list[dict[str, str]] = []
        if row.state == "available":
            state, reason = "skipped", row.reason
        elif descriptor is None:
            state, reason = "failed", f"{row.stage or row.state}: {row.reason}"
            rules = [{"rule": row.stage or row.state, "state": "failed", "reason": row.reason}]
        else:
            rules = _check(descriptor)
            broken = [f"{rule['rule']}: {rule['reason']}" for rule in rules if rule["state"] == "failed"]
            state, reason = ("failed", "; ".join(broken)) if broken else ("ok", "")
        results.append({"kind": row.kind, "name": row.name, "state": state, "reason": reason, "rules": rules})
    if as_json:
        terminal.print_json(results)
    else:
        columns = ["kind", "name", "rule", "state", "reason"]
        terminal.print_table(columns, _lines(results), width=terminal.columns())
    return int(any(result["state"] == "failed" for result in results))


def _check(descriptor: Descriptor) -> list[dict[str, str]]:
    """What each rule of the kind found."""
    from ggfw.testing import check

    return [{f.name: getattr(found, f.name) for f in fields(found)} for found in check(descriptor)]


def _lines(results: list[dict[str, Any]]) -> list[list[str]]:
    """One line for what is sound, with the number of its rules; one for each rule that is broken or was left out."""
    lines: list[list[str]] = []
    for result in results:
        rules = result["rules"]
        if len(rules) == 1:  # it did not come so far as to be checked: that is all there is to say
            lines.append([result["kind"], result["name"], *rules[0].values()])
            continue
        asked = [rule for rule in rules if rule["state"] != "skipped"]
        good = sum(rule["state"] == "ok" for rule in asked)
        reason = result["reason"] if not rules else f"{good} of {len(asked)} rules hold"
        lines.append([result["kind"], result["name"], "", result["state"], reason])
        for why, group in groupby((r for r in rules if r["state"] != "ok"), lambda r: r["reason"]):
            alike = list(group)  # as those that rest on one that is broken
            names = alike[0]["rule"] + (f" … {alike[-1]['rule']}" if len(alike) > 1 else "")
            lines.append(["", "", names, alike[0]["state"], why])
    return lines


@verb("new")
@click.argument("kind", type=Choice(list(plugin_new.SHORT)), metavar="KIND")
@click.argument("name")
@setting("--dir", "folder", default=".", help="Folder in which the package's own folder is made.")
def new_verb(kind: str, name: str, folder: str) -> None:
    """Write a package with one plugin of KIND, ready to be installed, that passes ``ggfw plugins check NAME``.

    KIND is architecture, quant_format, kernel_backend, chat_dialect, skill, model_source or sampler_stage. Overwrites
    nothing.
    """
    target = plugin_new.write(kind, name, Path(folder))
    click.echo(
        f"{target}: pip install setuptools; pip install --no-build-isolation -e {target}; ggfw plugins check {name}"
    )


@verb("disable", makes_config=True)
@click.argument("name")
@click.pass_context
def disable_verb(ctx: click.Context, name: str) -> None:
    """Leave out the plugin, descriptor or distribution NAME from now on.

    Writes it into the configuration file (disable-plugins).
    """
    from ggfw.cli.plugin_switches import KEY, write_disabled

    path, names = _disabled(ctx)
    _named(_registry(), name)
    if name not in names:
        write_disabled(path, [*names, name])
    click.echo(f"{name} is left out: {KEY} in {path}")


@verb("enable", makes_config=True)
@click.argument("name")
@click.pass_context
def enable_verb(ctx: click.Context, name: str) -> None:
    """Use NAME again, which `ggfw plugins disable` left out."""
    from ggfw.cli.plugin_switches import KEY, VARIABLE, write_disabled

    path, names = _disabled(ctx)
    if name not in names:
        named = f"; that of {VARIABLE} is not changed here" if os.environ.get(VARIABLE) else ""
        listed = ", ".join(names) or "nothing"
        raise PluginError(f"{name!r} is not in {KEY} of {path}, which has {listed}{named}")
    write_disabled(path, [other for other in names if other != name])
    click.echo(f"{name} is used again")


def _disabled(ctx: click.Context) -> tuple[Path, list[str]]:
    """The configuration file, and what it leaves out."""
    from ggfw.cli.plugin_switches import disabled_in
    from ggfw.cli.settings import config_path, read_config

    chosen = (ctx.find_root().obj or {}).get("config")
    path = config_path(chosen)
    return path, disabled_in(read_config(chosen, may_be_missing=True), path)


for _command in (list_verb, show_verb, check_verb, new_verb, enable_verb, disable_verb):
    plugins_verb.add_command(_command)

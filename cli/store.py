"""``ggfw rm MODEL…`` and ``ggfw cp MODEL NAME``: the models that ggfw keeps itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ggfw.cli import terminal
from ggfw.cli.client import find_server, local_option
from ggfw.cli.loading import model_argument, models_dir_option
from ggfw.cli.settings import setting, verb
from ggfw.errors import InvalidRequest

if TYPE_CHECKING:
    from ggfw.models import ModelEntry

__all__ = ["cp_verb", "rm_verb"]


@verb("rm")
@model_argument("models", nargs=-1, required=True, metavar="MODEL...")
@setting("--yes", "-y", is_flag=True, help="Do not ask.")
@local_option
@models_dir_option
def rm_verb(models: tuple[str, ...], yes: bool, local: bool, models_dir: str | None) -> None:
    """Remove models: derived ones, or the files that ggfw fetched; those of other programs stay.

    Names must be exact. On a terminal you are asked before a file goes.
    """
    server = find_server(local)
    for name in models:
        if server is not None and server.named:
            server.ask("DELETE", "/api/delete", {"model": name})
            terminal.say(f"{name} is removed from {server.url}")
        else:
            _remove(name, yes, models_dir)


def _remove(name: str, yes: bool, models_dir: str | None) -> None:
    from ggfw.cli.derived import all_presets, read_preset, remove_preset
    from ggfw.cli.progress import size

    preset = read_preset(name, models_dir)
    if preset is not None:
        remove_preset(preset, models_dir)
        terminal.say(f"{name} is removed; {preset['from']} stays")
        return
    entry = _own_file(name, models_dir)
    stem = entry.path.stem.lower()
    needed = [
        p["name"] for p in all_presets(models_dir) if Path(p["from"]).stem.lower() in (stem, name.lower())
    ]
    if needed:
        raise InvalidRequest(f"{name} is what {', '.join(needed)} was made from; remove that first", "model")
    if not yes and terminal.interactive():
        click.confirm(f"Remove {entry.path} ({size(entry.size_bytes)})?", abort=True, err=True)
    files = _files(entry)
    for path in files:
        path.unlink()
    terminal.say(f"{name} is removed ({size(entry.size_bytes)})")


def _own_file(name: str, models_dir: str | None) -> ModelEntry:
    """The model of this exact name in the folder that ggfw writes to."""
    from ggfw.cli.folders import all_models, download_folder
    from ggfw.cli.resolve import catalogue_file, not_found
    from ggfw.errors import AmbiguousModel

    folder = download_folder(models_dir).resolve()
    entries = all_models(models_dir)
    wanted = {name.lower(), catalogue_file(name).lower()} - {""}
    fitting = [e for e in entries if wanted & {e.id.lower(), str(e.path).lower()}]
    fitting = fitting or [e for e in entries if wanted & {e.file.lower(), e.path.stem.lower()}]
    if not fitting and Path(name).is_file():
        raise InvalidRequest(
            f"{name} is in no model folder, so it is not removed; delete the file as you would any other",
            "model",
        )
    if not fitting:
        raise not_found(name, entries, models_dir, fetchable=False)
    if len(fitting) > 1:  # never guess what to remove
        named = ", ".join(str(entry.path) for entry in fitting)
        raise AmbiguousModel(f"{name!r} fits {len(fitting)} models: {named}; name one of them")
    entry = fitting[0]
    if not entry.path.resolve().is_relative_to(folder):
        raise InvalidRequest(
            f"{entry.path} belongs to another program, so it is not removed; --models-dir names a folder "
            "of your own",
            "model",
        )
    return entry


def _files(entry: ModelEntry) -> list[Path]:
    """All files of a model: a set has several."""
    from ggfw.gguf import split_name

    parts = split_name(entry.path.name)
    if parts is None or parts[2] < 2:
        return [entry.path]
    prefix, _, count = parts
    return sorted(
        path
        for path in entry.path.parent.iterdir()
        if (found := split_name(path.name)) is not None and found[0] == prefix and found[2] == count
    )


@verb("cp")
@model_argument()
@click.argument("name")
@local_option
@models_dir_option
def cp_verb(model: str, name: str, local: bool, models_dir: str | None) -> None:
    """Give MODEL a second NAME; its file is not copied. `ggfw create` changes what a name stands for."""
    server = find_server(local)
    if server is not None and server.named:
        server.ask("POST", "/api/copy", {"source": model, "destination": name})
    else:
        _copy(model, name, models_dir)
    terminal.say(f"{name} is {model}")


def _copy(model: str, name: str, models_dir: str | None) -> None:
    from ggfw.cli.create import check_name
    from ggfw.cli.derived import read_preset, write_preset
    from ggfw.cli.resolve import find_model

    check_name(name, models_dir)
    preset = read_preset(model, models_dir)
    if preset is None:
        path = find_model(model, models_dir)
        preset = {"from": str(path.resolve()) if Path(model).exists() else model, "options": {}}
    write_preset({**preset, "name": name}, models_dir)

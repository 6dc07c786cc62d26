"""From what the user wrote as MODEL to a file: path, folder, reference with a scheme, name, or catalogue entry."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ggfw.cli import terminal
from ggfw.cli.derived import read_preset
from ggfw.cli.folders import all_models, cache_folder, download_folder, model_folders
from ggfw.cli.loading import default_name, is_offline
from ggfw.errors import AmbiguousModel, GgfwError, ModelNotFound, SourceError

if TYPE_CHECKING:
    from ggfw.catalogue import Entry
    from ggfw.models import ModelEntry

__all__ = [
    "catalogue_file", "default_model", "fetch", "fetch_entry", "find_model", "is_fetched", "is_model", "is_reference",
    "not_found", "pick",
]  # fmt: skip

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?=\S)")


def is_reference(text: str) -> bool:
    """Whether ``text`` begins with the scheme of an installed model source."""
    match = _SCHEME.match(text)
    if match is None or len(text.split()) > 1:
        return False
    from ggfw.registry import default_registry

    return match["scheme"] in default_registry().model_sources


def is_model(text: str, models_dir: str | None) -> bool:
    """Whether a single argument means a model: an existing path, a scheme, a name in the folders or the catalogue."""
    from ggfw.catalogue import find
    from ggfw.models import select_model

    if _exists(text) or is_reference(text) or find(text) is not None or read_preset(text, models_dir):
        return True
    try:
        select_model(text, all_models(models_dir))
    except (
        ModelNotFound,
        OSError,
        ValueError,
    ):  # the last two: longer than a name may be, or with a zero byte
        return False
    except GgfwError:  # several models, or one that cannot run: still a model, and the error will say so
        return True
    return True


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # longer than a name may be, or with a zero byte: a prompt
        return False


def find_model(text: str | None, models_dir: str | None, *, ask: bool = False) -> Path:
    """Return the file of a MODEL; fetch what has to be fetched.

    Args:
        text: what the user wrote; None means the default model.
        models_dir: the folder that the user named, if any.
        ask: on a terminal, let the user pick when several models fit.

    Raises:
        ModelNotFound, AmbiguousModel, UnsupportedError, SourceError: one sentence each.
    """
    if text is None:
        return default_model(models_dir)
    path = Path(text)
    if _exists(text) and path.is_file():
        return path
    from ggfw.catalogue import find, installed
    from ggfw.models import select_model

    folder = _exists(text) and path.is_dir()
    if not folder and (preset := read_preset(text, models_dir)) and preset["from"] != text:
        return find_model(preset["from"], models_dir, ask=ask)
    if not folder and is_reference(text):
        return fetch(text, models_dir)
    entry = None if folder else find(text)
    if entry and (there := installed(entry, [*model_folders(models_dir), cache_folder()])):
        return there
    entries = all_models(str(path) if folder else models_dir)
    try:
        return Path(select_model(None if folder else text, entries).path)
    except ModelNotFound:
        if folder:
            raise ModelNotFound(f"there is no model in the folder {text}; name a GGUF file") from None
        if entry is None:
            raise not_found(text, entries, models_dir) from None
        return fetch_entry(entry, models_dir)
    except AmbiguousModel:
        if not (ask and terminal.interactive()):
            raise
        fitting = [e for e in entries if folder or _could_be(e, text)]
        return Path(pick(fitting).path)


def _could_be(entry: ModelEntry, text: str) -> bool:
    return any(text.lower() in name.lower() for name in (entry.id, entry.repository, entry.file, entry.name))


def not_found(
    text: str, entries: list[ModelEntry], models_dir: str | None, *, fetchable: bool = True
) -> ModelNotFound:
    """Return the error for an unknown name, with near ones.

    Args:
        text: what the user wrote.
        entries: the models in the folders.
        models_dir: the folder that the user named, if any, where derived models are.
        fetchable: whether a name of the catalogue helps.
    """
    from difflib import get_close_matches

    from ggfw.catalogue import CATALOGUE
    from ggfw.cli.derived import all_presets

    known = [e.id for e in entries]
    try:
        known += [str(preset["name"]) for preset in all_presets(models_dir)]
    except GgfwError:  # a damaged one has its own error, where it is asked for
        pass
    known += [e.name for e in CATALOGUE] if fetchable else []
    names = {name.lower(): name for name in known}
    near = [names[name] for name in get_close_matches(text.lower(), names, n=3, cutoff=0.4)]
    hint = f"did you mean {', '.join(near)}?" if near else "`ggfw list` shows what is there"
    looks_like_path = "/" in text or text.lower().endswith(".gguf")
    what = "there is no file or model" if looks_like_path else "no model is called"
    return ModelNotFound(f"{what} {text!r}; {hint}")


def catalogue_file(name: str) -> str:
    """Return the file that an entry of the catalogue has, else nothing."""
    from ggfw.catalogue import find

    entry = find(name)
    return entry.file if entry is not None else ""


def default_model(models_dir: str | None) -> Path:
    """Return the default model's file, from the folders or the cache, else fetched."""
    if name := default_name():
        return find_model(name, models_dir)
    from ggfw.catalogue import DEFAULT, installed

    there = installed(DEFAULT, [*model_folders(models_dir), cache_folder()])
    return there if there is not None else fetch_entry(DEFAULT, models_dir)


def fetch_entry(entry: Entry, models_dir: str | None) -> Path:
    """Fetch a model of the catalogue, with progress.

    Raises:
        SourceError: it cannot be had, or nothing may be fetched.
    """
    if not entry.verified:
        reference = entry.references[0]
        if not is_fetched(reference, models_dir):
            terminal.say(
                f"ggfw: {entry.name} is unverified: it comes from {reference}, with the hub's own checksum"
            )
        return fetch(reference, models_dir)
    _may_fetch(entry.name)
    from ggfw import catalogue
    from ggfw.cli.progress import showing_progress
    from ggfw.registry import default_registry

    folder = _made(download_folder(models_dir))
    with showing_progress() as progress:
        return catalogue.fetch(entry, folder, default_registry(), progress)


def fetch(reference: str, models_dir: str | None, *, again: bool = False) -> Path:
    """Return the (first) file of a reference with a scheme; what was fetched before needs no network.

    Args:
        again: fetch it even so.
    """
    from ggfw.catalogue import fetch_reference
    from ggfw.cli.progress import showing_progress
    from ggfw.model_source import recall, remember
    from ggfw.registry import default_registry

    registry = default_registry()
    if not registry.model_sources[reference.partition(":")[0]].remote:
        return fetch_reference(reference, Path(), registry)[0]
    folder = download_folder(models_dir)
    if not again and (there := recall(folder, reference)):
        return there[0]
    _may_fetch(reference)
    with showing_progress() as progress:
        paths = fetch_reference(reference, _made(folder), registry, progress)
    remember(folder, reference, paths)
    return paths[0]


def is_fetched(reference: str, models_dir: str | None) -> bool:
    """Whether a reference was fetched before, and its file is still there."""
    from ggfw.model_source import recall

    return bool(recall(download_folder(models_dir), reference))


def _may_fetch(what: str) -> None:
    if is_offline():
        raise SourceError(
            f"{what} is not here, and --offline (or HF_HUB_OFFLINE) forbids to fetch it; `ggfw list` shows what is"
        )


def _made(folder: Path) -> Path:
    """Return the folder that files go to, made where it is missing.

    Raises:
        SourceError: nothing can be written there.
    """
    why = "it cannot be written to"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError as exc:
        why = exc.strerror or str(exc)
    raise SourceError(
        f"models would go to {folder}, but {why}; name another folder with --models-dir (or GGFW_MODELS_DIR), or set "
        "XDG_CACHE_HOME"
    )


def pick(entries: list[ModelEntry]) -> ModelEntry:
    """Let the user choose one of ``entries`` by number; a word narrows the list, ``q`` leaves.

    Raises:
        ModelNotFound: the user left, or there is nothing to choose from.
    """
    usable = [entry for entry in entries if entry.state == "ok"]
    shown = usable
    while True:
        if not shown:
            terminal.say("nothing fits")
            shown = usable
        if not shown:
            raise ModelNotFound("there is no usable model; fetch one with `ggfw pull SmolLM2-135M-Instruct`")
        for number, entry in enumerate(shown, 1):
            terminal.say(f"{number:3}  {entry.id}  {entry.architecture} {entry.quant}".rstrip())
        sys.stderr.write("number, part of a name, or q: ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        word = answer.strip().lower()
        if not answer or word in ("q", "quit", "exit"):
            raise ModelNotFound("no model was chosen")
        if word.isdigit() and 1 <= int(word) <= len(shown):
            return shown[int(word) - 1]
        shown = [entry for entry in usable if word in entry.id.lower()]
        if len(shown) == 1:
            return shown[0]

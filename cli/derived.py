"""Models made from others: another model's file with its own system prompt, options and first messages.

They are small JSON files in the folder ``derived`` beside the models that ggfw fetched, the same that its server
reads and writes: ``name``, ``from``, ``system``, ``options``, ``messages``, ``num_ctx``, ``num_thread`` (here only),
``template`` (Jinja).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggfw.cli.folders import download_folder
from ggfw.errors import InvalidRequest, ModelNotFound

if TYPE_CHECKING:
    from ggfw import Model

__all__ = [
    "all_presets",
    "damaged_presets",
    "find_preset",
    "preset_path",
    "read_preset",
    "remove_preset",
    "set_template",
    "with_loading",
    "with_preset",
    "write_preset",
]


def preset_path(name: str, models_dir: str | None) -> Path:
    """Return the file of a derived model."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return download_folder(models_dir) / "derived" / f"{digest}.json"


def read_preset(name: str, models_dir: str | None) -> dict[str, Any] | None:
    """Return a derived model, or None; case and ``:latest`` do not count.

    Raises:
        InvalidRequest: its file is damaged.
    """
    wanted = name.lower().removesuffix(":latest")
    for preset in all_presets(models_dir):
        if preset["name"].lower().removesuffix(":latest") == wanted:
            return preset
    own = preset_path(name, models_dir)
    if own.is_file():
        _read(own)  # says what is wrong with it
    return None


def all_presets(models_dir: str | None) -> list[dict[str, Any]]:
    """Return all derived models, by name; files that are damaged are none, see :func:`damaged_presets`."""
    found = [preset for _, preset in _files(models_dir) if isinstance(preset, dict)]
    return sorted(found, key=lambda preset: str(preset["name"]))


def damaged_presets(models_dir: str | None) -> list[tuple[Path, InvalidRequest]]:
    """Return files of derived models that are damaged, and what is wrong with each."""
    found = [(path, why) for path, why in _files(models_dir) if isinstance(why, InvalidRequest)]
    return sorted(found, key=lambda one: one[0])


def _files(models_dir: str | None) -> Iterator[tuple[Path, dict[str, Any] | InvalidRequest]]:
    for path in (download_folder(models_dir) / "derived").glob("*.json"):
        try:
            yield path, _read(path)
        except InvalidRequest as exc:
            yield path, exc


def _read(path: Path) -> dict[str, Any]:
    try:
        preset: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not (isinstance(preset["name"], str) and isinstance(preset["from"], str)):
            raise ValueError("name and from are missing")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as exc:
        raise InvalidRequest(f"{path} is no derived model ({exc}); remove it") from None
    return preset


def write_preset(preset: dict[str, Any], models_dir: str | None) -> Path:
    """Write a derived model; what stood there is replaced at once."""
    path = preset_path(preset["name"], models_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(preset, indent=1, ensure_ascii=False), encoding="utf-8")
    fresh.replace(path)
    return path


def remove_preset(preset: dict[str, Any], models_dir: str | None) -> None:
    """Remove a derived model."""
    preset_path(preset["name"], models_dir).unlink(missing_ok=True)


def find_preset(name: str | None, models_dir: str | None) -> tuple[Path | None, dict[str, Any]]:
    """Return (file, preset) where ``name`` is a derived model, else (None, {}).

    Raises:
        ModelNotFound: the model it was made from is gone.
    """
    preset = None if name is None or Path(name).exists() else read_preset(name, models_dir)
    if preset is None:
        return None, {}
    from ggfw.cli.resolve import find_model

    try:
        return find_model(preset["from"], models_dir), preset
    except ModelNotFound as exc:
        raise ModelNotFound(f"{name} was made from {preset['from']}, which is gone: {exc}") from None


def set_template(model: Model, preset: dict[str, Any]) -> None:
    """Give a loaded model the chat template of a derived one, where that has one."""
    if preset.get("template"):
        from ggfw.chat.template import ChatTemplate

        metadata = {**dict(model.gguf.metadata.items()), "tokenizer.chat_template": preset["template"]}
        model.template = ChatTemplate.of(metadata, model.tokenizer)


def with_loading(preset: dict[str, Any], loading: dict[str, Any]) -> dict[str, Any]:
    """Return options of loading: the given ones over those of a derived model."""
    own = {
        key: preset[theirs]
        for key, theirs in (("ctx", "num_ctx"), ("threads", "num_thread"))
        if theirs in preset
    }
    return {**own, **loading}


def with_preset(
    preset: dict[str, Any], system: str | None, generation: dict[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """Return system prompt and options of generation: the given ones over those of a derived model."""
    return system or preset.get("system"), {**preset.get("options", {}), **generation}

"""Where models lie: one folder that the user names, else LM Studio's, Ollama's and our own cache."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggfw.models import ModelEntry

__all__ = ["all_models", "cache_folder", "download_folder", "model_folders", "ollama_models", "packed_folder"]

#: Media type of the layer of an Ollama manifest that is the GGUF file.
_OLLAMA_MODEL = "application/vnd.ollama.image.model"


def cache_folder() -> Path:
    """Return the folder of models that ggfw fetched by itself."""
    from platformdirs import user_cache_path

    return user_cache_path("ggfw", appauthor=False) / "models"


def packed_folder() -> Path:
    """Return the folder of packed weights, see :mod:`ggfw.packed_cache`."""
    from platformdirs import user_cache_path

    return user_cache_path("ggfw", appauthor=False) / "packed"


def download_folder(models_dir: str | None) -> Path:
    """Return the folder that new models go to: the named one, else our cache."""
    return Path(models_dir).expanduser() if models_dir else cache_folder()


def model_folders(models_dir: str | None) -> list[Path]:
    """Return the folders that are searched for ``*.gguf``. A named folder stands for all others."""
    if models_dir:
        return [Path(models_dir).expanduser()]
    home = Path.home()
    lm_studio = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    return [folder for folder in (*lm_studio, cache_folder()) if _is_there(folder)]


def ollama_folders(models_dir: str | None) -> list[Path]:
    """Return Ollama's stores (``blobs`` and ``manifests``); none when the user named a folder."""
    if models_dir:
        return []
    named = os.environ.get("OLLAMA_MODELS")
    places = (
        [Path(named)]
        if named
        else [Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]
    )
    return [folder for folder in places if _is_there(folder / "manifests")]


def _is_there(folder: Path) -> bool:
    """Whether a folder that nobody named is there and may be looked at."""
    try:
        return folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)
    except OSError:
        return False


def ollama_models(store: Path) -> list[ModelEntry]:
    """Return the models of an Ollama store, named as Ollama names them (``llama3.2:1b``).

    Args:
        store: folder with ``manifests/REGISTRY/NAMESPACE/MODEL/TAG`` and ``blobs/sha256-…``.
    """
    from ggfw.models import describe

    found = []
    for manifest in sorted((store / "manifests").rglob("*")):
        parts = manifest.relative_to(store / "manifests").parts
        blob = _model_blob(store, manifest) if len(parts) >= 3 and manifest.is_file() else None
        if blob is None:
            continue
        *spaces, model, tag = parts[1:]
        spaces = [space for space in spaces if space != "library"]
        name = "/".join([*spaces, f"{model}:{tag}"])
        found.append(replace(describe(blob, root=store), id=name, repository=model, file=blob.name))
    return found


def _model_blob(store: Path, manifest: Path) -> Path | None:
    try:
        layers: list[dict[str, Any]] = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
        digest = next(layer["digest"] for layer in layers if layer.get("mediaType") == _OLLAMA_MODEL)
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None  # not a manifest of ours to judge
    if not re.fullmatch(r"sha256[:-][0-9a-f]{64}", str(digest)):
        return None  # it would be part of a path
    blob = store / "blobs" / str(digest).replace(":", "-")
    return blob if blob.is_file() else None


def all_models(models_dir: str | None) -> list[ModelEntry]:
    """Return every model of all folders, sorted by id."""
    from ggfw.models import discover_models

    found = discover_models(model_folders(models_dir))
    for store in ollama_folders(models_dir):
        found += ollama_models(store)
    return sorted(found, key=lambda entry: (entry.id.lower(), entry.id))

"""``ggfw list``: the models in the model folders."""

from __future__ import annotations

import sys
from typing import Any

from ggfw.cli import terminal
from ggfw.cli.client import facts, find_server, local_option
from ggfw.cli.loading import models_dir_option
from ggfw.cli.settings import setting, verb
from ggfw.errors import ModelNotFound

__all__ = ["list_verb"]

_COLUMNS = (
    "id", "repository", "file", "path", "size_bytes", "architecture", "name", "quant", "context", "state", "reason",
)  # fmt: skip


@verb("list")
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
@local_option
@models_dir_option
def list_verb(as_json: bool, local: bool, models_dir: str | None) -> None:
    """List the models in the model folders, also those that cannot be run, and why; or those of GGFW_HOST."""
    from ggfw.cli.derived import all_presets, damaged_presets
    from ggfw.cli.folders import all_models, cache_folder, model_folders, ollama_folders
    from ggfw.cli.progress import size

    server = find_server(local)
    if server is not None and server.named:
        rows = [_served(model) for model in server.models()]
    else:
        rows = [{key: entry.to_dict()[key] for key in _COLUMNS} for entry in all_models(models_dir)]
        rows += [_derived(preset) for preset in all_presets(models_dir)]
        rows += [
            {**dict.fromkeys(_COLUMNS, ""), "id": path.stem, "path": str(path), "size_bytes": 0, "context": None,
             "state": "broken", "reason": str(why)}
            for path, why in damaged_presets(models_dir)
        ]  # fmt: skip
    if as_json:
        terminal.print_json(rows)
        return
    if not rows:
        folders = [*model_folders(models_dir), *ollama_folders(models_dir)] or [cache_folder()]
        if models_dir and folders[0].exists() and not folders[0].is_dir():
            raise ModelNotFound(f"{folders[0]} is no folder; --models-dir names one with GGUF files")
        looked = ", ".join(f"{folder}{'' if folder.is_dir() else ' (not there)'}" for folder in folders)
        terminal.say(f"no models in {looked}; `ggfw pull SmolLM2-135M-Instruct` fetches a small one")
        return
    terminal.print_table(
        ["id", "size", "architecture", "quant", "context", "state", "reason"],
        [
            [
                row["id"],
                size(row["size_bytes"]) if row["size_bytes"] else "",
                row["architecture"],
                row["quant"],
                str(row["context"] or ""),
                row["state"],
                row["reason"],
            ]
            for row in rows
        ],
        width=terminal.columns() if terminal.is_terminal(sys.stdout) else 0,  # programs count lines
    )


def _served(model: dict[str, Any]) -> dict[str, Any]:
    """A row for a model of a server."""
    return {
        **dict.fromkeys(_COLUMNS, ""),
        "id": str(model["name"]).removesuffix(":latest"),
        **facts(model),
        "context": None,
        "state": "ok",
    }


def _derived(preset: dict[str, Any]) -> dict[str, Any]:
    """A row for a derived model, which is a name for another one's file."""
    return {
        **dict.fromkeys(_COLUMNS, ""),
        "id": preset["name"],
        "size_bytes": 0,
        "context": None,
        "state": "derived",
        "reason": f"made from {preset['from']}",
    }

"""``ggfw list``: the models in the model folders."""

from __future__ import annotations

from typing import Any

from ggfw.cli import terminal
from ggfw.cli.loading import models_dir_option
from ggfw.cli.settings import setting, verb

__all__ = ["list_verb"]

_COLUMNS = (
    "id", "repository", "file", "path", "size_bytes", "architecture", "name", "quant", "context", "state", "reason",
)  # fmt: skip


@verb("list")
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
@models_dir_option
def list_verb(as_json: bool, models_dir: str | None) -> None:
    """List the models in the model folders, also those that cannot be run, and why."""
    from ggfw.cli.folders import all_models, cache_folder, model_folders, ollama_folders
    from ggfw.cli.progress import size

    entries = all_models(models_dir)
    rows: list[dict[str, Any]] = [{key: entry.to_dict()[key] for key in _COLUMNS} for entry in entries]
    if as_json:
        terminal.print_json(rows)
        return
    if not rows:
        folders = [*model_folders(models_dir), *ollama_folders(models_dir)] or [cache_folder()]
        looked = ", ".join(map(str, folders))
        terminal.say(f"no models in {looked}; `ggfw pull SmolLM2-135M-Instruct` fetches a small one")
        return
    terminal.print_table(
        ["id", "size", "architecture", "quant", "context", "state", "reason"],
        [
            [
                row["id"],
                size(row["size_bytes"]),
                row["architecture"],
                row["quant"],
                str(row["context"] or ""),
                row["state"],
                row["reason"],
            ]
            for row in rows
        ],
    )

"""Keeping to the configured folders: a file counts only where it lies in one of them, links followed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ggfw.errors import ModelNotFound
from ggfw.gguf import split_name
from ggfw.server.errors import Forbidden

__all__ = ["Confined"]


class Confined:
    """Folders that models may be loaded from.

    Args:
        folders: those that were configured.
        also: single files that the user named.
    """

    def __init__(self, folders: Sequence[str | os.PathLike[str]], also: Sequence[Path] = ()) -> None:
        self._folders = [Path(folder).resolve() for folder in folders]
        self._also = {path.resolve() for path in also}

    def holds(self, path: str | os.PathLike[str]) -> bool:
        """Whether a model's file, and each shard of its set, lies in one of the folders after links are resolved."""
        try:
            return all(self._holds(shard) for shard in _shards(Path(path)))
        except (OSError, RuntimeError):  # the latter: links in a circle
            return False

    def _holds(self, path: Path) -> bool:
        real = path.resolve(strict=True)
        return real in self._also or any(real.is_relative_to(folder) for folder in self._folders)

    def check(self, path: str | os.PathLike[str]) -> None:
        """Check a file right before it is loaded: it may have become a link since it was found.

        Raises:
            Forbidden: it leads out of the folders.
            ModelNotFound: it is gone.
        """
        if not os.path.exists(path):
            raise ModelNotFound(f"the file of {Path(path).name} is gone; put it back, or name another model")
        if not self.holds(path):
            raise Forbidden(f"{Path(path).name} leads out of the folders that this server loads models from")


def _shards(path: Path) -> list[Path]:
    """The files of a set that are there; of a single file that file."""
    parts = split_name(path.name)
    if parts is None or parts[2] < 2:
        return [path]
    prefix, _, count = parts
    found = [
        other
        for other in path.parent.iterdir()
        if (own := split_name(other.name)) is not None and (own[0], own[2]) == (prefix, count)
    ]
    return found or [path]

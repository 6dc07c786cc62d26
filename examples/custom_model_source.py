"""A model source of one's own, here for a shelf of files: ``python examples/custom_model_source.py SHELF NAME``.

As a package it has an entry point in the group ``ggfw`` (``ggfw plugins new model_sources NAME`` writes one); then
``ggfw run shelf:NAME`` works. Here it is used without being installed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import ggfw
from ggfw.catalogue import fetch_reference
from ggfw.descriptors import ModelSource
from ggfw.errors import ModelNotFound
from ggfw.testing import registry_with

SHELF = Path("/srv/models")


class Shelf:
    """Copies a file from the shelf.

    Args:
        folder: where fetched files go.
    """

    shelf = SHELF

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resolve(self, rest: str, progress: Any = None) -> list[Path]:
        """Give the files of ``shelf:REST``; names that lead elsewhere are nobody's."""
        name = Path(rest).name
        there = self.shelf / f"{name}.gguf"
        if name != rest or not there.is_file():
            raise ModelNotFound(f"there is no {rest!r} on the shelf {self.shelf}")
        self.folder.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(there, self.folder / there.name))]


SOURCE = ModelSource(name="shelf", load=Shelf, summary="shelf:NAME, a file of the shelf")


def main(shelf: Path, name: str) -> str:
    """Fetch a model from a shelf and load it; returns its name."""
    Shelf.shelf = shelf
    with tempfile.TemporaryDirectory() as folder:
        (path,) = fetch_reference(f"shelf:{name}", Path(folder), registry_with(SOURCE))
        with ggfw.load(path) as model:
            print(model)
            return model.name


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

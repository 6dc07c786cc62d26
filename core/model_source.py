"""Model sources: how a reference ``SCHEME:REST`` becomes files in a folder. Plugins of the kind ``model_sources``.

A source writes finished files only: what is under way has another name (:data:`PARTIAL`), so that an interrupted
download is never taken for a model, and goes on where it stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from ggfw.errors import SourceError

__all__ = ["PARTIAL", "Progress", "Source", "file_sha256", "recall", "remember", "scheme_of"]

#: Called with (what is being done, bytes so far, bytes in all or None).
Progress = Callable[[str, int, int | None], None]

#: Folder, inside a source's folder, for what is not finished.
PARTIAL = ".partial"

_MEMORY = ".sources.json"


class Source(Protocol):
    """What a :class:`ggfw.descriptors.ModelSource` loads; made with the folder that its files go to."""

    def __init__(self, folder: Path) -> None: ...

    def resolve(self, rest: str, progress: Progress | None = None) -> list[Path]:
        """Return the files of a model (all shards, in order), fetching what is not there.

        Args:
            rest: the reference behind ``SCHEME:``.
            progress: told how far it is.

        Raises:
            SourceError: it cannot be had; the sentence names another way.
            InvalidRequest: the reference is malformed.
        """
        ...


def scheme_of(reference: str, schemes: Mapping[str, object]) -> tuple[str, str] | None:
    """Return (scheme, rest) of a reference with one of ``schemes``, else None (a path such as ``C:\\x`` is none)."""
    scheme, colon, rest = reference.partition(":")
    return (scheme, rest) if colon and scheme in schemes else None


def file_sha256(path: Path, progress: Progress | None = None) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    import hashlib  # here, because a start without a fetch checks nothing

    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        total = os.fstat(file.fileno()).st_size
        while block := file.read(1 << 22):
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress(f"checking {path.name}", done, total)
    return digest.hexdigest()


def recall(folder: Path, reference: str) -> list[Path] | None:
    """Return the files that a reference became earlier, if they are all there with their sizes; else None."""
    entry = _memory(folder).get(reference)
    if not entry:
        return None
    paths = [folder / name for name in entry]
    for path, size in zip(paths, entry.values(), strict=True):
        if not path.is_file() or path.stat().st_size != size:
            return None
    return paths


def remember(folder: Path, reference: str, paths: list[Path]) -> None:
    """Note what a reference became, so that it needs no network the next time; files elsewhere are not noted."""
    try:
        entry = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    except ValueError:
        return
    memory = {**_memory(folder), reference: entry}
    written = folder / f"{_MEMORY}.{os.getpid()}"
    try:
        written.write_text(json.dumps(memory, indent=1), encoding="utf-8")
        written.replace(folder / _MEMORY)
    except OSError as exc:
        raise SourceError(
            f"{folder / _MEMORY} cannot be written: {exc.strerror}; choose another folder"
        ) from exc


def _memory(folder: Path) -> dict[str, dict[str, int]]:
    try:
        read = json.loads((folder / _MEMORY).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet, or damaged: then files are fetched again
        return {}
    return read if isinstance(read, dict) else {}

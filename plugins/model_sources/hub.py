"""The source behind ``hf:``. The hub's own client does the transfer: it resumes, and knows tokens and proxies."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ggfw.errors import AmbiguousModel, InvalidRequest, ModelNotFound, SourceError
from ggfw.gguf import split_name
from ggfw.model_source import Progress, file_sha256

__all__ = ["HubSource", "choose", "parse"]

_REFERENCE = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+?)(?::(?P<quant>[^@:]+))?(?:@(?P<revision>[^@:]+))?", re.ASCII
)

#: What is taken when a repository has several files and no quant was named: good quality for its size first.
PREFERRED = ("Q4_K_M", "Q4_K_XL", "Q4_0", "Q4_1", "Q4_K_S", "Q5_K_M", "MXFP4", "Q8_0", "F16", "BF16")


def parse(rest: str) -> tuple[str, str | None, str | None]:
    """Return (repository, quant, revision) of ``OWNER/REPO[:QUANT][@REVISION]``.

    Raises:
        InvalidRequest: it is none.
    """
    match = _REFERENCE.fullmatch(rest)
    if match is None or not {".", ".."}.isdisjoint(match["repo"].split("/")):
        raise InvalidRequest(f"'hf:{rest}' is malformed; expected hf:OWNER/REPO[:QUANT][@REVISION]", "model")
    return match["repo"], match["quant"], match["revision"]


def choose(files: Iterable[str], quant: str | None) -> list[str]:
    """Pick one model out of a repository's file list.

    Args:
        files: all paths in the repository.
        quant: a quant's name (``Q4_K_M``), a file name, or None for the preferred one.

    Returns:
        The paths of its shards in order, mostly one.

    Raises:
        ModelNotFound: nothing fits; the message lists what there is.
        AmbiguousModel: several do.
    """
    models = _models(files)
    if not models:
        raise ModelNotFound("there is no GGUF file in it; choose a repository that has some")
    if quant is not None:
        fitting = [name for name in models if _is(name, quant)]
        if not fitting:
            raise ModelNotFound(f"none of its files is {quant!r}; there are {', '.join(sorted(models))}")
    else:
        fitting = list(models)
        for preferred in PREFERRED if len(models) > 1 else ():
            if found := [name for name in models if _is(name, preferred)]:
                fitting = found
                break
    if len(fitting) > 1:
        raise AmbiguousModel(
            f"several of its files fit ({', '.join(sorted(fitting))}); name one of them behind a colon"
        )
    return models[fitting[0]]


def _models(files: Iterable[str]) -> dict[str, list[str]]:
    """Name of a model (the first shard stands for its set) -> its paths in order. Projectors are no models, and neither
    is what would lie elsewhere than in the repository's folder."""
    models: dict[str, list[str]] = {}
    shards: dict[tuple[str, str, int], list[str]] = {}
    for path in sorted(files):
        name = PurePosixPath(path).name
        if "\\" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
            continue
        if not name.lower().endswith(".gguf") or "mmproj" in name.lower() or "imatrix" in name.lower():
            continue
        split = split_name(name)
        if split is None:
            models[path] = [path]
        else:
            shards.setdefault((str(PurePosixPath(path).parent), split[0], split[2]), []).append(path)
    for paths in shards.values():
        models[paths[0]] = paths
    return models


def _is(path: str, quant: str) -> bool:
    """Whether ``quant`` is the path, its file name, or a word of it (``Q4_K`` is not a word of ``Q4_K_M``)."""
    wanted, path = quant.lower(), path.lower()
    if wanted in (path, PurePosixPath(path).name):
        return True
    return re.search(rf"(^|[-./]){re.escape(wanted)}($|[-./])", path.removesuffix(".gguf")) is not None


class HubSource:
    """Fetches GGUF files of hub repositories.

    Args:
        folder: files go to ``folder/OWNER/REPO``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resolve(self, rest: str, progress: Progress | None = None) -> list[Path]:
        """Fetch ``OWNER/REPO[:QUANT][@REVISION]`` and check the hub's own checksums.

        Raises:
            InvalidRequest, ModelNotFound, AmbiguousModel: see :func:`parse` and :func:`choose`.
            SourceError: the hub's client is not installed, the hub is out of reach, or a file arrived damaged.
        """
        repo, quant, revision = parse(rest)
        hub = _client()
        try:
            info = hub.HfApi().model_info(repo, revision=revision, files_metadata=True)
            sums = {s.rfilename: _sum_of(s) for s in info.siblings or ()}
            paths = choose(sums, quant)
            return [
                self._fetch(hub, repo, info.sha or revision, path, sums[path], progress) for path in paths
            ]
        except (ModelNotFound, AmbiguousModel) as exc:
            raise type(exc)(f"hf:{repo}: {exc}") from exc
        except SourceError:
            raise
        except Exception as exc:
            raise SourceError(_explain(exc, repo, revision)) from exc

    def _fetch(
        self,
        hub: Any,
        repo: str,
        revision: str | None,
        path: str,
        wanted: str | None,
        progress: Progress | None,
    ) -> Path:
        options: dict[str, Any] = {}
        if "tqdm_class" in inspect.signature(hub.hf_hub_download).parameters:
            options["tqdm_class"] = _bar(PurePosixPath(path).name, progress)
        got = Path(
            hub.hf_hub_download(repo, path, revision=revision, local_dir=str(self.folder / repo), **options)
        )
        if wanted is not None and (found := file_sha256(got, progress)) != wanted:
            got.unlink()
            raise SourceError(
                f"{path} arrived damaged (SHA-256 {found}, not {wanted}) and was removed; try again"
            )
        return got


def _client() -> Any:
    try:
        import huggingface_hub
    except ImportError as exc:
        raise SourceError(
            "hf: references need the package huggingface_hub; install it with `pip install 'ggfw[hub]'`, "
            "or use the path of a GGUF file"
        ) from exc
    return huggingface_hub


def _sum_of(sibling: Any) -> str | None:
    """The SHA-256 that the hub states for a file in large-file storage, else None."""
    lfs = getattr(sibling, "lfs", None)
    found = lfs.get("sha256") if isinstance(lfs, Mapping) else getattr(lfs, "sha256", None)
    return found if isinstance(found, str) else None


def _bar(name: str, progress: Progress | None) -> type:
    """A class in tqdm's shape that shows nothing itself and tells ``progress``."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        """Reports instead of drawing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": True})
            # A disabled bar keeps no counts, so they are kept here.
            self.total, self.n = kwargs.get("total"), kwargs.get("initial") or 0

        def update(self, n: float | None = 1) -> None:
            """Count ``n`` further bytes."""
            self.n += int(n or 0)
            if progress is not None:
                progress(f"fetching {name}", self.n, self.total)

    return Bar


def _explain(exc: Exception, repo: str, revision: str | None) -> str:
    """One sentence for the hub client's errors, told apart by name: they moved between its versions."""
    kinds = {cls.__name__ for cls in type(exc).__mro__}
    other = "or use the path of a GGUF file"
    if "GatedRepoError" in kinds:
        return f"hf:{repo} is gated; accept its terms on the hub and set HF_TOKEN, {other}"
    if "RepositoryNotFoundError" in kinds:
        return f"there is no repository {repo} on the hub, or it is private; check the name or set HF_TOKEN"
    if "RevisionNotFoundError" in kinds:
        return f"hf:{repo} has no revision {revision!r}; check the name behind @"
    if "HFValidationError" in kinds:
        return f"hf:{repo} is no repository name; expected hf:OWNER/REPO"
    said = " ".join(str(exc).split())[:200] or type(exc).__name__
    return f"hf:{repo} could not be fetched from the hub ({said}); check the network, {other}"

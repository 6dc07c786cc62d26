"""A folder of models that clients may fetch, derive from others, copy and remove.

Files lie in the folder itself, uploaded blobs in ``blobs``, and derived models (another model with its own system
prompt, options and chat template) are small JSON files in ``derived``. Nothing outside the folder is read or written
for a name that came from a client. A derived model whose base is not there is left out, and looked for again when
somebody asks for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ggfw.errors import GgfwError, InvalidRequest, ModelNotFound
from ggfw.footprint import Footprint
from ggfw.library import Model
from ggfw.server.entries import Entry
from ggfw.server.errors import Conflict, DiskShort, Forbidden
from ggfw.server.pool import Pool

#: Names of models: parts like file names that do not begin with a dot, and perhaps a tag.
NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/[A-Za-z0-9_][\w.-]*){0,3}(?::[\w.-]+)?")
DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")

#: Seconds after which nobody writes to an unfinished upload any more.
LEFT_AFTER = 24 * 3600
#: Bytes of the disk that uploads leave free.
RESERVE = 1 << 30

Progress = Callable[[str, int, "int | None"], None]


class Store:
    """See the module.

    Args:
        folder: of the models.
        pool: where they become known.
        load: loads a file of the folder; with ``ctx=`` where the context had to be made to fit.
        footprint: tells what memory a file would take; None: nobody asks.
        fixed: requests may not change what the folder holds: :meth:`check_open` refuses.
    """

    def __init__(
        self,
        folder: Path,
        pool: Pool,
        load: Callable[..., Model],
        footprint: Callable[[Path], Footprint] | None = None,
        *,
        fixed: bool = False,
    ) -> None:
        self.folder = folder
        self.fixed = fixed
        self.pool = pool
        self._load = load
        self._footprint = footprint
        #: One sentence for each derived model that is not there any more, because what it was made from is gone.
        self.warnings: list[str] = []
        self._seen: set[tuple[Path, int]] = set()
        self._look()
        pool.look_for_derived = self._look

    def _look(self) -> None:
        """Make the derived models of the folder known that are new in it, or written anew."""
        for path in sorted((self.folder / "derived").glob("*.json")):
            try:
                version = (path, path.stat().st_mtime_ns)
                if version in self._seen:
                    continue
                self._seen.add(version)
                preset = json.loads(path.read_text(encoding="utf-8"))
                name = str(preset["name"])
                try:
                    self._derived(preset)
                except ModelNotFound as error:
                    self.warnings.append(str(error))
                    self.pool.absent[name.lower()] = partial(self._derived, preset)
            except (GgfwError, OSError, ValueError, KeyError, TypeError) as error:
                self.warnings.append(f"{path.name} in the folder of derived models is left out: {error}")

    def check_open(self) -> None:
        """Check that requests may change the models.

        Raises:
            Forbidden: the operator wants them as they are.
        """
        if self.fixed:
            raise Forbidden(
                "this server's models are fixed: requests cannot fetch, upload, derive, copy or remove any "
                "(it runs with --fixed-models)"
            )

    # -- files ----------------------------------------------------------------------------------------------------

    def pull(self, name: str, progress: Progress) -> Entry:
        """Fetch a model of the catalogue, or of a source (``hf:owner/repo:quant``). Blocks; call it in a thread.

        Raises:
            ModelNotFound: no source is known for the name.
            SourceError: the source cannot give it.
        """
        from ggfw import catalogue
        from ggfw.model_source import scheme_of
        from ggfw.registry import default_registry

        registry = default_registry()
        wanted = name.removesuffix(":latest")
        known = catalogue.find(wanted)
        self.folder.mkdir(parents=True, exist_ok=True)
        if known is not None:
            path = catalogue.installed(known, [self.folder]) or catalogue.fetch(
                known, self.folder, registry, progress
            )
            return self.add_file(path, known.name)
        for prefix in ("hf.co/", "huggingface.co/"):
            if wanted.startswith(prefix):
                wanted = f"hf:{wanted.removeprefix(prefix)}"
        if wanted.startswith("file:") or scheme_of(wanted, registry.model_sources) is None:
            named = ", ".join(entry.name for entry in catalogue.CATALOGUE)
            raise ModelNotFound(
                f"{name!r} cannot be fetched; say hf:owner/repo:quant, or one of these names: {named}"
            )
        return self.add_file(catalogue.fetch_reference(wanted, self.folder, registry, progress)[0], wanted)

    def digest(self, name: str) -> str:
        """The SHA-256 of what :meth:`pull` would fetch, where the catalogue says it, else one of the name."""
        from ggfw import catalogue

        known = catalogue.find(name.removesuffix(":latest"))
        return (
            known.sha256
            if known is not None and known.verified
            else hashlib.sha256(name.encode()).hexdigest()
        )

    def add_file(self, path: Path, *names: str) -> Entry:
        """Make a file known; one that is known already stays as it is."""
        for entry in tuple(self.pool.entries.values()):
            if entry.facts.get("path") == str(path):
                return entry
        from ggfw.models import describe

        found = describe(path)
        facts = {
            "path": str(path),
            "size_bytes": found.size_bytes,
            "architecture": found.architecture,
            "quant": found.quant,
            "n_ctx_train": found.context,
        }
        aliases = frozenset(name for name in (path.name, found.name, *names) if name)
        entry = Entry(path.stem, partial(self._load, path), aliases=aliases, facts=facts)
        if self._footprint is not None:
            entry.footprint = partial(self._footprint, path)
        return self.pool.add(entry)

    def blob(self, digest: str) -> Path:
        """Where the blob of a digest is, or would be.

        Raises:
            InvalidRequest: the digest is malformed.
        """
        found = DIGEST.fullmatch(digest)
        if found is None:
            raise InvalidRequest(f"{digest!r:.80} is not a digest; expected sha256: and 64 digits", "digest")
        return self.folder / "blobs" / f"sha256-{found[1]}"

    def unfinished(self, blob: Path) -> Path:
        """Where a blob is to be written until it is whole: nobody else's place, whatever requests are called.

        What killed servers left in such places a day ago or earlier is removed.
        """
        blob.parent.mkdir(parents=True, exist_ok=True)
        for left in blob.parent.glob("sha256-*.part"):
            with contextlib.suppress(OSError):
                if left.stat().st_mtime < time.time() - LEFT_AFTER:
                    left.unlink()
        return blob.with_suffix(f".{secrets.token_hex(8)}.part")

    # -- derived models -------------------------------------------------------------------------------------------

    def create(self, name: str, facts: dict[str, Any], source: str | None, files: dict[str, str]) -> Entry:
        """Make a model from another one, or from an uploaded file.

        Args:
            name: of the new model.
            facts: its preset: ``system``, ``options``, ``messages``, ``num_ctx``, ``template``.
            source: name of the other model.
            files: name -> digest of uploaded blobs; one GGUF file.

        Raises:
            InvalidRequest: neither, or several files.
            ModelNotFound: no such model, or no such blob.
        """
        self._check_name(name)
        if source:
            base = self.pool.find(source)
            if base.base is not None:  # what the other one adds comes along
                facts = {
                    **base.preset,
                    **facts,
                    "options": {**base.preset.get("options", {}), **facts["options"]},
                }
                base = base.base
        elif len(files) == 1:
            (digest,) = files.values()
            path = self.blob(digest)
            if not path.is_file():
                raise ModelNotFound(f"there is no blob {digest}; send it to /api/blobs first")
            base = self.add_file(path)
            facts = {**facts, "blob": digest}
        else:
            raise InvalidRequest("from must name a model, or files hold exactly one GGUF file", "from")
        preset = {**facts, "name": name, "from": base.id}
        self._write(preset)
        return self._derived(preset)

    def copy(self, source: str, target: str) -> Entry:
        """Give a model a second name, with its own preset."""
        entry = self.pool.find(source)
        return self.create(target, {"options": {}, **entry.preset}, source, {})

    def delete(self, name: str) -> None:
        """Remove a derived model, or a file of the folder.

        Raises:
            ModelNotFound: there is no such model.
            Forbidden: its file is not in the folder.
            Conflict: derived models need it.
        """
        if self.pool.absent.pop(name.lower().removesuffix(":latest"), None) is not None:
            self._file(name.removesuffix(":latest")).unlink(missing_ok=True)
            return
        entry = self.pool.find(name)
        if entry.base is not None:
            self._file(entry.id).unlink(missing_ok=True)
            self.pool.remove(entry)
            return
        needed = [e.id for e in tuple(self.pool.entries.values()) if e.base is entry]
        if needed:
            raise Conflict(f"{entry.id} is what {', '.join(needed)} was made from; delete that first")
        path = Path(str(entry.info.get("path") or ""))
        if not entry.owned or not _inside(path, self.folder):
            raise Forbidden(f"{entry.id} does not lie in the server's own folder, so it is not deleted")
        self.pool.unload(entry)
        self.pool.remove(entry)
        path.unlink(missing_ok=True)

    def _derived(self, preset: dict[str, Any]) -> Entry:
        name = preset["name"]
        try:
            base = self._base(preset)
        except (ModelNotFound, OSError) as error:
            raise ModelNotFound(
                f"{name} was made from {preset['from']}, which is in none of this server's folders ({error}); fetch "
                f"that again, or delete {name}"
            ) from None
        self.pool.entries.pop(name, None)
        self.pool.absent.pop(name.lower(), None)
        return self.pool.add(
            Entry(name, base.load, base=base, preset=preset, revive=partial(self._derived, preset))
        )

    def _base(self, preset: dict[str, Any]) -> Entry:
        """What a derived model was made from: a name, or, from the command line, a path or a catalogue's name.

        Raises:
            ModelNotFound: it is not there.
        """
        if "blob" in preset:
            return self.add_file(self.blob(preset["blob"]))
        wanted = str(preset["from"])
        for entry in tuple(self.pool.entries.values()):
            path = str(entry.info.get("path") or "")
            if path and wanted in (path, os.path.realpath(path)):
                return entry.base or entry
        from ggfw import catalogue

        known = catalogue.find(wanted)
        try:
            entry = self.pool.find(wanted)
        except ModelNotFound:
            if known is None:
                raise
            entry = self.pool.find(Path(known.file).stem)
        return entry.base or entry

    def _check_name(self, name: str) -> None:
        if len(name) > 200 or not NAME.fullmatch(name):
            raise InvalidRequest(f"{name!r:.80} cannot be a model's name", "model")
        taken = self.pool.entries.get(name)
        if taken is not None and taken.base is None:
            raise Conflict(f"there is a model {name!r} already; choose another name")

    def _file(self, name: str) -> Path:
        return self.folder / "derived" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"

    def _write(self, preset: dict[str, Any]) -> None:
        path = self._file(preset["name"])
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(preset, indent=1), encoding="utf-8")
        fresh.replace(path)
        self._seen.add((path, path.stat().st_mtime_ns))


def check_disk(folder: Path, wanted: int = 0) -> None:
    """Check that a file of so many bytes would leave the disk :data:`RESERVE` bytes.

    Raises:
        DiskShort: it would not.
    """
    free = shutil.disk_usage(folder).free
    if wanted + RESERVE > free:
        raise DiskShort(
            f"there is no room for the file: the disk of the model folder has {free} bytes, of which {RESERVE} are "
            "kept for others; delete a model first"
        )


def _inside(path: Path, folder: Path) -> bool:
    """Whether a file really lies in a folder, links followed."""
    try:
        return path.is_file() and path.resolve().is_relative_to(folder.resolve())
    except OSError:
        return False

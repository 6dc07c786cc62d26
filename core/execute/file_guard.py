"""Whether a mapped model file is still what was loaded: cut short, or written over, by somebody else.

A file that was replaced by another of its name is no harm: the mapping keeps the old one. One that shrinks would end
the process at the next read beyond its end; the native library puts zeros there instead and says so. One that is
written over in place is found by its time of change, which is looked at once a second.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggfw.errors import ModelFileError
from ggfw.gguf import GGUF

if TYPE_CHECKING:
    from ggfw.execute.library import Native

#: Seconds between two looks at the file's time of change.
INTERVAL = 1.0


class FileGuard:
    """Watches the files of one model; see the module.

    Args:
        native: the executor library.
        gguf: the open model file; bytes are not watched.
    """

    def __init__(self, native: Native, gguf: GGUF) -> None:
        self._watches: list[tuple[Path, int, str]] = []
        self._lib = native.lib
        self._broken = ""
        self._stats: list[tuple[Path, tuple[int, ...]]] = []
        self._native = native
        #: Where the faults in all watched files are counted; read without a call.
        self._faults = native.lib.ggfw_file_faults()
        self._n_faults = self._faults[0]
        for path, data in gguf.mappings:
            self.watch(path, data, "restore it and load it again")
        self._next = time.monotonic() + INTERVAL

    def watch(self, path: Path, data: Any, way_out: str = "load the model again") -> None:
        """Watch another file.

        Args:
            path: the file.
            data: (n_bytes,) uint8 over its whole mapping.
            way_out: what helps when it was cut short; one that is made anew by itself needs no restoring.
        """
        ffi, lib = self._native.ffi, self._native.lib
        number = lib.ggfw_file_watch(ffi.cast("void *", data.ctypes.data), len(data))
        if number >= 0:
            self._watches.append((path, number, way_out))
        if (found := _stat(path)) is not None:
            self._stats.append((path, found))

    def check(self) -> None:
        """Look whether a file has changed; cheap, for every step.

        Raises:
            ModelFileError: it has, now or at an earlier look: what the model computes is worth nothing.
        """
        if not self._broken:
            if self._faults[0] != self._n_faults:
                self._n_faults = self._faults[0]
                for path, number, way_out in self._watches:
                    if self._lib.ggfw_file_failed(number):
                        self._broken = f"{path} was cut short while it was in use; {way_out}"
            if not self._broken and (now := time.monotonic()) >= self._next:
                self._next = now + INTERVAL
                for path, was in self._stats:
                    found = _stat(path)
                    if found is not None and found[:2] == was[:2] and found != was:
                        self._broken = f"{path} was changed while it was in use; load it again"
        if self._broken:
            raise ModelFileError(self._broken)

    def close(self) -> None:
        """Stop watching."""
        for _, number, _ in self._watches:
            self._lib.ggfw_file_unwatch(number)
        self._watches.clear()
        self._stats.clear()

    def __del__(self) -> None:
        """A model that failed to load closes nothing; its watch must not outlive its mapping."""
        self.close()


def _stat(path: Path) -> tuple[int, ...] | None:
    """(device, file, size, time of change of the content); None where the name is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

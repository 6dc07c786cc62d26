"""Packed weights on disk, which processes map: a start then neither packs nor touches new memory.

A file is named by a key of the weights and of the layout they were packed into; it holds the packed bytes from its
first byte on (so that they can be mapped as they are) and a trailer with a sum of each block. The sums are compared
whenever the file is mapped, which brings it into memory at the same time. A file that does not fit its key or its sums
is deleted, and the weights are packed anew. What was not used for longest goes when the folder grows beyond its limit.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from ggfw.files import open_without_waiting
from ggfw.threads import start_if_possible

_SUFFIX = ".packed"
_BLOCK = 1 << 20  # bytes under one sum
_MAGIC = b"GGFWPACK"
_TRAILER = struct.Struct("<8sQQ32s")  # magic, bytes of weights, bytes under one sum, key; then the sums


class PackedCache:
    """A folder of packed weights; see the module.

    Args:
        folder: made when the first file is stored.
        limit_mb: MiB that its files may take together. Weights that would take more than half of it are not stored:
            large models are packed about as fast as a disk reads.
        settle_at_once: whether mapped weights are moved into memory with huge pages while the model is loaded, for
            those who serve many; otherwise after the first token, for those who want one soon.
    """

    def __init__(
        self, folder: str | os.PathLike[str], limit_mb: int, *, settle_at_once: bool = False
    ) -> None:
        self.folder = Path(folder)
        self.limit = limit_mb << 20
        self.settle_at_once = settle_at_once

    def path(self, key: bytes) -> Path:
        """Where the weights of ``key`` (32 bytes) are, or would be."""
        return self.folder / (key.hex() + _SUFFIX)

    def find(self, key: bytes, n_bytes: int, native: Any) -> np.ndarray | None:
        """Map the weights of ``key``.

        Args:
            key: 32 bytes.
            n_bytes: their size.
            native: the executor library (:class:`ggfw.execute.library.Native`), which adds up the sums.

        Returns:
            (n_bytes,) uint8, read-only, over a mapped file; None where there is none, or it was not sound.
        """
        path = self.path(key)
        try:
            with open(path, "rb", opener=open_without_waiting) as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(n_bytes)
                trailer = file.read(_TRAILER.size + _n_blocks(n_bytes) * 8)
                sound = size == n_bytes + len(trailer) and trailer == _trailer(
                    key, n_bytes, np.frombuffer(trailer, "<u8", offset=_TRAILER.size).copy()
                )
                data = _mapped(file.fileno(), n_bytes) if sound else None
        except (OSError, ValueError):
            return None  # no such file, or no right to read it
        if data is None or trailer != _trailer(key, n_bytes, _sums(data, native)):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        return data

    def store(self, key: bytes, data: np.ndarray, native: Any) -> Thread | None:
        """Write the weights of ``key`` in a thread of their own; a disk that refuses is no error.

        Args:
            key: 32 bytes.
            data: (n_bytes,) uint8; has to stay as it is until the thread has ended.
            native: as for :meth:`find`.

        Returns:
            the thread; None where nothing is written.
        """
        if data.size > self.limit // 2:
            return None
        thread = Thread(target=self._write, args=(key, data, native), name="ggfw-packed-cache")
        return thread if start_if_possible(thread) else None

    def _write(self, key: bytes, data: np.ndarray, native: Any) -> None:
        path = self.path(key)
        # No process's number: those of two containers that share the folder are the same.
        unfinished = path.with_name(f"{path.name}.{os.urandom(6).hex()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room(data.size)
            trailer = _trailer(key, data.size, _sums(data, native))
            with unfinished.open("xb") as file:
                file.write(data.data)
                file.write(trailer)
            unfinished.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink()

    def _make_room(self, n_bytes: int) -> None:
        """Delete what was not used for longest, until ``n_bytes`` more are within the limit."""
        files = [(path, path.stat()) for path in self.folder.glob("*" + _SUFFIX + "*")]
        total = sum(stat.st_size for _, stat in files) + n_bytes
        for path, stat in sorted(files, key=lambda file: file[1].st_atime_ns):
            if total <= self.limit:
                break
            path.unlink(missing_ok=True)
            total -= stat.st_size


def packed_key(parts: Iterable[object]) -> bytes:
    """The key of weights that ``parts`` (their ``repr``) tell from all others, 32 bytes."""
    from hashlib import blake2b

    return blake2b(repr(tuple(parts)).encode(), digest_size=32).digest()


def _mapped(descriptor: int, n_bytes: int) -> np.ndarray:
    return np.frombuffer(mmap.mmap(descriptor, n_bytes, access=mmap.ACCESS_READ), np.uint8)


def _n_blocks(n_bytes: int) -> int:
    return -(-n_bytes // _BLOCK)


def _sums(data: np.ndarray, native: Any) -> np.ndarray:
    """The sum of each block, (n_blocks,) uint64."""
    sums = np.zeros(_n_blocks(data.size), "<u8")
    pointer = native.ffi.cast("void *", data.ctypes.data)
    native.lib.ggfw_checksums(pointer, data.size, _BLOCK, native.ffi.from_buffer("uint64_t *", sums))
    return sums


def _trailer(key: bytes, n_bytes: int, sums: np.ndarray) -> bytes:
    return _TRAILER.pack(_MAGIC, n_bytes, _BLOCK, key) + sums.tobytes()

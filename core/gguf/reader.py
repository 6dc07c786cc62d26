"""The public face of a GGUF model file: metadata and tensors of one file or of a split set."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeAlias

from ggfw.errors import GGUFError, InvalidRequest, brief
from ggfw.gguf.metadata import Metadata
from ggfw.gguf.shard import Shard, open_shard
from ggfw.gguf.split import check_set, complete_set
from ggfw.gguf.tensors import TensorInfo

#: What a file can be given as.
FILES = (str, os.PathLike, bytes, bytearray, memoryview)
FileLike: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview


def _several(source: Any) -> list[Any]:
    """The files of a list."""
    try:
        files = list(source)
    except TypeError:
        files = None
    if files is None or not all(isinstance(one, FILES) for one in files):
        raise InvalidRequest(
            f"the model file is {brief(source)}; a path, the bytes of a file, or a list of them was expected",
            "source",
        )
    return files


class GGUF:
    """An open model file. Use :meth:`open`; close it, or use it as a context manager.

    Attributes:
        metadata: read-only mapping key -> Python value; arrays are lazy (:class:`~ggfw.gguf.MetadataArray`). Of a
            split set: the metadata of the first shard.
        tensors: read-only mapping name -> :class:`~ggfw.gguf.TensorInfo`, in file order.
        version: container version of the first file, 2 or 3.
        alignment: of the first file.
        paths: the files, in shard order; empty for bytes.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = list(shards)
        first = self._shards[0]
        self.metadata: Metadata = first.metadata
        self.version = first.version
        self.alignment = first.alignment
        self.paths: list[Path] = [s.path for s in self._shards if s.path is not None]
        tensors: dict[str, TensorInfo] = {}
        for index, shard in enumerate(self._shards):
            for tensor in shard.tensors(index):
                if tensor.name in tensors:
                    other = self._shards[tensors[tensor.name].shard].source
                    raise GGUFError(f"{shard.source}: tensor {brief(tensor.name)} is also in {other}")
                tensors[tensor.name] = tensor
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)

    @classmethod
    def open(cls, source: FileLike | Sequence[FileLike]) -> GGUF:
        """Open a model file.

        Args:
            source: a path (of any shard of a split set: the others are found beside it), the bytes of a file, or a
                list with all shards (paths or bytes, in any order).

        Raises:
            ModelNotFound: there is no such file.
            GGUFError: not a GGUF file of version 2 or 3, damaged, or an incomplete or contradictory set.
        """
        if isinstance(source, FILES):
            shard = open_shard(source)
            try:
                shards = complete_set(shard)
            except BaseException:
                shard.close()
                raise
        else:
            shards = []
            try:
                for one in _several(source):
                    shards.append(open_shard(one))
                if not shards:
                    raise GGUFError("the list of shards is empty; at least one file was expected")
                shards = check_set(shards)
            except BaseException:
                for shard in shards:
                    shard.close()
                raise
        try:
            return cls(shards)
        except BaseException:
            for shard in shards:
                shard.close()
            raise

    @property
    def path(self) -> Path | None:
        """The first file, or None for bytes."""
        return self.paths[0] if self.paths else None

    @property
    def source(self) -> str:
        """How messages call this model file."""
        return self._shards[0].source

    @property
    def mappings(self) -> list[tuple[Path, Any]]:
        """(path, (n_bytes,) uint8 over the mapped file) of every shard that is a file."""
        return [(s.path, s.data) for s in self._shards if s.path is not None and s.mapping is not None]

    @property
    def n_bytes(self) -> int:
        """Size of all files together."""
        return sum(len(shard.data) for shard in self._shards)

    @property
    def architecture(self) -> str:
        """``general.architecture``; an empty string if the file has none."""
        value = self.metadata.get("general.architecture", "")
        if not isinstance(value, str):
            raise GGUFError(
                f"{self.source}: metadata key 'general.architecture' is {brief(value)}, a string was expected"
            )
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value, or ``default``."""
        return self.metadata.get(key, default)

    def arch_get(self, key: str, default: Any = None) -> Any:
        """A metadata value of this architecture: ``arch_get("block_count")`` reads ``llama.block_count``."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def release(self) -> None:
        """Give the memory of what was read of the mapped files back; it is read again from disk where needed."""
        for shard in self._shards:
            if shard.mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
                with contextlib.suppress(OSError):  # a process may have locked its memory
                    shard.mapping.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Unmap the files. Arrays that were taken out stay valid: the last of them unmaps its file."""
        self.tensors = MappingProxyType({})
        for shard in self._shards:
            shard.close()

    def __enter__(self) -> GGUF:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        counts = f"{len(self.metadata)} keys, {len(self.tensors)} tensors, {len(self._shards)} files"
        return f"<GGUF {self.source!r}, {counts}>"

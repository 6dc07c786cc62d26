"""Files of log-probabilities: a NumPy ``.npz`` that is written and read a few rows at a time.

Entries: ``format`` (the text ``ggfw-logprobs-1``), ``tokens`` (n_chunks, n) int32, the tokens that counted, ``ctx``,
and ``logprobs`` (n_chunks * n, n_vocab) float16.
"""

from __future__ import annotations

import io
import os
import zipfile
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ggfw.errors import InvalidRequest
from ggfw.files import check_target

_FORMAT = "ggfw-logprobs-1"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
#: What readers of zip files and arrays raise at damaged ones.
_DAMAGE = (
    zipfile.BadZipFile, KeyError, ValueError, TypeError, EOFError, NotImplementedError, RuntimeError, OSError,
)  # fmt: skip


class LogprobWriter:
    """Writes a file; it gets its name when the ``with`` block has ended well.

    Args:
        path: of the file.
        tokens: (n_chunks, n) the tokens that count.
        ctx: tokens of a chunk.
        n_vocab: columns.
    """

    def __init__(self, path: Path, tokens: NDArray[np.int32], ctx: int, n_vocab: int) -> None:
        check_target(path)
        # A name of its own, so that two runs with one target do not write into the same file.
        self._path, self._part = path, path.with_name(f"{path.name}.{uuid4().hex[:8]}.part")
        self._zip = zipfile.ZipFile(self._part, "w", zipfile.ZIP_STORED)
        for name, value in (("format", np.array(_FORMAT)), ("tokens", tokens), ("ctx", np.array(ctx))):
            with self._zip.open(f"{name}.npy", "w") as entry:
                npy.write_array(entry, value)
        self._rows = self._zip.open("logprobs.npy", "w", force_zip64=True)
        header = {"descr": "<f2", "fortran_order": False, "shape": (tokens.size, n_vocab)}
        npy.write_array_header_1_0(self._rows, header)

    def write(self, logprobs: NDArray[Any]) -> None:
        """Append rows, (n, n_vocab)."""
        self._rows.write(np.ascontiguousarray(logprobs, "<f2").tobytes())

    def __enter__(self) -> LogprobWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._rows.close()
        self._zip.close()
        if kind is None:
            os.replace(self._part, self._path)
        else:
            self._part.unlink(missing_ok=True)


class LogprobReader:
    """Reads a file from its first row on.

    Args:
        path: of the file.
        tokens, ctx, n_vocab: what it must have been made for.

    Raises:
        InvalidRequest: it is no such file, damaged, or was made for another text, context or vocabulary.
    """

    def __init__(self, path: Path, tokens: NDArray[np.int32], ctx: int, n_vocab: int) -> None:
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
            stored = {name: self._array(name) for name in ("format", "tokens", "ctx")}
            if str(stored["format"]) != _FORMAT:
                raise ValueError(f"format {stored['format']}")
            self._rows = self._zip.open("logprobs.npy")
            npy.read_magic(self._rows)
            shape, _, dtype = npy.read_array_header_1_0(self._rows)
            if dtype != np.dtype("<f2") or len(shape) != 2:
                raise ValueError(f"rows of {dtype}")
        except FileNotFoundError:
            raise
        except _DAMAGE as exc:
            raise InvalidRequest(
                f"{path} holds no log-probabilities of a perplexity run ({exc})", "kl_base"
            ) from exc
        if int(stored["ctx"]) != ctx or not np.array_equal(stored["tokens"], tokens):
            raise InvalidRequest(
                f"{path} was saved for another text or context (ctx {int(stored['ctx'])}, "
                f"{len(stored['tokens'])} chunks); run with the same text, --ctx and --chunks",
                "kl_base",
            )
        if shape[1] != n_vocab:
            raise InvalidRequest(
                f"{path} has a vocabulary of {shape[1]}, the model has {n_vocab}; they cannot be compared",
                "kl_base",
            )
        self._row_bytes = 2 * n_vocab

    def _array(self, name: str) -> NDArray[Any]:
        # Nothing that the file could not hold is taken from it: entries are stored as they are.
        info = self._zip.getinfo(f"{name}.npy")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > os.path.getsize(self._path):
            raise ValueError(f"{name} is compressed, or has {info.file_size} bytes")
        with self._zip.open(info) as entry:
            data = io.BytesIO(entry.read())
        shape, _, dtype = _HEADERS[npy.read_magic(data)](data)
        if dtype.hasobject or prod(shape) * dtype.itemsize > info.file_size:
            raise ValueError(f"{name} is an array {shape} of {dtype}")
        data.seek(0)
        return npy.read_array(data, allow_pickle=False)

    def read(self, n: int) -> NDArray[np.float64]:
        """The next ``n`` rows."""
        try:
            data = self._rows.read(n * self._row_bytes)
        except _DAMAGE as exc:
            raise InvalidRequest(f"{self._path} is damaged ({exc})", "kl_base") from exc
        if len(data) != n * self._row_bytes:
            raise InvalidRequest(f"{self._path} ends too early; save it again", "kl_base")
        return np.frombuffer(data, "<f2").reshape(n, -1).astype(np.float64)

    def __enter__(self) -> LogprobReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.close()
        self._zip.close()

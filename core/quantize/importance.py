"""Importance matrices: how much each column of a weight matters, measured by llama.cpp's ``imatrix`` tool.

Two forms exist: the old binary one, and GGUF files with ``<name>.in_sum2`` and ``<name>.counts`` (tools/imatrix).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ggfw.errors import InvalidRequest
from ggfw.gguf import GGUF
from ggfw.quants import dequantize
from ggfw.records import dataclass

_SUMS, _COUNTS = ".in_sum2", ".counts"

#: More than any model has; what claims more is no importance matrix.
_MOST_ENTRIES, _MOST_NAME = 100_000, 4096


@dataclass(frozen=True)
class Importance:
    """Mean squares of the activations that the columns of each matrix are multiplied with.

    Args:
        path: where it came from.
        columns: tensor name -> (n_cols,) or (n_expert, n_cols) float32.
    """

    path: str
    columns: dict[str, NDArray[np.float32]]

    def of(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        """Columns of a matrix, (n_cols,) or (n_expert, n_cols); None where nothing was measured.

        Raises:
            InvalidRequest: the numbers belong to a matrix of another width.
        """
        found = self.columns.get(name)
        if found is None:
            return None
        n_expert = shape[0] if len(shape) == 3 else 1
        if found.size == n_expert * shape[-1]:
            return found.reshape((n_expert, shape[-1]) if n_expert > 1 else (shape[-1],))
        raise InvalidRequest(
            f"{self.path} has {found.size} columns for {name}, the model has {n_expert} x {shape[-1]}; "
            "it was made for another model",
            "imatrix",
        )


def read_importance(path: str | os.PathLike[str]) -> Importance:
    """Read an importance matrix of either form.

    Raises:
        InvalidRequest: the file is neither, or damaged.
        GGUFError: a damaged GGUF file.
        OSError: it cannot be read.
    """
    path = Path(path)
    with open(path, "rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    columns = _from_gguf(path) if is_gguf else _from_binary(path)
    if not columns:
        raise InvalidRequest(f"{path} holds no importance of any tensor", "imatrix")
    for name, values in columns.items():
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise InvalidRequest(
                f"{path}: the importance of {name} holds a negative number or a NaN", "imatrix"
            )
    return Importance(str(path), columns)


def _from_gguf(path: Path) -> dict[str, NDArray[np.float32]]:
    columns = {}
    with GGUF.open(path) as gguf:
        for name in gguf.tensors:
            if not name.endswith(_SUMS):
                continue
            other = gguf.tensors.get(name.removesuffix(_SUMS) + _COUNTS)
            if other is None:
                raise InvalidRequest(f"{path} has {name} but no counts for it; it is damaged", "imatrix")
            sums, counts = (
                dequantize(info.ggml_type, info.data, info.shape) for info in (gguf.tensors[name], other)
            )
            if not counts.size or sums.size % counts.size:
                raise InvalidRequest(
                    f"{path}: {name} has {sums.size} sums for {counts.size} counts; it is damaged", "imatrix"
                )
            rows = sums.reshape(counts.size, sums.size // counts.size)
            columns[name.removesuffix(_SUMS)] = np.divide(
                rows, counts.reshape(-1, 1), out=np.zeros_like(rows), where=counts.reshape(-1, 1) > 0
            )
    return columns


def _from_binary(path: Path) -> dict[str, NDArray[np.float32]]:
    data = path.read_bytes()
    at = 0

    def number(what: str, most: int) -> int:
        nonlocal at
        if at + 4 > len(data):
            raise InvalidRequest(f"{path} ends before its {what}; it is no importance matrix", "imatrix")
        value: int = struct.unpack_from("<i", data, at)[0]
        if not 0 <= value <= most:
            raise InvalidRequest(f"{path}: {what} is {value}; it is no importance matrix", "imatrix")
        at += 4
        return value

    columns: dict[str, NDArray[np.float32]] = {}
    for index in range(number("number of entries", _MOST_ENTRIES)):
        length = number(f"length of name {index}", _MOST_NAME)
        name = data[at : at + length].decode("utf-8", "replace")
        at += length
        calls = number(f"calls of {name}", 2**31 - 1)
        size = number(f"size of {name}", (len(data) - at) // 4)
        if at + 4 * size > len(data):
            raise InvalidRequest(f"{path} ends inside {name}; it is damaged", "imatrix")
        columns[name] = np.frombuffer(data, "<f4", size, at) / np.float32(max(1, calls))
        at += 4 * size
    return columns

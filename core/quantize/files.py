"""From one GGUF file to another with fewer bits; two tensors in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggfw import quants
from ggfw.errors import InvalidRequest
from ggfw.gguf import GGUF, TensorInfo
from ggfw.gguf.values import U32
from ggfw.gguf.writer import Payload, typed_metadata, write_gguf
from ggfw.quantize.encode import encodable, encode
from ggfw.quantize.importance import Importance
from ggfw.quantize.recipes import Recipe, fitting, quantizable, recipe
from ggfw.records import dataclass
from ggfw.registry import default_registry

#: Elements that one thread turns at a time: its floats stay near the processor's cache.
_PIECE = 1 << 17

_OUTPUT, _TABLE = "output.weight", "token_embd.weight"


@dataclass(frozen=True)
class Quantized:
    """What :func:`quantize_file` made.

    Args:
        path: of the new file.
        source_bytes, bytes: sizes of the tensors before and after.
        formats: tensor name -> format it was given.
        narrowed: names of matrices whose rows the recipe's format did not fit.
    """

    path: Path
    source_bytes: int
    bytes: int
    formats: dict[str, str]
    narrowed: tuple[str, ...]


def quantize_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    to: str,
    *,
    importance: Importance | None = None,
    overrides: dict[str, str] | None = None,
    threads: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> Quantized:
    """Write ``target``: the model ``source`` with the matrices in the formats of the recipe ``to``.

    Norms, biases, router weights and other small tensors stay as they are. The file is complete or not there at all.

    Args:
        source: a GGUF file; of a split set any part.
        target: file to write; replaced if it exists.
        to: a name of :data:`ggfw.quantize.RECIPES`.
        importance: importance of columns.
        overrides: tensor name, or its role in all layers (``attn_v``), to a format.
        threads: threads that encode.
        progress: called before each tensor with its name, the elements done and all elements.

    Raises:
        InvalidRequest: unknown recipe or format, a tensor with values that are not finite, an importance matrix of
            another model, or source and target are the same file.
        GGUFError: the source is damaged.
    """
    source, target, wanted = Path(source), Path(target), recipe(to)
    if target.exists() and os.path.samefile(source, target):
        raise InvalidRequest(f"{target} cannot be quantised onto itself; give another name", "target")
    forced = {name: _known(fmt) for name, fmt in (overrides or {}).items()}
    with GGUF.open(source) as gguf, ThreadPoolExecutor(threads) as pool:
        tensors = list(gguf.tensors.values())
        formats, narrowed = _choose(tensors, wanted, forced)
        total, done = sum(prod(t.shape) for t in tensors), 0
        ahead = _Ahead([(t, fmt) for t in tensors if (fmt := formats[t.name]) is not None], importance, pool)
        payloads: list[tuple[str, Payload]] = []
        for tensor in tensors:
            fmt = formats[tensor.name]
            if fmt is None:
                payloads.append((tensor.name, tensor))
                continue

            def load(tensor: TensorInfo = tensor, begun: int = done) -> NDArray[np.uint8]:
                if progress is not None:
                    progress(tensor.name, begun, total)
                return ahead.take()

            payloads.append((tensor.name, (load, tensor.shape, fmt)))
            done += prod(tensor.shape)
        try:
            write_gguf(target, _metadata(gguf, wanted, importance), payloads)
        finally:
            pool.shutdown(cancel_futures=True)  # what was begun needs the file
        if progress is not None:
            progress("", total, total)
        types = {t.name: quants.get(t.ggml_type).name for t in tensors if formats[t.name] is None}
        after = {name: types.get(name) or str(fmt) for name, fmt in formats.items()}
        sizes = (
            prod(t.shape[:-1]) * quants.row_bytes(after[t.name], t.shape[-1]) for t in tensors if t.shape
        )
        return Quantized(target, sum(t.n_bytes for t in tensors), sum(sizes), after, tuple(narrowed))


def _choose(
    tensors: list[TensorInfo], wanted: Recipe, forced: dict[str, str]
) -> tuple[dict[str, str | None], list[str]]:
    """Format of every tensor (None: stays as it is), and the names of those that got a narrower block."""
    names = {t.name for t in tensors}
    n_layer = 1 + max((int(n.split(".")[1]) for n in names if n.startswith("blk.")), default=-1)
    output = _OUTPUT if _OUTPUT in names else _TABLE
    blocks = {f.name: f.block_size for f in default_registry().quant_formats.values()}
    formats: dict[str, str | None] = {}
    narrowed: list[str] = []
    for tensor in tensors:
        role = tensor.name.removesuffix(".weight").rpartition(".")[2]
        fmt = forced.get(tensor.name) or forced.get(role)
        if fmt is None and quantizable(tensor):
            fmt = wanted.format_of(tensor.name, n_layer, is_output=tensor.name == output)
        if fmt is not None:
            narrow = fitting(fmt, tensor.shape[-1], blocks)
            if narrow != fmt:
                narrowed.append(tensor.name)
            fmt = None if narrow == quants.get(tensor.ggml_type).name else narrow
        formats[tensor.name] = fmt
    return formats, narrowed


def _known(name: str) -> str:
    found = quants.get(name)
    if not encodable(found):
        raise InvalidRequest(
            f"the quant format {found.name} can be read but not made; choose another one", "type"
        )
    return found.name


class _Ahead:
    """The bytes of tensors in their new formats, one after the other: while one is written, the next is encoded."""

    def __init__(
        self, tensors: Iterable[tuple[TensorInfo, str]], importance: Importance | None, pool: Executor
    ) -> None:
        self._waiting = iter(tensors)
        self._importance = importance
        self._pool = pool
        self._begun = self._begin()

    def take(self) -> NDArray[np.uint8]:
        """The bytes of the next tensor; the one after it is begun."""
        begun = self._begun
        assert begun is not None, "as many are taken as there are"
        name, out, pieces = begun
        self._begun = self._begin()
        try:
            for piece in pieces:
                piece.result()
        except InvalidRequest as exc:
            raise InvalidRequest(f"tensor {name!r}: {exc}", exc.param) from exc
        return out.reshape(-1)

    def _begin(self) -> tuple[str, NDArray[np.uint8], list[Future[None]]] | None:
        tensor, fmt = next(self._waiting, (None, ""))
        if tensor is None:
            return None
        out, piece, spans = _pieces(tensor, fmt, self._importance)
        return tensor.name, out, [self._pool.submit(piece, *span) for span in spans]


def _pieces(
    tensor: TensorInfo, fmt: str, importance: Importance | None
) -> tuple[NDArray[np.uint8], Callable[[int, int], None], list[tuple[int, int]]]:
    """The rows of a tensor in another format, not yet filled; what fills a span of them; and the spans."""
    n_cols, rows_each = tensor.shape[-1], tensor.shape[-2]
    n_rows = prod(tensor.shape[:-1])
    source = tensor.data.reshape(n_rows, -1)
    out = np.empty((n_rows, quants.row_bytes(fmt, n_cols)), np.uint8)
    plain = quants.get(fmt).block_size == 1
    columns = None if plain or importance is None else importance.of(tensor.name, tensor.shape)
    step = max(1, min(rows_each, _PIECE // n_cols))
    is_float = quants.get(tensor.ggml_type).name == "F32"

    def piece(begin: int, end: int) -> None:
        if is_float:  # where it lies in the file, without a copy
            values: NDArray[Any] = source[begin:end].view("<f4")
        else:
            flat = source[begin:end].reshape(-1)
            values = quants.dequantize(tensor.ggml_type, flat, (end - begin, n_cols))
        weights = columns if columns is None or columns.ndim == 1 else columns[begin // rows_each]
        encode(fmt, values, weights, out[begin:end])

    spans = [
        (begin, min(begin + step, matrix + rows_each))
        for matrix in range(0, n_rows, rows_each)
        for begin in range(matrix, matrix + rows_each, step)
    ]
    return out, piece, spans


def _metadata(gguf: GGUF, wanted: Recipe, importance: Importance | None) -> dict[str, Any]:
    values = {k: v for k, v in typed_metadata(gguf.metadata).items() if not k.startswith("split.")}
    values["general.file_type"] = U32(wanted.file_type)
    values["general.quantization_version"] = U32(2)
    if importance is not None:
        values["quantize.imatrix.file"] = Path(importance.path).name
        values["quantize.imatrix.entries_count"] = U32(len(importance.columns))
    return values

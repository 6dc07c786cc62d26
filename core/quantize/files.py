"""From one GGUF file to another with fewer bits; a piece of a tensor per thread in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggfw import quants
from ggfw.errors import InvalidRequest
from ggfw.gguf import GGUF, TensorInfo
from ggfw.gguf.values import U32
from ggfw.gguf.writer import Region, typed_metadata, write_in_place
from ggfw.quantize.crew import Job, Scratch, run_jobs
from ggfw.quantize.encode import column_weights, encodable, row_encoder
from ggfw.quantize.importance import Importance
from ggfw.quantize.recipes import Recipe, fitting, layer_of, quantizable, recipe
from ggfw.records import dataclass
from ggfw.registry import default_registry

#: Elements that one thread turns, and writes, at a time: few enough that what it makes is still near the processor's
#: cache when it is written.
_PIECE = 1 << 19

#: Elements that are made floats of at a time where they are none.
_FLOATS = 1 << 17

#: Bytes of a tensor that stays as it is, copied at a time.
_COPIED = 1 << 22

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
        threads: threads that encode, the calling one among them.
        progress: called before each tensor that changes with its name, the elements begun before it and all elements;
            by any of the threads, one at a time.

    Raises:
        InvalidRequest: unknown recipe or format, an override of no matrix, a tensor with values that are not finite or
            too large for their format, an importance matrix of another model, or source and target are the same file.
        GGUFError: the source is damaged.
    """
    source, target, wanted = Path(source), Path(target), recipe(to)
    if target.exists() and os.path.samefile(source, target):
        raise InvalidRequest(f"{target} cannot be quantised onto itself; give another name", "target")
    forced = {name: _known(fmt) for name, fmt in (overrides or {}).items()}
    with GGUF.open(source) as gguf:
        tensors = list(gguf.tensors.values())
        formats, narrowed = _choose(tensors, wanted, forced)
        laid_out = [(t.name, t.shape, formats[t.name] or t.ggml_type) for t in tensors]
        with write_in_place(target, _metadata(gguf, wanted, importance), laid_out) as region:
            run_jobs(_jobs(tensors, formats, importance, region, progress or _silent), threads)
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
    n_layer = 1 + max((n for n in map(layer_of, names) if n is not None), default=-1)
    output = _OUTPUT if _OUTPUT in names else _TABLE
    blocks = {f.name: f.block_size for f in default_registry().quant_formats.values()}
    formats: dict[str, str | None] = {}
    narrowed: list[str] = []
    unused = set(forced)
    for tensor in tensors:
        role = tensor.name.removesuffix(".weight").rpartition(".")[2]
        fmt = forced.get(tensor.name) or forced.get(role)
        unused -= {tensor.name, role}
        if fmt is not None and len(tensor.shape) < 2:
            raise InvalidRequest(
                f"tensor {tensor.name!r} is no matrix and stays as it is; give formats to matrices only",
                "tensor_type",
            )
        if fmt is None and quantizable(tensor):
            fmt = wanted.format_of(tensor.name, n_layer, is_output=tensor.name == output)
        if fmt is not None:
            narrow = fitting(fmt, tensor.shape[-1], blocks)
            if narrow != fmt:
                narrowed.append(tensor.name)
            fmt = None if narrow == quants.get(tensor.ggml_type).name else narrow
        formats[tensor.name] = fmt
    if unused:
        raise InvalidRequest(
            f"no tensor is called {min(unused)!r} or has that role; `ggfw show MODEL --tensors` lists them",
            "tensor_type",
        )
    return formats, narrowed


def _known(name: str) -> str:
    found = quants.get(name)
    if not encodable(found):
        raise InvalidRequest(
            f"the quant format {found.name} can be read but not made; choose another one", "type"
        )
    return found.name


def _silent(name: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""


def _jobs(
    tensors: list[TensorInfo],
    formats: dict[str, str | None],
    importance: Importance | None,
    region: Region,
    progress: Callable[[str, int, int], None],
) -> Iterator[Job]:
    """Every piece of every tensor, to be made and written."""
    total, done = sum(prod(t.shape) for t in tensors), 0
    for tensor in tensors:
        fmt = formats[tensor.name]
        if fmt is None:
            yield from _copies(tensor, region)
        else:
            progress(tensor.name, done, total)
            yield from _pieces(tensor, fmt, importance, region)
        done += prod(tensor.shape)
    progress("", total, total)


def _copies(tensor: TensorInfo, region: Region) -> Iterator[Job]:
    """The bytes of a tensor as they are."""

    def copy(begin: int) -> Job:
        return lambda _: region.write(tensor.name, begin, tensor.data[begin : begin + _COPIED])

    return (copy(begin) for begin in range(0, tensor.n_bytes, _COPIED))


def _pieces(tensor: TensorInfo, fmt: str, importance: Importance | None, region: Region) -> Iterator[Job]:
    """The rows of a tensor in another format; no piece has rows of two matrices."""
    n_cols, rows_each = tensor.shape[-1], tensor.shape[-2]
    n_rows = prod(tensor.shape[:-1])
    if not n_rows or not n_cols:
        return
    source, row_bytes = tensor.data.reshape(n_rows, -1), quants.row_bytes(fmt, n_cols)
    encode_rows, stored = row_encoder(fmt), quants.get(tensor.ggml_type)
    plain = quants.get(fmt).block_size == 1
    columns = None if plain or importance is None else importance.of(tensor.name, tensor.shape)
    is_float = stored.name == "F32"
    step = max(1, (n_rows if is_float else _FLOATS // n_cols))

    def piece(begin: int, end: int, weights: NDArray[np.float32] | None, scratch: Scratch) -> None:
        out = scratch.bytes((end - begin) * row_bytes).reshape(-1, row_bytes)
        for at in range(begin, end, step):
            some = source[at : min(at + step, end)]
            if is_float:  # where they lie in the file, without a copy
                floats = np.require(some.view("<f4"), np.float32, ("C", "ALIGNED"))
            else:
                floats = quants.dequantize(stored, some.reshape(-1), (len(some), n_cols))
            try:
                encode_rows(floats, weights, out[at - begin : at - begin + len(some)])
            except InvalidRequest as exc:
                raise InvalidRequest(f"tensor {tensor.name!r}: {exc}", exc.param) from exc
        region.write(tensor.name, begin * row_bytes, out)

    def job(begin: int, end: int, weights: NDArray[np.float32] | None) -> Job:
        return lambda scratch: piece(begin, end, weights, scratch)

    rows_at_once = max(1, _PIECE // n_cols)
    for first in range(0, n_rows, rows_each):
        weights = None if columns is None else columns if columns.ndim == 1 else columns[first // rows_each]
        if weights is not None:
            weights = column_weights(weights, n_cols)
        for begin in range(first, first + rows_each, rows_at_once):
            yield job(begin, min(begin + rows_at_once, first + rows_each), weights)


def _metadata(gguf: GGUF, wanted: Recipe, importance: Importance | None) -> dict[str, Any]:
    values = {k: v for k, v in typed_metadata(gguf.metadata).items() if not k.startswith("split.")}
    values["general.file_type"] = U32(wanted.file_type)
    values["general.quantization_version"] = U32(2)
    if importance is not None:
        values["quantize.imatrix.file"] = Path(importance.path).name
        values["quantize.imatrix.entries_count"] = U32(len(importance.columns))
    return values

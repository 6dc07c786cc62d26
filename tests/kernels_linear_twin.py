"""A driver for the linear kernels of one library, and their float64 twin; used by ``test_kernels_linear*.py``.

The driver does what the executor does for one step: views in an arena, all chunks of a batch (in any order), scratch.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from cffi import FFI
from numpy.typing import NDArray

from ggfw import kernels_c

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

F32, Q8, Q16 = 0, 2, 3
LINEAR, MOE_LINEAR, EMBED = 2, 12, 1

#: name -> (ggml type id, columns of a block, bytes of a block, offsets of its f16 fields)
FORMATS: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "F32": (0, 1, 4, ()),
    "F16": (1, 1, 2, ()),
    "BF16": (30, 1, 2, ()),
    "Q4_0": (2, 32, 18, (0,)),
    "Q4_1": (3, 32, 20, (0, 2)),
    "Q5_0": (6, 32, 22, (0,)),
    "Q5_1": (7, 32, 24, (0, 2)),
    "Q8_0": (8, 32, 34, (0,)),
    "Q2_K": (10, 256, 84, (80, 82)),
    "Q3_K": (11, 256, 110, (108,)),
    "Q4_K": (12, 256, 144, (0, 2)),
    "Q5_K": (13, 256, 176, (0, 2)),
    "Q6_K": (14, 256, 210, (208,)),
    "IQ4_NL": (20, 32, 18, (0,)),
    "IQ4_XS": (23, 256, 136, (0,)),
    "MXFP4": (39, 32, 17, ()),
}
FLOATS = ("F32", "F16", "BF16")
ACTIVATIONS = {"F32": F32, "Q8": Q8, "Q16": Q16}

#: Every kernel: a float format, or ``format:activations``.
KERNELS = [
    *FLOATS,
    *(f"{name}:{x}" for name in FORMATS if name not in FLOATS for x in ACTIVATIONS),
]


def base(name: str) -> str:
    """The weights' format of a kernel."""
    return name.partition(":")[0]


def activation(name: str) -> int:
    """What a kernel wants its activations in; Q8 where the name of a quantised format says nothing."""
    fmt, _, wants = name.partition(":")
    return F32 if fmt in FLOATS else ACTIVATIONS[wants or "Q8"]


def units() -> list[str]:
    """Instruction sets whose library is built and runs here."""
    return [name for name in ("generic", "avx2", "avx512") if _path(name) and kernels_c.usable(_path(name))]


def _path(name: str) -> str:
    folder = os.environ.get("GGFW_TEST_LIBRARIES")  # libraries under development, libggfw_<unit>.so
    if folder:
        path = Path(folder) / f"libggfw_{name}.so"
        return str(path) if path.exists() else ""
    return kernels_c.library_path(name) if kernels_c.built(name) else ""


@cache
def ffi() -> FFI:
    """The declarations of ``ggfw_kernels.h``."""
    text = Path(kernels_c.get_include(), "ggfw_kernels.h").read_text()
    made = FFI()
    made.cdef(text.split("/* cffi: begin */")[1].split("/* cffi: end */")[0])
    return made


def aligned(n_bytes: int) -> Bytes:
    """Zeroed bytes at a multiple of 64, with a margin behind them that software prefetch may touch."""
    raw = np.zeros(n_bytes + 128, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n_bytes]


def pointer(array: NDArray[Any], ctype: str = "void *") -> Any:
    return ffi().cast(ctype, array.ctypes.data)


# ---- data ------------------------------------------------------------------------------------------------------------


def random_rows(name: str, n_out: int, n_in: int, rng: np.random.Generator, kind: str = "plain") -> Bytes:
    """Rows in file layout, ``(n_out, row_bytes)``.

    ``kind``: ``plain`` (scales around 0.01), ``ones`` (every quant bit set), ``zero`` (half of the scales 0),
    ``denormal`` (f16 subnormal scales), ``large`` (f16 scales up to 1000).
    """
    name = base(name)
    _, block, size, halves = FORMATS[name]
    if name in FLOATS:
        values = rng.standard_normal((n_out, n_in)).astype(np.float32)
        if name == "F32":
            return values.view(np.uint8)
        if name == "F16":
            return values.astype(np.float16).view(np.uint8)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    blocks = rng.integers(0, 256, (n_out * n_in // block, size), dtype=np.uint8)
    if kind == "ones":
        blocks[:] = 0xFF
    for at in halves:
        scale = rng.uniform(0.005, 0.02, len(blocks)) * rng.choice([-1.0, 1.0], len(blocks))
        if kind == "zero":
            scale *= rng.integers(0, 2, len(blocks))
        if kind == "denormal":
            scale *= 1e-4
        if kind == "large":
            scale *= 5e4
        blocks[:, at : at + 2] = scale.astype(np.float16)[:, None].view(np.uint8)
    if name == "MXFP4":  # exponents over the whole range would leave nothing but the largest visible
        low, high = {"denormal": (0, 4), "large": (200, 214)}.get(kind, (118, 126))
        blocks[:, 0] = rng.integers(low, high, len(blocks))
    return blocks.reshape(n_out, -1)


def values_of(name: str, rows: Bytes) -> Floats:
    """Dequantised rows by the reference package."""
    name = base(name)
    if name == "F32":
        return rows.view(np.float32)
    kind = gguf.GGMLQuantizationType[name]
    return gguf.quants.dequantize(rows, kind).astype(np.float32)


def quantize_q8(x: Floats) -> tuple[NDArray[np.int8], Floats]:
    """int8 per 16 columns as the header defines GGFW_Q8: ``q (rows, n), d (rows, n / 16)``."""
    blocks = x.reshape(len(x), -1, 16)
    d = (np.abs(blocks).max(-1) / np.float32(127)).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(d[..., None] > 0, np.rint(blocks / d[..., None]), 0).astype(np.int8)
    return q.reshape(x.shape), d


def q8_bytes(n: int) -> int:
    """Bytes of one GGFW_Q8 row."""
    return -(-(-(-n // 64) * 64 + n // 16 * 8 + n // 32 * 4) // 64) * 64


def q8_rows(x: Floats) -> Bytes:
    """GGFW_Q8 rows, ``(rows, q8_bytes)``."""
    q, d = quantize_q8(x)
    n = x.shape[1]
    out = np.zeros((len(x), q8_bytes(n)), np.uint8)
    at = -(-n // 64) * 64
    out[:, :n] = q.view(np.uint8)
    sums = q.reshape(len(x), -1, 16).sum(-1, dtype=np.int32)
    totals = (d.astype(np.float64) * sums).reshape(len(x), -1, 2).sum(-1).astype(np.float32)
    for part, size in ((d, n // 4), (sums, n // 4), (totals, n // 8)):
        out[:, at : at + size] = np.ascontiguousarray(part).view(np.uint8)
        at += size
    return out


def quantize_q16(x: Floats) -> tuple[NDArray[np.int32], Floats]:
    """15 bits per 32 columns as the header defines GGFW_Q16: ``q (rows, n), d (rows, n / 32)``."""
    blocks = x.reshape(len(x), -1, 32)
    d = (np.abs(blocks).max(-1) / np.float32(16256)).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(d[..., None] > 0, np.rint(blocks / d[..., None]), 0).astype(np.int32)
    return q.reshape(x.shape), d


def q16_rows(x: Floats) -> Bytes:
    """GGFW_Q16 rows."""
    q, d = quantize_q16(x)
    n = len(x)
    high = (q + 64) >> 7
    planes = np.stack([high, q - 128 * high]).astype(np.int8).reshape(2, n, -1, 32)
    sums = q.reshape(n, -1, 16).sum(-1, dtype=np.int32)
    totals = (d.astype(np.float64) * sums.reshape(n, -1, 2).sum(-1)).astype(np.float32)
    parts = [planes.transpose(1, 2, 0, 3).reshape(n, -1), d, sums, totals]
    rows = np.concatenate([np.ascontiguousarray(p).view(np.uint8).reshape(n, -1) for p in parts], axis=1)
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % 64)))


def seen(name: str, x: Floats) -> NDArray[np.float64]:
    """The activations as a kernel sees them, in float64."""
    if activation(name) == F32:
        return x.astype(np.float64)
    if activation(name) == Q16:
        q, d = quantize_q16(x)
        return (q.reshape(len(x), -1, 32).astype(np.float64) * d[..., None]).reshape(x.shape)
    q, d = quantize_q8(x)
    return (q.reshape(len(x), -1, 16).astype(np.float64) * d[..., None]).reshape(x.shape)


def product(name: str, rows: Bytes, x: Floats) -> NDArray[np.float64]:
    """``x @ W.T`` in float64 with the activations as the kernel sees them: ``(rows, n_out)``."""
    return seen(name, x) @ values_of(name, rows).astype(np.float64).T


def error(got: NDArray[Any], want: NDArray[Any], size: NDArray[Any] | None = None) -> float:
    """Relative L2 error; of what is finite in float32."""
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want if size is None else size), 1e-300))


# ---- driver ---------------------------------------------------------------------------------------------------------


@dataclass
class Library:
    """The kernels of one shared library."""

    unit: str
    handle: Any = field(repr=False)
    table: Any = field(repr=False)

    def kernel(self, op: int, name: str) -> Any:
        for i in range(self.table.n_kernels):
            k = self.table.kernels[i]
            wants = F32 if op == EMBED else activation(name)
            if k.op == op and k.format == FORMATS[base(name)][0] and k.activation == wants:
                return ffi().addressof(k)
        raise KeyError(f"{self.unit} has no kernel of op {op} for {name}")

    def pack(self, kernel: Any, rows: Bytes, n_in: int) -> Bytes:
        """All rows, in two calls with a border at a multiple of 16."""
        n_out = len(rows)
        rows = np.ascontiguousarray(rows)
        packed = aligned(kernel.pack_size(n_out, n_in))
        packed[:] = 0xA5
        half = n_out // 2 // 16 * 16
        for first, n in ((0, half), (half, n_out - half)):
            if n:
                kernel.pack(pointer(rows), n_out, n_in, first, n, pointer(packed))
        return packed

    def unpack(self, kernel: Any, data: Bytes, n_out: int, n_in: int, ids: list[int]) -> Floats:
        out = np.full((len(ids), n_in + 3), np.nan, np.float32)
        chosen = np.array(ids, np.int32)
        kernel.unpack_rows(
            pointer(data),
            n_out,
            n_in,
            pointer(chosen, "int32_t *"),
            len(ids),
            pointer(out, "float *"),
            out.strides[0],
        )
        assert np.isnan(out[:, n_in:]).all()
        return out[:, :n_in]


@cache
def library(unit: str, path: str = "") -> Library:
    handle = ffi().dlopen(path or _path(unit))
    return Library(unit, handle, handle.ggfw_kernels())


class Arena:
    """Views one after the other, rows padded to 64 bytes and some."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, Bytes]] = []
        self.size = 0

    def add(self, rows: NDArray[Any], kind: int, width: int) -> dict[str, int]:
        """Copy rows in; returns the fields of a ggfw_view."""
        raw = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
        stride = -(-raw.shape[1] // 64) * 64 + 64
        padded = np.zeros((len(rows), stride), np.uint8)
        padded[:, : raw.shape[1]] = raw
        view = {"offset": self.size, "stride": stride, "width": width, "type": kind}
        self.parts.append((self.size, padded.reshape(-1)))
        self.size += padded.size
        return view

    def build(self) -> Bytes:
        memory = aligned(self.size)
        for offset, raw in self.parts:
            memory[offset : offset + raw.size] = raw
        return memory


def read(memory: Bytes, view: dict[str, int], n_rows: int) -> Floats:
    raw = memory[view["offset"] : view["offset"] + n_rows * view["stride"]].reshape(n_rows, -1)
    return raw[:, : 4 * view["width"]].copy().view(np.float32)


def input_rows(name: str, x: Floats) -> tuple[NDArray[Any], int]:
    """Rows as a kernel wants them, and their type."""
    kind = activation(name)
    return {F32: lambda x: x, Q8: q8_rows, Q16: q16_rows}[kind](x), kind


@dataclass
class Matrices:
    """Parts of one step, packed unless they stay as they are in the file."""

    lib: Library
    name: str
    n_in: int
    rows: list[Bytes]
    op: int = LINEAR
    n_expert: int = 1
    packer: Library | None = None  # for kernels without pack()
    in_file: bool = False  # the kernel reads the rows as they are in the file

    def __post_init__(self) -> None:
        f = ffi()
        self.kernel = self.lib.kernel(self.op, self.name)
        packer = self.packer or self.lib
        pack_kernel = packer.kernel(self.op, self.name)
        self.weights = []
        self.packed = []
        for rows in self.rows:
            experts = np.split(rows, self.n_expert)
            packs = [
                e.reshape(-1) if self.in_file else packer.pack(pack_kernel, e, self.n_in) for e in experts
            ]
            data = aligned(sum(p.size for p in packs))
            data[:] = np.concatenate(packs)
            self.packed.append(data)
            w = f.new("ggfw_weight *")
            w.data = pointer(data)
            w.format, w.layout = FORMATS[base(self.name)][0], 0 if self.in_file else 1
            w.n_out, w.n_in = len(rows) // self.n_expert, self.n_in
            w.n_expert, w.expert_stride = self.n_expert, packs[0].size
            w.kernel = pack_kernel
            self.weights.append(w)


def run_chunks(
    matrices: Matrices,
    step: Any,
    memory: Bytes,
    n_rows: int,
    *,
    n_threads: int,
    prefetch: int,
    shuffle: int | None,
) -> int:
    """Every chunk once, in order or shuffled, of each region; returns the number of the first region's."""
    f, kernel = ffi(), matrices.kernel
    run = f.new("ggfw_run *")
    run.arena = pointer(memory, "uint8_t *")
    run.n_threads, run.max_rows, run.max_outputs, run.prefetch = n_threads, n_rows, 1, prefetch
    shared = guarded(kernel.shared_size(step, run) if kernel.shared_size else 0)
    run.shared = pointer(shared, "uint8_t *")
    counts = []
    while kernel:
        scratch = guarded(kernel.scratch_size(step, run) if kernel.scratch_size else 0)
        chunks = list(range(kernel.n_chunks(step, run, 0, n_rows)))
        counts.append(len(chunks))
        if shuffle is not None:
            np.random.default_rng(shuffle).shuffle(chunks)
        for chunk in chunks:
            kernel.run(step, run, 0, n_rows, chunk, pointer(scratch))
        assert (scratch[-64:] == 0x5A).all(), "wrote behind the scratch it asked for"
        kernel = kernel.then
    assert (shared[-64:] == 0x5A).all(), "wrote behind the shared memory it asked for"
    return counts[0]


def guarded(n_bytes: int) -> Bytes:
    """Memory of NaN, and 64 bytes behind it that nobody may change."""
    memory = aligned(-(-n_bytes // 64) * 64 + 64)
    memory[:-64], memory[-64:] = 0xFF, 0x5A
    return memory


def linear(
    matrices: Matrices,
    x: Floats,
    *,
    bias: list[Floats | None] | None = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    residual: list[Floats | None] | None = None,
    in_place: bool = False,
    n_threads: int = 2,
    prefetch: int = 1024,
    shuffle: int | None = None,
) -> list[Floats]:
    """One LINEAR step over all rows of ``x``: a list of ``(rows, n_out)``."""
    f = ffi()
    step = f.new("ggfw_step *")
    step.op = LINEAR
    params = step.params.linear
    params.n_parts, params.scale, params.softcap = len(matrices.rows), scale, softcap
    arena = Arena()
    raw, kind = input_rows(matrices.name, x)
    for key, value in arena.add(raw, kind, matrices.n_in).items():
        setattr(getattr(step, "in")[0], key, value)
    views = []
    for i, weight in enumerate(matrices.weights):
        step.weight[i] = weight
        if bias and bias[i] is not None:
            params.bias[i] = pointer(bias[i], "float *")
        added = residual[i] if residual else None
        if added is not None:
            view = arena.add(added, F32, weight.n_out)
            for key, value in view.items():
                setattr(getattr(step, "in")[1 + i], key, value)
        if added is None or not in_place:
            view = arena.add(np.full((len(x), weight.n_out), np.nan, np.float32), F32, weight.n_out)
        for key, value in view.items():
            setattr(step.out[i], key, value)
        views.append(view)
    memory = arena.build()
    run_chunks(matrices, step, memory, len(x), n_threads=n_threads, prefetch=prefetch, shuffle=shuffle)
    return [read(memory, view, len(x)) for view in views]


def moe_linear(
    matrices: Matrices,
    x: Floats,
    ids: NDArray[np.int32] | None,
    *,
    bias: Floats | None = None,
    expert_scale: Floats | None = None,
    n_threads: int = 2,
    shuffle: int | None = None,
) -> Floats:
    """One MOE_LINEAR step: ``x`` is ``(rows, n_in)`` or ``(rows, k, n_in)``, ``ids`` ``(rows, k)``, None = slot
    s through matrix s; gives ``(rows, k, n_out)``."""
    f = ffi()
    step = f.new("ggfw_step *")
    step.op = MOE_LINEAR
    n_rows, k = ids.shape if ids is not None else x.shape[:2]
    weight = matrices.weights[0]
    step.weight[0] = weight
    params = step.params.moe
    params.n_expert, params.n_used = matrices.n_expert, k
    params.per_slot_input = int(x.ndim == 3)
    if bias is not None:
        params.bias = pointer(bias, "float *")
    if expert_scale is not None:
        params.expert_scale = pointer(expert_scale, "float *")
    arena = Arena()
    raw, kind = input_rows(matrices.name, x.reshape(-1, matrices.n_in))
    raw = raw.reshape(n_rows, -1)
    out = np.full((n_rows, k * weight.n_out), np.nan, np.float32)
    views = [
        (getattr(step, "in")[0], arena.add(raw, kind, x[0].size)),
        (step.out[0], arena.add(out, F32, k * weight.n_out)),
    ]
    if ids is not None:
        views.append((getattr(step, "in")[1], arena.add(ids, 1, k)))
    for target, view in views:
        for key, value in view.items():
            setattr(target, key, value)
    memory = arena.build()
    run_chunks(matrices, step, memory, n_rows, n_threads=n_threads, prefetch=1024, shuffle=shuffle)
    return read(memory, views[1][1], n_rows).reshape(n_rows, k, -1)


def softcapped(y: NDArray[np.float64], cap: float) -> NDArray[np.float64]:
    return cap * np.tanh(y / cap) if cap else y


def ceil_div(a: int, b: int) -> int:
    return math.ceil(a / b)

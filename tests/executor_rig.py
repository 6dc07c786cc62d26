"""Hand-made plans for the native executor: buffers in an arena, steps with one unit's kernels, ragged batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ggfw.execute.kernel_set import NO_FORMAT, OPS
from ggfw.execute.kv_types import GROUP, KV_TYPES, decode_groups, encode_groups, kv_row_bytes
from ggfw.execute.library import kernel_library, native
from ggfw.registry import default_registry

N = native()
ffi, lib = N.ffi, N.lib

F32, I32, Q8 = 0, 1, 2
ROWS, OUTPUTS, SEQUENCES = 0, 1, 2
DECODE, PROMPT = 1, 2
KV_F32, KV_F16, KV_BF16, KV_Q8_0, KV_Q4_0 = range(5)
KV_NAMES = list(KV_TYPES)

#: The units that run here, best first; without those that bring some products alone.
UNITS = [
    descriptor.name
    for descriptor in default_registry().backends()
    if (OPS["norm"], NO_FORMAT) in kernel_library(descriptor).kernels
]


def kernels_of(unit: str) -> dict[tuple[int, int], list[Any]]:
    """All kernels of a unit by (op, format)."""
    return kernel_library(default_registry().backend(unit)).kernels


def align(n: int) -> int:
    return -(-n // 64) * 64


def q8_row_bytes(n: int) -> int:
    return align(align(n) + n // 16 * 8 + n // 32 * 4)


@dataclass
class View:
    """A tensor of the arena: ``rows`` rows of ``width`` elements."""

    offset: int
    stride: int
    width: int
    type: int = F32

    def columns(self, begin: int, width: int) -> View:
        return View(self.offset + 4 * begin, self.stride, width, self.type)


@dataclass
class Part:
    """A segment: rows of one sequence."""

    n_rows: int
    position: int = 0
    prompt: bool = False
    n_outputs: int = 0
    tables: Sequence[Sequence[int]] = ()  # page ids per pool
    state: tuple[int, int] = (-1, 0)


class Rig:
    """A plan under construction, then its executor. Close it (or use ``with``)."""

    def __init__(self, unit: str, *, max_rows: int = 64, max_outputs: int = 64, threads: int = 2) -> None:
        self.kernels = kernels_of(unit)
        self.max_rows, self.max_outputs = max_rows, max_outputs
        self.bytes = 0
        self.steps: list[dict[str, Any]] = []
        self.pools: list[dict[str, Any]] = []
        self.states: list[np.ndarray] = []
        self.kept: list[Any] = []
        self.executor: Any = None
        self.batch: Any = None
        assert lib.ggfw_threads_set(threads, 100) == 0

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        if self.executor is not None:
            lib.ggfw_executor_free(self.executor)
            self.executor = None

    # -- the plan ------------------------------------------------------------------------------------------------

    def buffer(self, width: int, type: int = F32, rows: int | None = None) -> View:
        stride = q8_row_bytes(width) if type == Q8 else align(4 * width)
        view = View(self.bytes, stride, width, type)
        self.bytes += stride * (rows or max(self.max_rows, self.max_outputs))
        return view

    def keep(self, array: Any, dtype: Any = np.float32) -> Any:
        """A pointer to constants that live as long as the rig."""
        array = np.ascontiguousarray(array, dtype)
        pointer = ffi.from_buffer("float[]" if dtype == np.float32 else "int32_t[]", array)
        self.kept += [array, pointer]
        return pointer

    def pool(self, *, n_pages: int, page_size: int = 16, n_head_kv: int = 1, d_k: int = 16, d_v: int | None = None,
             n_layers: int = 1, type: int = KV_F32) -> int:  # fmt: skip
        d_v = d_k if d_v is None else d_v
        name = KV_NAMES[type]
        k_bytes, v_bytes = (kv_row_bytes(name, d) for d in (d_k, d_v))
        k = np.zeros((n_layers, n_pages, n_head_kv, page_size * k_bytes), np.uint8)
        v = np.zeros((n_layers, n_pages, n_head_kv, page_size * v_bytes), np.uint8)
        if type <= KV_BF16:  # rows of elements: one axis each
            dtype = np.float32 if type == KV_F32 else np.uint16
            k, v = (a.view(dtype).reshape(*a.shape[:3], page_size, -1) for a in (k, v))
        self.pools.append(
            {"k": k, "v": v, "n_layers": n_layers, "n_pages": n_pages, "page_size": page_size, "type": type,
             "n_head_kv": n_head_kv, "d_k": d_k, "d_v": d_v,
             "k_page_bytes": n_head_kv * page_size * k_bytes,
             "v_page_bytes": n_head_kv * page_size * v_bytes}
        )  # fmt: skip
        return len(self.pools) - 1

    def state(self, n_slots: int, n_floats: int) -> int:
        """A recurrent state: slots of NaN, so that what is read without having been written shows."""
        self.states.append(np.full((n_slots, n_floats), np.nan, np.float32))
        return len(self.states) - 1

    def step(self, op: str, inputs: Sequence[View | None] = (), outputs: Sequence[View | None] = (), *,
             union: str = "", params: dict[str, Any] | None = None, domain: int = ROWS, needed_for: int = 0,
             weight: Any = None, kernel: Any = None) -> None:  # fmt: skip
        self.steps.append({"op": op, "in": inputs, "out": outputs, "union": union, "params": params or {},
                           "domain": domain, "needed_for": needed_for, "weight": weight, "kernel": kernel})  # fmt: skip

    def start(self) -> Rig:
        """Make the executor; further steps are not possible."""
        steps = ffi.new("ggfw_step[]", max(len(self.steps), 1))
        for target, step in zip(steps, self.steps, strict=False):
            target.op, target.domain, target.needed_for = OPS[step["op"]], step["domain"], step["needed_for"]
            for views, places in ((step["in"], getattr(target, "in")), (step["out"], target.out)):
                for i, view in enumerate(views):
                    if view is not None:
                        places[i].offset, places[i].stride = view.offset, view.stride
                        places[i].width, places[i].type = view.width, view.type
            for name, value in step["params"].items():
                setattr(getattr(target.params, step["union"]), name, value)
            if step["weight"] is not None:
                target.weight[0] = step["weight"]
            if step["kernel"] is not None:
                target.decode, target.prompt = step["kernel"]
            elif step["op"] != "sample":
                found = self.kernels[OPS[step["op"]], -1]
                target.decode = next(k for k in found if k.row_classes & DECODE)
                target.prompt = next(k for k in found if k.row_classes & PROMPT)
        pools = ffi.new("ggfw_pool[]", max(len(self.pools), 1))
        for target, pool in zip(pools, self.pools, strict=False):
            for name, value in pool.items():
                setattr(target, name, ffi.from_buffer("uint8_t *", value) if name in "kv" else value)
        states = ffi.new("ggfw_state[]", max(len(self.states), 1))
        for target, state in zip(states, self.states, strict=False):
            target.data, target.n_slots, target.slot_floats = ffi.from_buffer("float *", state), *state.shape
        self.kept += [steps, pools, states]
        self.executor = lib.ggfw_executor_new(
            steps, len(self.steps), self.bytes, self.max_rows, self.max_outputs, pools, len(self.pools),
            states, len(self.states), 2048,
        )  # fmt: skip
        assert self.executor != ffi.NULL, "the executor refused the plan"
        return self

    # -- data ----------------------------------------------------------------------------------------------------

    def bytes_of(self, view: View, n_rows: int) -> np.ndarray:
        """(n_rows, stride) uint8, writable."""
        base = lib.ggfw_executor_arena(self.executor) + view.offset
        size = view.stride * (n_rows - 1) + (q8_row_bytes(view.width) if view.type == Q8 else 4 * view.width)
        flat = np.frombuffer(ffi.buffer(base, size), np.uint8)
        width = size - view.stride * (n_rows - 1)
        return np.lib.stride_tricks.as_strided(flat, (n_rows, width), (view.stride, 1))

    def write(self, view: View, values: np.ndarray) -> None:
        dtype = np.int32 if view.type == I32 else np.float32
        values = np.ascontiguousarray(values, dtype).reshape(len(values), view.width)
        self.bytes_of(view, len(values))[:] = values.view(np.uint8)

    def read(self, view: View, n_rows: int) -> np.ndarray:
        dtype = np.int32 if view.type == I32 else np.float32
        return np.ascontiguousarray(self.bytes_of(view, n_rows)).view(dtype).copy()

    def read_q8(self, view: View, n_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q (rows, n) int8, d (rows, n / 16), sum (rows, n / 16)."""
        raw, n = np.ascontiguousarray(self.bytes_of(view, n_rows)), view.width
        at = align(n)
        d = raw[:, at : at + n // 4].copy().view(np.float32)
        return (
            raw[:, :n].view(np.int8).copy(),
            d,
            raw[:, at + n // 4 : at + n // 2].copy().view(np.int32),
        )

    # -- running -------------------------------------------------------------------------------------------------

    def make_batch(
        self, parts: Sequence[Part], *, tokens: Any = None, embeddings: Any = None, wants: int = 0
    ) -> Any:
        """A ``ggfw_batch *``; decode parts first, as the contract asks."""
        assert all(a.prompt <= b.prompt for a, b in zip(parts, parts[1:], strict=False))
        keep: dict[str, Any] = {}
        batch = ffi.new("ggfw_batch *")
        segments = ffi.new("ggfw_segment[]", max(len(parts), 1))
        positions, row_segment, output_rows, pages = [], [], [], []
        for i, part in enumerate(parts):
            s = segments[i]
            s.row, s.n_rows, s.position = len(positions), part.n_rows, part.position
            s.row_class = PROMPT if part.prompt else DECODE
            s.state_read, s.state_write = part.state
            s.output, s.n_outputs = (len(output_rows) if part.n_outputs else -1), part.n_outputs
            positions += range(part.position, part.position + part.n_rows)
            row_segment += [i] * part.n_rows
            output_rows += range(len(positions) - part.n_outputs, len(positions))
            for p, table in enumerate(part.tables):
                s.table[p] = len(pages)
                pages += table
        decode = [p for p in parts if not p.prompt]
        batch.n_rows, batch.n_decode_rows = len(positions), sum(p.n_rows for p in decode)
        batch.n_segments, batch.segments = len(parts), segments
        batch.n_outputs, batch.n_decode_outputs = len(output_rows), sum(p.n_outputs for p in decode)
        batch.wants = wants
        for name, values in (("positions", positions), ("row_segment", row_segment),
                             ("output_rows", output_rows), ("pages", pages), ("tokens", tokens)):  # fmt: skip
            if values is not None:
                keep[name] = np.asarray(values, np.int32)
                setattr(batch, name, ffi.from_buffer("int32_t *", keep[name]))
        batch.n_pages = len(pages)
        if embeddings is not None:
            keep["embeddings"] = np.ascontiguousarray(embeddings, np.float32)
            batch.embeddings = ffi.from_buffer("float *", keep["embeddings"])
        self.batch, self.kept_batch = batch, (keep, segments)
        return batch

    def run(self, parts: Sequence[Part], *, first: int = 0, last: int = -1, **kw: Any) -> int:
        """Run the plan; returns the status."""
        return int(lib.ggfw_executor_run(self.executor, self.make_batch(parts, **kw), first, last))


@dataclass
class Pages:
    """Hands out shuffled pages, so that neighbours in a sequence are never neighbours in memory."""

    n_pages: int
    page_size: int = 16
    seed: int = 0
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = list(np.random.default_rng(self.seed).permutation(self.n_pages))

    def take(self, n_positions: int) -> list[int]:
        return [int(self.free.pop()) for _ in range(-(-n_positions // self.page_size))]


def to_bf16(x: np.ndarray) -> np.ndarray:
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32)


def encode_kv(x: np.ndarray, type: int) -> np.ndarray:
    x = np.asarray(x, np.float32)
    return x if type == KV_F32 else x.astype(np.float16).view(np.uint16) if type == KV_F16 else to_bf16(x)


def decode_kv(x: np.ndarray, type: int) -> np.ndarray:
    return x if type == KV_F32 else x.view(np.float16).astype(np.float32) if type == KV_F16 else from_bf16(x)


def fill_pages(cache: np.ndarray, table: Sequence[int], x: np.ndarray, type: int) -> None:
    """Write positions 0 … of x (n, n_head_kv, d) into one layer (n_pages, n_head_kv, …); NaN up to the group's end."""
    n, n_kv, d = x.shape
    padded = np.full((n_kv, -(-n // GROUP) * GROUP, d), np.nan, np.float32)
    padded[:, :n] = x.transpose(1, 0, 2)
    groups = encode_groups(padded, KV_NAMES[type])  # (n_kv, groups, bytes)
    pages = cache.view(np.uint8).reshape(*cache.shape[:2], -1, groups.shape[-1])
    per_page = pages.shape[2]
    for i in range(groups.shape[1]):
        pages[table[i // per_page], :, i % per_page] = groups[:, i]


def rounded(x: np.ndarray, type: int) -> np.ndarray:
    """x (n, n_head_kv, d) as the cache keeps it."""
    padded = np.zeros((x.shape[1], -(-len(x) // GROUP) * GROUP, x.shape[2]), np.float32)
    padded[:, : len(x)] = x.transpose(1, 0, 2)
    kept = decode_groups(encode_groups(padded, KV_NAMES[type]), KV_NAMES[type], x.shape[2])
    return kept[:, : len(x)].transpose(1, 0, 2)

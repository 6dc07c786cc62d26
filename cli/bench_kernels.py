"""``ggfw bench MODEL --kernels``: each matrix of one layer, the embedding row and the output projection, by itself.

A matrix runs as it does in a model: packed, by the executor, on all threads, with one row. So that it comes from where
a model's weights come from, copies of it run one after the other, more than caches of the second level hold; beside
them stands what plainly reading as many bytes takes on as many threads. What is computed is compared with float64. A
kernel that is faster than reading its bytes has been measured wrongly, or skips some: that is an error.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ggfw import quants
from ggfw.cli import terminal
from ggfw.errors import GenerationError, InvalidRequest
from ggfw.execute.batch import Batch, Segment, Wants
from ggfw.execute.kernel_set import KernelSet
from ggfw.execute.native import NativeExecutor
from ggfw.gguf import GGUF, gguf_bytes
from ggfw.graph.builder import Graph
from ggfw.graph.weights import WeightRef
from ggfw.threads import default_threads

if TYPE_CHECKING:
    from ggfw.gguf import TensorInfo

__all__ = ["measure_kernels", "print_kernels"]

#: Bytes that the copies of a matrix have together, and how many copies there are at most.
WORKING_SET = 64 << 20
MOST_COPIES = 64
#: Largest relative error of a product: activations have 15 bits; with int8 they have 7.
BOUNDS = {"int16": 2e-3, "f32": 2e-3, "int8": 3e-2}
#: Times that a plain read goes over its bytes, so that waking threads does not count.
_PASSES = 4
#: Noise of the clock, above which "faster than a plain read" is meant.
NOISE = 1.1
#: How often bytes are read again that a kernel seems to have outrun.
READ_AGAIN = 3


def measure_kernels(
    path: Path, loading: dict[str, Any], *, layer: int = 0, repeat: int = 25
) -> dict[str, Any]:
    """Measure the kernels that a file's matrices use; returns the object of ``--json``.

    Args:
        path: of the model.
        loading: options of loading: ``backend``, ``threads``, ``activations``.
        layer: whose matrices.
        repeat: measurements of each, of which the median counts.

    Raises:
        InvalidRequest: there is no such layer.
        GenerationError: a product is wrong, or faster than its bytes can be read.
    """
    threads = loading.get("threads") or default_threads()
    activations = loading.get("activations") or "int16"
    kernels = KernelSet(loading.get("backend"), activations=activations)
    with GGUF.open(path) as gguf:
        picked = _picked(gguf, layer)
        bandwidth: dict[int, float] = {}
        rows = [_embedding(gguf, kernels, threads, repeat)]
        for name, tensor in picked:
            rows.append(_matrix(name, tensor, kernels, threads, repeat, BOUNDS[activations], bandwidth))
        facts = {
            "path": str(path),
            "name": gguf.get("general.name") or path.stem,
            "arch": gguf.architecture,
            "dim": gguf.arch_get("embedding_length"),
            "hidden_dim": _plain(gguf.arch_get("feed_forward_length")),
            "layers": gguf.arch_get("block_count"),
        }
    return {
        "type": "ggfw.kernel_benchmark",
        "format": "llm-kernel-bench.v1",
        "runtime": {
            "name": "ggfw",
            "backend": kernels.name,
            "threads": threads,
            "activations": activations,
        },
        "model": facts,
        "layer": layer,
        "runs": repeat,
        "kernels": [row for row in rows if row is not None],
    }


def _plain(value: Any) -> Any:
    """Values that differ by layer as a list."""
    return value.list() if hasattr(value, "list") else value


def _picked(gguf: GGUF, layer: int) -> list[tuple[str, TensorInfo]]:
    """The matrices of a layer and the output projection, by their short names."""
    prefix = f"blk.{layer}."
    found = [
        (name.removeprefix(prefix).removesuffix(".weight"), tensor)
        for name, tensor in gguf.tensors.items()
        if name.startswith(prefix) and name.endswith(".weight") and len(tensor.shape) in (2, 3)
    ]
    if not found:
        raise InvalidRequest(f"the file has no matrices of layer {layer}; --layer names one", "layer")
    found = [(name, tensor) for name, tensor in found if min(tensor.shape[-2:]) > 8]  # no convolutions
    output = gguf.tensors.get("output.weight") or gguf.tensors.get("token_embd.weight")
    return found + ([("output", output)] if output is not None else [])


def _matrix(
    name: str,
    tensor: TensorInfo,
    kernels: KernelSet,
    threads: int,
    repeat: int,
    bound: float,
    bandwidth: dict[int, float],
) -> dict[str, Any]:
    """Time one matrix; of experts, the first."""
    n_out, n_in = tensor.shape[-2:]
    n_bytes = quants.row_bytes(tensor.ggml_type, n_in) * n_out
    data = np.asarray(tensor.data).reshape(-1).view(np.uint8)[:n_bytes]
    copies = max(1, min(MOST_COPIES, -(-WORKING_SET // n_bytes)))
    table = np.random.default_rng(1).standard_normal((4, n_in), np.float32)
    ref = tensor.ggml_type
    file = GGUF.open(
        gguf_bytes(
            {"general.architecture": "kernel"},
            [
                ("token_embd.weight", table),
                *((f"m{i}.weight", (data.tobytes, (n_out, n_in), ref)) for i in range(copies)),
            ],
        )
    )
    graph = Graph()
    x = graph.embed(WeightRef("token_embd.weight", table.shape, 0))
    y = graph.linear(x, WeightRef("m0.weight", (n_out, n_in), ref))
    for i in range(1, copies):
        y = graph.add(y, graph.linear(x, WeightRef(f"m{i}.weight", (n_out, n_in), ref)))
    with file:
        times, made = _timed(graph, file, kernels, threads, repeat, "linear")
    seconds = statistics.median(times) / copies
    wanted = copies * (quants.dequantize(tensor.ggml_type, data, (n_out, n_in)).astype(np.float64) @ table[1])
    error = float(np.abs(made - wanted).max() / max(np.abs(wanted).max(), 1e-30))
    if not error <= bound:
        raise GenerationError(
            f"{name}: the product of {n_out} x {n_in} {tensor.type_name} is off by {error:.1e} of {bound:.0e}"
        )
    total = copies * n_bytes
    if total not in bandwidth:
        bandwidth[total] = _plain_read(total, threads, repeat)
    speed = n_bytes / seconds / 1e9
    for _ in range(READ_AGAIN):
        if speed <= bandwidth[total] * NOISE:
            break
        # Somebody else may have had the memory while it was read; the bound is what the machine can do.
        bandwidth[total] = max(bandwidth[total], _plain_read(total, threads, repeat))
    plain = bandwidth[total]
    if speed > plain * NOISE:
        raise GenerationError(
            f"{name}: {speed:.1f} GB/s is faster than a plain read of as many bytes ({plain:.1f} GB/s); the machine "
            "was busy, or the kernel skips some: measure again"
        )
    return {
        "name": name,
        "dtype": tensor.type_name,
        "rows": n_out,
        "cols": n_in,
        "runs": repeat,
        "avg_ms": statistics.mean(times) / copies * 1e3,
        "median_ms": seconds * 1e3,
        "total_ms": sum(times) / copies * 1e3,
        "gb_per_second": speed,
        "gmac_per_second": n_out * n_in / seconds / 1e9,
        "plain_read_gb_per_second": plain,
        "error": error,
        "copies": copies,
    }


def _embedding(gguf: GGUF, kernels: KernelSet, threads: int, repeat: int) -> dict[str, Any] | None:
    """Time the look-up of one embedding row; None for a file without a table of tokens."""
    tensor = gguf.tensors.get("token_embd.weight")
    if tensor is None or len(tensor.shape) != 2:
        return None
    n_cols = tensor.shape[1]
    n_bytes = quants.row_bytes(tensor.ggml_type, n_cols)
    graph = Graph()
    graph.embed(WeightRef(tensor.name, tensor.shape, tensor.ggml_type))
    row = np.asarray(tensor.data).reshape(-1).view(np.uint8)[n_bytes : 2 * n_bytes]
    times, made = _timed(graph, gguf, kernels, threads, repeat, "embed")
    wanted = quants.dequantize(tensor.ggml_type, row, (n_cols,))
    if not np.allclose(made, wanted, rtol=1e-3, atol=1e-6):
        raise GenerationError(f"the embedding row of {tensor.type_name} is not what the file says")
    seconds = statistics.median(times)
    return {
        "name": "token_embd (row)",
        "dtype": tensor.type_name,
        "rows": 1,
        "cols": n_cols,
        "runs": repeat,
        "avg_ms": statistics.mean(times) * 1e3,
        "median_ms": seconds * 1e3,
        "total_ms": sum(times) * 1e3,
        "gb_per_second": n_bytes / seconds / 1e9,
        "gmac_per_second": 0.0,
        "plain_read_gb_per_second": None,
        "error": float(np.abs(made - wanted).max()),
        "copies": 1,
    }


def _timed(
    graph: Graph, file: GGUF, kernels: KernelSet, threads: int, repeat: int, operation: str
) -> tuple[list[float], np.ndarray]:
    """Run a graph without a cache; returns (seconds of its steps of an operation per run, its output of one row)."""
    from ggfw.cache import Cache

    out = graph.nodes[-1].outputs[0]
    graph.output(hidden=graph.select_outputs(out))
    cache = Cache([], 1 << 16)
    executor = NativeExecutor(graph, file, cache, kernels=kernels, max_rows=1, threads=threads, fuse=False)
    try:
        sequence = cache.sequence()
        sequence.reserve(repeat + 3)

        def step() -> np.ndarray:
            result = executor.step(Batch([Segment(sequence, [1])], Wants.HIDDEN))
            assert result.hidden is not None
            return np.array(result.hidden[0])

        for _ in range(2):
            made = step()
        times = []
        executor.profile(True)
        before = 0
        for _ in range(repeat):
            made = step()
            spent = sum(ns for what, ns in executor.timings() if what.split()[0].startswith(operation))
            times.append((spent - before) / 1e9)
            before = spent
        sequence.close()
    finally:
        executor.close()
    return times, made


def _plain_read(n_bytes: int, threads: int, repeat: int) -> float:
    """GB/s of reading so many bytes with as many threads: the fastest of the runs, since noise only slows."""
    data = np.ones(max(n_bytes // 8, threads), np.uint64)
    parts = np.array_split(data, threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(max(3, min(repeat, 15))):
            begin = time.perf_counter()
            list(pool.map(_read, parts))
            best = max(best, _PASSES * data.nbytes / (time.perf_counter() - begin) / 1e9)
    return best


def _read(part: np.ndarray) -> None:
    for _ in range(_PASSES):
        part.max()


def print_kernels(found: dict[str, Any]) -> None:
    """Print the table."""
    runtime, model = found["runtime"], found["model"]
    print(
        f"{model['name']}, layer {found['layer']}: backend {runtime['backend']}, {runtime['threads']} threads, "
        f"activations {runtime['activations']}"
    )
    terminal.print_table(
        ["kernel", "type", "rows", "cols", "us", "GB/s", "plain read", "GMAC/s"],
        [
            [
                row["name"],
                row["dtype"],
                str(row["rows"]),
                str(row["cols"]),
                f"{row['median_ms'] * 1e3:.1f}",
                f"{row['gb_per_second']:.2f}",
                f"{row['plain_read_gb_per_second']:.2f}" if row["plain_read_gb_per_second"] else "",
                f"{row['gmac_per_second']:.1f}",
            ]
            for row in found["kernels"]
        ],
    )

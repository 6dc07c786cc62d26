"""Comparing the native steps of a model with the reference, one by one, and then running free.

Each native step gets the reference's inputs (and its routing), so an error is found where it arises and not where it
has grown; activations that a kernel takes as int8 are quantised first, and the oracle multiplies those same int8
values exactly.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ggfw.cache import Cache
from ggfw.errors import InvalidRequest
from ggfw.execute.batch import Batch, Segment, Wants
from ggfw.execute.kernel_set import KernelSet
from ggfw.execute.native import NativeExecutor
from ggfw.execute.q8 import dequantise_rows, quantise_rows
from ggfw.execute.reference import ReferenceExecutor
from ggfw.execute.reference_ops import REFERENCE
from ggfw.gguf import GGUF
from ggfw.graph.architecture import RunConfig
from ggfw.graph.plan import Q8, Step, View
from ggfw.graph.tensor import Tensor
from ggfw.model import Described
from ggfw.registry import default_registry
from ggfw.threads import default_threads

__all__ = ["FreeRun", "StepCheck", "Verification", "trace", "verify"]

#: Ops whose results are columns of their input.
VIEWS = ("reshape", "split")

#: Largest relative L2 error of a step whose arithmetic is float32 throughout.
FLOAT_BOUND = 1e-5
#: Of int8 products against the exact product of the same int8 activations: weights are exact, sums are float32.
INT8_BOUND = 1e-4
#: Of attention, by cache type: K and V are rounded once.
CACHE_BOUND = {"f32": 1e-5, "f16": 2e-3, "bf16": 1.5e-2}
#: Of int8 experts, whose oracle is the unquantised product.
INT8_EXPERT_BOUND = 3e-2


@dataclass(frozen=True)
class StepCheck:
    """One native step against the reference: relative L2 error of its worst output, and the bound for its op."""

    index: int
    step: str
    error: float
    bound: float

    @property
    def ok(self) -> bool:
        """Whether the error is within the bound (NaN is not)."""
        return bool(self.error <= self.bound)


@dataclass(frozen=True)
class FreeRun:
    """Native logits of a free run against the reference's: largest difference, mean KL (nats), share of equal top-1."""

    max_abs: float
    mean_kl: float
    top1_same: float


@dataclass
class Verification:
    """What :func:`verify` found."""

    backend: str
    kv_type: str
    n_tokens: int
    steps: list[StepCheck] = field(default_factory=list)
    free_run: FreeRun | None = None

    @property
    def first_bad(self) -> StepCheck | None:
        """The first step beyond its bound."""
        return next((s for s in self.steps if not s.ok), None)

    @property
    def ok(self) -> bool:
        """Whether every step is within its bound."""
        return self.first_bad is None


class _Observed:
    """The reference's value of every tensor for one prompt."""

    def __init__(self, described: Described, ids: list[int], n_ctx: int) -> None:
        self.arrays: dict[Tensor, np.ndarray] = {}
        cache = _cache(described, n_ctx)
        executor = ReferenceExecutor(
            described.graph, described.layout, described.gguf, cache, max_rows=len(ids)
        )
        executor.observe = self.arrays.__setitem__
        executor.step(Batch([Segment(cache.sequence(), ids, len(ids), True)], Wants.LOGITS | Wants.HIDDEN))
        self.weights = executor.weights


def _cache(described: Described, n_ctx: int) -> Cache:
    return Cache(described.layout.pools, n_ctx, 1 if described.layout.states else 0)


def _prepare(
    path: str | os.PathLike[str] | bytes, ids: list[int], kv_type: str, ctx: int | None
) -> tuple[GGUF, Described, int]:
    if not ids:
        raise InvalidRequest("no token ids were given; at least one is needed", "ids")
    gguf = GGUF.open(path)
    n_ctx = max(ctx or 64, len(ids) + 32)
    return gguf, Described(gguf, RunConfig(n_ctx, kv_type), default_registry()), n_ctx


def verify(
    path: str | os.PathLike[str] | bytes,
    ids: list[int],
    *,
    backend: str | None = None,
    kv_type: str = "f32",
    threads: int | None = None,
    ctx: int | None = None,
) -> Verification:
    """Check every native step against the reference, then a free run.

    Args:
        path: model file, or its bytes.
        ids: prompt tokens.
        backend: kernel backend; None = the best one here.
        kv_type: cache element type of the native run.
        ctx: context per sequence, on which some graphs depend; None = enough for the prompt.
    """
    gguf, described, n_ctx = _prepare(path, ids, kv_type, ctx)
    with gguf:
        observed = _Observed(described, ids, n_ctx)
        cache = _cache(described, n_ctx)
        executor = NativeExecutor(
            described.graph,
            gguf,
            cache,
            kernels=KernelSet(backend),
            kv_type=kv_type,
            max_rows=len(ids),
            threads=threads or default_threads(),
            keep_all=True,
        )
        result = Verification(executor.name, kv_type, len(ids))
        batch = Batch([Segment(cache.sequence(), ids, len(ids), True)], Wants.LOGITS | Wants.HIDDEN)
        executor.prepare(batch)
        native = [step for step in executor.plan.steps if step.node is None and step.op != "sample"]
        for index, step in enumerate(native):
            _feed(executor, step, observed, len(ids))
            executor.run_steps(index, index + 1)
            if step.produces:
                result.steps.append(_check(executor, index, step, observed, kv_type, len(ids)))
        if described.graph.logits is not None:
            logits = executor.step(batch).logits
            assert logits is not None
            result.free_run = _free_run(observed.arrays[described.graph.logits], logits)
        executor.close()
        return result


def _feed(executor: NativeExecutor, step: Step, observed: _Observed, n: int) -> None:
    """Put the reference's values into the step's inputs."""
    for tensor, view in step.consumes:
        if tensor not in observed.arrays:
            continue  # a NumPy op's intermediate
        array = observed.arrays[tensor].reshape(n, -1)
        if view.type == Q8:
            executor.raw(view, n)[:] = _as_q8(array, view)
        else:
            executor.array(view, n)[:] = array


def _as_q8(array: np.ndarray, view: View) -> np.ndarray:
    """Quantise rows that consist of one or more slots (experts' inputs)."""
    n = array.shape[1]
    slots = 1
    while view.buffer.row_bytes != slots * quantise_rows(np.zeros((1, n // slots), np.float32)).shape[1]:
        slots += 1
        while n % slots or n // slots % 32:
            slots += 1
    return quantise_rows(array.reshape(-1, n // slots)).reshape(len(array), -1)


def _check(
    executor: NativeExecutor, index: int, step: Step, observed: _Observed, kv_type: str, n: int
) -> StepCheck:
    bound = _bound(step, kv_type)
    worst = 0.0
    for part, (tensor, view) in enumerate(step.produces):
        want = observed.arrays[tensor].reshape(n, -1)
        if step.op == "linear" and step.consumes[0][1].type == Q8:
            want = _int8_product(step, part, observed, n)
        got = executor.array(view, n)
        if tensor.integer:
            worst = max(worst, float((got != want).mean()))
            continue
        norm = float(np.linalg.norm(want.astype(np.float64))) or 1.0
        error = float(np.linalg.norm(got.astype(np.float64) - want)) / norm
        worst = error if not error <= worst else worst
    return StepCheck(index, step.describe(), worst, bound)


def _bound(step: Step, kv_type: str) -> float:
    if step.op == "attention":
        return CACHE_BOUND[kv_type]
    if any(view.type == Q8 for _, view in step.consumes):
        return INT8_BOUND if step.op == "linear" else INT8_EXPERT_BOUND
    return FLOAT_BOUND


def _int8_product(step: Step, part: int, observed: _Observed, n: int) -> np.ndarray:
    """The exact product of the activations as the kernel takes them."""
    params: dict[str, Any] = step.params
    x, residual = step.consumes[0][0], step.consumes[1:]
    rows = observed.arrays[x].reshape(n, -1)
    activations = dequantise_rows(quantise_rows(rows), rows.shape[1])
    ref = step.weights[part]
    y = activations.astype(np.float64) @ observed.weights.tensor(ref).astype(np.float64).T
    if params["bias"][part] is not None:
        y += observed.weights.tensor(params["bias"][part]).reshape(-1)
    y *= params["scale"]
    if params["softcap"]:
        y = params["softcap"] * np.tanh(y / params["softcap"])
    if residual:
        y += observed.arrays[residual[part][0]].reshape(n, -1)
    return y


def _free_run(want: np.ndarray, got: np.ndarray) -> FreeRun:
    def log_softmax(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64) - x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    p, q = log_softmax(want), log_softmax(got)
    kl = (np.exp(p) * (p - q)).sum(-1)
    same = (want.argmax(-1) == got.argmax(-1)).mean()
    return FreeRun(float(np.abs(want - got).max()), float(kl.mean()), float(same))


def trace(
    path: str | os.PathLike[str] | bytes,
    ids: list[int],
    *,
    backend: str | None = None,
    kv_type: str = "f32",
    threads: int | None = None,
    ctx: int | None = None,
) -> dict[str, np.ndarray]:
    """Return every named tensor of a prompt's run, (T, *row) float32, by name; fusions that hide tensors are off.

    Args:
        backend: kernel backend, or "reference"; None = the best one here.
        ctx: context per sequence, on which some graphs depend; None = enough for the prompt.
    """
    gguf, described, n_ctx = _prepare(path, ids, kv_type, ctx)
    with gguf:
        if backend == "reference":
            return {tensor.name: array for tensor, array in _Observed(described, ids, n_ctx).arrays.items()}
        cache = _cache(described, n_ctx)
        executor = NativeExecutor(
            described.graph,
            gguf,
            cache,
            kernels=KernelSet(backend),
            kv_type=kv_type,
            max_rows=len(ids),
            threads=threads or default_threads(),
            fuse=False,
            keep_all=True,
        )
        segment = Segment(cache.sequence(), ids, len(ids), True)
        executor.step(Batch([segment], Wants.LOGITS | Wants.HIDDEN))
        result = {
            tensor.name: executor.array(view, len(ids)).reshape(len(ids), *tensor.shape).copy()
            for step in executor.plan.steps
            for tensor, view in step.produces
        }
        for node in described.graph.nodes:  # parts of other tensors stand in no step
            if node.op in VIEWS and node.inputs[0].name in result:
                parts = REFERENCE[node.op](None, node, result[node.inputs[0].name])
                parts = parts if isinstance(parts, tuple) else (parts,)
                result.update((t.name, part) for t, part in zip(node.outputs, parts, strict=True))
        executor.close()
        return result

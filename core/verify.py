"""Comparing the native steps of a model with the reference, one by one, and then running free.

Each native step gets the reference's inputs (and its routing), so an error is found where it arises and not where it
has grown; activations that a kernel takes as integers are quantised first, and the oracle multiplies those same integer
values exactly.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np

from ggfw.cache import Cache
from ggfw.errors import ContextLengthExceeded, InvalidRequest
from ggfw.execute.batch import Batch, Segment, StepResult, Wants
from ggfw.execute.kernel_set import KernelSet
from ggfw.execute.native import NativeExecutor
from ggfw.execute.q8 import dequantise_rows, quantise_rows
from ggfw.execute.reference import ReferenceExecutor
from ggfw.execute.reference_ops import REFERENCE
from ggfw.gguf import GGUF
from ggfw.graph.architecture import RunConfig
from ggfw.graph.builder import Graph
from ggfw.graph.plan import Q8, Q16, Step, View
from ggfw.graph.tensor import SEQUENCES, Tensor
from ggfw.graph.weights import WeightRef
from ggfw.model import Described
from ggfw.records import dataclass
from ggfw.registry import default_registry
from ggfw.threads import default_threads

__all__ = ["FreeRun", "StepCheck", "Verification", "trace", "verify"]

#: What a step is asked for.
EVERYTHING = Wants.LOGITS | Wants.HIDDEN | Wants.POOLED
#: Ops whose results are columns of their input.
VIEWS = ("reshape", "split")

#: Largest relative L2 error of a step whose arithmetic is float32 throughout.
FLOAT_BOUND = 1e-5
#: Of integer products against the exact product of the same quantised activations: weights are exact, sums are float32.
ROUNDED_BOUND = 1e-4
#: Of attention, by cache type: K and V are rounded once.
CACHE_BOUND = {"f32": 1e-5, "f16": 2e-3, "bf16": 1.5e-2, "q8_0": 3e-2, "q4_0": 0.3}


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
    """Native outputs of a free run against the reference's.

    Attributes:
        max_abs: largest difference of the logits; of the hidden states where a model has no logits.
        mean_kl: mean KL of the logits in nats, None without logits.
        top1_same: share of positions with the same best token, None without logits.
    """

    max_abs: float
    mean_kl: float | None = None
    top1_same: float | None = None


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
        executor.step(Batch([Segment(cache.sequence(), ids, len(ids), True)], EVERYTHING))
        self.weights = executor.weights

    def tensor(self, ref: WeightRef) -> np.ndarray:
        """Return a tensor of the file; with the next two what products of the reference ask of their step."""
        return self.weights.tensor(ref)

    def vector(self, ref: WeightRef) -> np.ndarray:
        """Return a tensor of the file as one axis."""
        return self.tensor(ref).reshape(-1)

    def expert(self, ref: WeightRef, expert: int) -> np.ndarray:
        """Return one expert's matrix."""
        return self.tensor(ref)[expert]


def _cache(described: Described, n_ctx: int) -> Cache:
    return Cache(described.layout.pools, n_ctx, 1 if described.layout.states else 0)


def _prepare(
    path: str | os.PathLike[str] | bytes, ids: list[int], kv_type: str, ctx: int | None
) -> tuple[GGUF, Described, int]:
    if not ids:
        raise InvalidRequest("no token ids were given; at least one is needed", "ids")
    gguf = GGUF.open(path)
    n_ctx = max(ctx or 64, len(ids) + 32)
    described = Described(gguf, RunConfig(n_ctx, kv_type), default_registry())
    if described.n_positions is not None and len(ids) > described.n_positions:
        raise ContextLengthExceeded(len(ids), described.n_positions)
    return gguf, described, n_ctx


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
        batch = Batch([Segment(cache.sequence(), ids, len(ids), True)], EVERYTHING)
        executor.prepare(batch)
        native = [step for step in executor.plan.steps if step.node is None and step.op != "sample"]
        for index, step in enumerate(native):
            _feed(executor, step, observed)
            executor.run_steps(index, index + 1)
            if step.produces:
                result.steps.append(_check(executor, index, step, observed, kv_type))
        result.free_run = _free_run(described.graph, observed, executor.step(batch))
        executor.close()
        return result


def _feed(executor: NativeExecutor, step: Step, observed: _Observed) -> None:
    """Put the reference's values into the step's inputs."""
    for tensor, view in step.consumes:
        if tensor not in observed.arrays:
            continue  # a NumPy op's intermediate
        array = _rows(observed.arrays[tensor])
        if view.type in (Q8, Q16):
            slots = _slots(step)
            rows = quantise_rows(array.reshape(len(array) * slots, -1), view.type)
            executor.raw(view, len(array))[:] = rows.reshape(len(array), -1)
        else:
            executor.array(view, len(array))[:] = array


def _rows(array: np.ndarray) -> np.ndarray:
    """(T, *row) as (T, width)."""
    return array.reshape(len(array), -1)


def _slots(step: Step) -> int:
    """Quantised rows that one row of the step's input becomes: one for each expert (or head) that has its own."""
    return int(step.params["n_used"]) if step.op == "moe_linear" and step.params["per_slot_input"] else 1


def _check(executor: NativeExecutor, index: int, step: Step, observed: _Observed, kv_type: str) -> StepCheck:
    bound = _bound(step, kv_type)
    worst = 0.0
    for part, (tensor, view) in enumerate(step.produces):
        want = _rows(observed.arrays[tensor])
        if step.op in ROUNDED_PRODUCTS and step.consumes[0][1].type in (Q8, Q16):
            want = ROUNDED_PRODUCTS[step.op](step, part, observed)
        got = executor.array(view, len(want))
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
    return ROUNDED_BOUND if any(view.type in (Q8, Q16) for _, view in step.consumes) else FLOAT_BOUND


def _as_taken(step: Step, observed: _Observed) -> np.ndarray:
    """The step's first input as its kernel takes it, (T, *row)."""
    tensor, view = step.consumes[0]
    array = observed.arrays[tensor]
    rows = array.reshape(len(array) * _slots(step), -1)
    return dequantise_rows(quantise_rows(rows, view.type), rows.shape[1], view.type).reshape(array.shape)


def _rounded_experts(step: Step, part: int, observed: _Observed) -> np.ndarray:
    """The reference's product of the activations as the kernel takes them, by chosen experts or by head."""
    tensor = step.produces[part][0]
    others = [observed.arrays[t] for t, _ in step.consumes[1:]]
    return _rows(REFERENCE[tensor.node.op](observed, tensor.node, _as_taken(step, observed), *others))


def _rounded_product(step: Step, part: int, observed: _Observed) -> np.ndarray:
    """The exact product of the activations as the kernel takes them."""
    params: dict[str, Any] = step.params
    residual = step.consumes[1:]
    activations = _rows(_as_taken(step, observed))
    ref = step.weights[part]
    y = activations.astype(np.float64) @ observed.weights.tensor(ref).astype(np.float64).T
    if params["bias"][part] is not None:
        y += observed.weights.tensor(params["bias"][part]).reshape(-1)
    y *= params["scale"]
    if params["softcap"]:
        y = params["softcap"] * np.tanh(y / params["softcap"])
    if residual:
        y += _rows(observed.arrays[residual[part][0]])
    return y


#: Products that take quantised activations -> the oracle for one of their parts.
ROUNDED_PRODUCTS: dict[str, Callable[[Step, int, _Observed], np.ndarray]] = {
    "linear": _rounded_product,
    "moe_linear": _rounded_experts,
}


def _free_run(graph: Graph, observed: _Observed, result: StepResult) -> FreeRun:
    """Compare the outputs of a run in which each native step had the native results before it."""
    if graph.logits is None:
        assert graph.hidden is not None and result.hidden is not None
        return FreeRun(float(np.abs(observed.arrays[graph.hidden] - result.hidden).max()))
    assert result.logits is not None
    want, got = observed.arrays[graph.logits], result.logits

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

    Pooled tensors have one row.

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
        executor.step(Batch([Segment(cache.sequence(), ids, len(ids), True)], EVERYTHING))

        def array(tensor: Tensor, view: View) -> np.ndarray:
            n = 1 if tensor.domain == SEQUENCES else len(ids)
            return executor.array(view, n).reshape(n, *tensor.shape).copy()

        result = {
            tensor.name: array(tensor, view) for step in executor.plan.steps for tensor, view in step.produces
        }
        for node in described.graph.nodes:  # parts of other tensors stand in no step
            if node.op in VIEWS and node.inputs[0].name in result:
                parts = REFERENCE[node.op](None, node, result[node.inputs[0].name])
                parts = parts if isinstance(parts, tuple) else (parts,)
                result.update((t.name, part) for t, part in zip(node.outputs, parts, strict=True))
        executor.close()
        return result

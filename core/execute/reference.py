"""The reference executor: NumPy, float32, exact, slow. Runs the unoptimised graph node by node.

Dequantises each tensor once and keeps it. Its results are what ``ggfw verify`` compares the native steps with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from ggfw import quants
from ggfw.cache import PAGE_SIZE, Cache, Sequence
from ggfw.errors import GenerationError, InvalidRequest
from ggfw.execute.batch import Batch, StepResult, Wants
from ggfw.execute.cache_memory import NumpyCacheMemory
from ggfw.execute.reference_ops import REFERENCE
from ggfw.gguf import GGUF
from ggfw.graph.builder import Graph
from ggfw.graph.cache_layout import CacheLayout, state_of
from ggfw.graph.custom import SegmentRows
from ggfw.graph.rope import Rope
from ggfw.graph.tensor import Node, Tensor
from ggfw.graph.weights import WeightRef
from ggfw.records import dataclass


@dataclass(slots=True)
class _Rows:
    """Rows of one sequence inside the step."""

    rows: slice
    outputs: slice
    position: int
    sequence: Sequence


class ReferenceWeights:
    """A file's tensors as float32 arrays, each dequantised once."""

    def __init__(self, gguf: GGUF) -> None:
        self._gguf = gguf
        self._arrays: dict[str, np.ndarray] = {}

    def tensor(self, ref: WeightRef) -> np.ndarray:
        """Return the whole tensor, shape as in ``ref``."""
        array = self._arrays.get(ref.name)
        if array is None:
            info = self._gguf.tensors[ref.name]
            array = quants.dequantize(info.ggml_type, info.data, ref.shape)
            self._arrays[ref.name] = array
        return array


class ReferenceExecutor:
    """See the module. Implements :class:`ggfw.execute.batch.Executor`.

    Args:
        graph: the unoptimised graph.
        layout: its caches.
        gguf: where the weights are.
        cache: pages and slots of the sequences that will run; K and V are kept as float32, whatever type a native
            cache would round them to.
        observe: called with (tensor, array) for everything computed; for verify and trace.
    """

    name = "reference"

    def __init__(
        self, graph: Graph, layout: CacheLayout, gguf: GGUF, cache: Cache, *, max_rows: int = 512
    ) -> None:
        self.graph = graph
        self.layout = layout
        self.max_rows = max_rows
        self.max_outputs = max_rows
        self.n_vocab = graph.logits.width if graph.logits is not None else 0
        self.weights = ReferenceWeights(gguf)
        self.observe: Callable[[Tensor, np.ndarray], None] | None = None
        self._aborted = False
        # K and V of layer l: (n_pages, PAGE_SIZE, n_head_kv, d)
        self._kv: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for spec, pool in zip(layout.pools, cache.pools, strict=True):
            for layer in spec.layers:
                k = np.zeros((pool.n_pages, PAGE_SIZE, spec.n_head_kv, spec.d_k), np.float32)
                v = (
                    k[..., : spec.d_v]
                    if spec.v_in_k
                    else np.zeros((pool.n_pages, PAGE_SIZE, spec.n_head_kv, spec.d_v), np.float32)
                )
                self._kv[layer] = (k, v)
        stateful = [node for node in graph.nodes if state_of(node) is not None]
        self._states = {
            node: np.zeros((cache.n_ring * cache.n_slots, *spec.shape), np.float32)
            for node, spec in zip(stateful, layout.states, strict=True)
        }
        arrays = [
            [a for layer in spec.layers for a in self._kv[layer][: 1 if spec.v_in_k else 2]]
            for spec in layout.pools
        ]
        self.memory = NumpyCacheMemory(arrays, list(self._states.values()))
        self._frequencies: dict[Rope, tuple[np.ndarray, float]] = {}

    def step(self, batch: Batch) -> StepResult:
        """Run one step (see :class:`~ggfw.execute.batch.Executor`)."""
        self._aborted = False
        for segment in batch.segments:
            segment.sequence.reserve(len(segment.tokens))
        # What is not finite is found in the logits; NumPy's warnings would go to the terminal.
        with np.errstate(all="ignore"):
            values = ReferenceStep(self, batch).run()
        for segment in batch.segments:
            segment.sequence.advance(len(segment.tokens) - segment.n_draft)
        result = StepResult(sampled=[None] * len(batch.segments))
        if batch.wants & Wants.LOGITS and self.graph.logits is not None:
            result.logits = values[self.graph.logits]
        if batch.wants & Wants.HIDDEN and self.graph.hidden is not None:
            result.hidden = values[self.graph.hidden]
        if batch.wants & Wants.POOLED and self.graph.pooled is not None:
            result.pooled = values[self.graph.pooled]
        return result

    def abort(self) -> None:
        """Stop a running step before its next node."""
        self._aborted = True

    def check_abort(self) -> None:
        """Raise when :meth:`abort` was called since the step began."""
        if self._aborted:
            raise GenerationError("the step was aborted")

    def new_sampler(self, setup: Any, prompt: list[int]) -> Any:
        """Return None: the reference has no native sampler."""
        return None

    def close(self) -> None:
        """Drop weights and caches."""
        self.memory = NumpyCacheMemory([], [])
        self._kv.clear()
        self._states.clear()
        self.weights = None  # type: ignore[assignment]


class ReferenceStep:
    """One step's state, as the op functions see it.

    Attributes:
        tokens, positions: int32 (T,).
        embeddings: float32 (T, n_embd) or None.
        output_rows: indices of the rows that are outputs.
        segments: rows by sequence.
    """

    def __init__(self, executor: ReferenceExecutor, batch: Batch) -> None:
        self.executor = executor
        self.batch = batch
        self.segments: list[_Rows] = []
        outputs: list[int] = []
        begin = 0
        for s in batch.segments:
            n = len(s.tokens)
            places = slice(len(outputs), len(outputs) + s.n_outputs)
            self.segments.append(_Rows(slice(begin, begin + n), places, s.sequence.n_positions, s.sequence))
            outputs += range(begin + n - s.n_outputs, begin + n)
            begin += n
        self.tokens = np.fromiter(itertools.chain(*(s.tokens for s in batch.segments)), np.int32, begin)
        self.positions = np.concatenate(
            [
                np.arange(s.position, s.position + s.rows.stop - s.rows.start, dtype=np.int32)
                for s in self.segments
            ]
        )
        self.output_rows = np.array(outputs, np.int64)
        given = [s.embeddings for s in batch.segments if s.embeddings is not None]
        self.embeddings = np.concatenate(given).astype(np.float32) if given else None

    def run(self) -> dict[Tensor, np.ndarray]:
        """Evaluate the graph; returns the values that are still alive at the end, the outputs among them."""
        graph, observe = self.executor.graph, self.executor.observe
        keep = {graph.logits, graph.hidden, graph.pooled}
        uses: dict[Tensor, int] = {}
        for node in graph.nodes:
            for t in node.inputs:
                uses[t] = uses.get(t, 0) + 1
        values: dict[Tensor, np.ndarray] = {}
        for node in graph.nodes:
            self.executor.check_abort()
            result = REFERENCE[node.op](self, node, *(values[t] for t in node.inputs))
            results = result if isinstance(result, tuple) else (result,)
            for t, array in zip(node.outputs, results, strict=True):
                values[t] = array
                if observe is not None:
                    observe(t, array)
            for t in node.inputs:
                uses[t] -= 1
                if not uses[t] and t not in keep:
                    values.pop(t, None)
        return values

    # -- weights -------------------------------------------------------------------------------------------------

    def tensor(self, ref: WeightRef) -> np.ndarray:
        """Return a tensor of the file as float32."""
        return self.executor.weights.tensor(ref)

    matrix = tensor

    def vector(self, ref: WeightRef) -> np.ndarray:
        """Return a tensor of the file as one axis."""
        return self.tensor(ref).reshape(-1)

    def rows(self, ref: WeightRef, ids: np.ndarray) -> np.ndarray:
        """Return rows of a table.

        Raises:
            InvalidRequest: an id has no row.
        """
        if ids.size and (ids.min() < 0 or ids.max() >= ref.shape[0]):
            bad = int(ids.min()) if ids.min() < 0 else int(ids.max())
            raise InvalidRequest(f"token id {bad} is outside the vocabulary of {ref.shape[0]}", "ids")
        return self.tensor(ref)[ids]

    def expert(self, ref: WeightRef, expert: int) -> np.ndarray:
        """Return one expert's matrix."""
        return self.tensor(ref)[expert]

    def frequencies(self, rope: Rope) -> tuple[np.ndarray, float]:
        """Return a rotation's frequencies and magnitude, computed once."""
        known = self.executor._frequencies
        if rope not in known:
            known[rope] = rope.frequencies(None if rope.factors is None else self.vector(rope.factors))
        return known[rope]

    # -- caches --------------------------------------------------------------------------------------------------

    def store(self, layer: int, segment: _Rows, k: np.ndarray, v: np.ndarray | None) -> None:
        """Write K and V of a segment's rows into the pages of its sequence; V None = columns of K."""
        pages, offsets = self._places(layer, segment, segment.position, segment.position + len(k))
        keys, values = self.executor._kv[layer]
        keys[pages, offsets] = k
        if v is not None:
            values[pages, offsets] = v

    def load(self, layer: int, segment: _Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return K and V of all positions up to the segment's last row; zeros where pages were given back."""
        end = segment.position + segment.rows.stop - segment.rows.start
        pages, offsets = self._places(layer, segment, 0, end)
        keys, values = self.executor._kv[layer]
        return keys[pages, offsets], values[pages, offsets]

    def _places(self, layer: int, segment: _Rows, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        pool, _ = self.executor.layout.place[layer]
        positions = np.arange(begin, end)
        return np.array(segment.sequence.tables[pool])[positions // PAGE_SIZE], positions % PAGE_SIZE

    def state(self, node: Node, segment: _Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return (state before the segment's first row, where the state after its last row goes) of a node."""
        states = self.executor._states[node]
        read, write = segment.sequence.state_halves()
        before = states[read] if read >= 0 else np.zeros(states.shape[1:], np.float32)
        return before, states[write]

    def call_custom(self, node: Node, inputs: tuple[np.ndarray, ...]) -> np.ndarray:
        """Run a plugin's NumPy op with its state."""
        stateful = node in self.executor._states
        rows = [
            SegmentRows(s.rows, s.position, *(self.state(node, s) if stateful else ())) for s in self.segments
        ]
        op = node.attrs["custom"]
        attrs = {
            name: self.tensor(value) if isinstance(value, WeightRef) else value
            for name, value in node.attrs["attrs"].items()
        }
        row = node.outputs[0].shape
        result: np.ndarray = op.run(inputs, row, segments=rows, positions=self.positions, **attrs)
        return result

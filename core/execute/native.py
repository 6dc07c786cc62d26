"""The native executor: runs the plan, one C call per step of a ragged batch, sampling included.

Control arrays are made once; a step only fills them in. A plan with NumPy ops of a plugin is cut at them.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ggfw.cache import PAGE_SIZE, Cache
from ggfw.errors import BackendError, GenerationError, InvalidRequest
from ggfw.execute.batch import Batch, Segment, StepResult, Wants
from ggfw.execute.cache_memory import native_cache_memory
from ggfw.execute.file_guard import FileGuard
from ggfw.execute.kernel_set import KernelSet
from ggfw.execute.kv_types import KV_TYPES, check_kv_type, kv_row_bytes
from ggfw.execute.marshal import Marshal
from ggfw.execute.plan_breaks import PlanRange, plan_ranges
from ggfw.gguf import GGUF
from ggfw.graph.builder import EMBED_BY, Graph
from ggfw.graph.lower import make_plan
from ggfw.graph.plan import I32, View
from ggfw.sampling import SamplerSetup
from ggfw.sampling.native import STATUS_NOT_DRAWN, NativeSampler
from ggfw.weights import NativeWeights

if TYPE_CHECKING:
    from ggfw.packed_cache import PackedCache

#: Software prefetch distance in bytes until it is calibrated per machine (kernels in L3 like more, DRAM less).
PREFETCH = 2048

_ROWS_DECODE, _ROWS_PROMPT = 1, 2
_TOKEN_TABLES = (EMBED_BY.index("token"), EMBED_BY.index("text"))


class NativeExecutor:
    """See the module. Implements :class:`ggfw.execute.batch.Executor`; drafts are verified.

    Args:
        graph: what to run.
        gguf: where the weights are.
        cache: pages and slots of the sequences that will run.
        kernels: the backend's kernels.
        kv_type: element type of the cache, one of :data:`ggfw.execute.kv_types.KV_TYPES`.
        max_rows: rows of the largest batch.
        threads: threads of the process's pool.
        fuse, keep_all: see :func:`ggfw.graph.lower.make_plan`.
        packed_cache: where packed weights are kept between processes; None = nowhere.
        prefault: whether what stays mapped of the file is read ahead.
    """

    verifies = True

    def __init__(
        self,
        graph: Graph,
        gguf: GGUF,
        cache: Cache,
        *,
        kernels: KernelSet,
        kv_type: str = "f16",
        max_rows: int = 512,
        threads: int = 1,
        prefetch: int = PREFETCH,
        fuse: bool = True,
        keep_all: bool = False,
        packed_cache: PackedCache | None = None,
        prefault: bool = True,
    ) -> None:
        self.name = kernels.name
        self.native_seconds = 0.0  # in native calls so far, whichever thread made them
        self.kernels = kernels
        self.max_rows = self.max_outputs = max_rows
        self.plan = make_plan(
            graph, kernels, max_rows=max_rows, max_outputs=max_rows, fuse=fuse, keep_all=keep_all
        )
        self.n_vocab = graph.logits.width if graph.logits is not None else 0
        self._table_rows = min(
            (
                ref.shape[0]
                for step in self.plan.steps
                if step.op == "embed" and step.params["by"] in _TOKEN_TABLES
                for ref in step.weights
            ),
            default=0,
        )
        ffi, lib = self._ffi, self._lib = kernels.native.ffi, kernels.native.lib
        lib.ggfw_threads_set(threads, 100)
        self._guard = FileGuard(kernels.native, gguf)
        self.weights = NativeWeights(gguf, self.plan, kernels, packed_cache, prefault=prefault)
        if self.weights.mapped is not None:
            self._guard.watch(*self.weights.mapped)
            if packed_cache is not None and packed_cache.settle_at_once:
                self.weights.settle(wait=True)  # which reads the file, so that it has to be watched by now
        self._guard.check()
        self._memory: list[tuple[Any, int]] = []
        self._pools = self._make_pools(cache, kv_type)
        self._states = self._make_states(cache)
        self.memory = native_cache_memory(ffi, self._pools, self._states)
        steps = Marshal(kernels.native, self.weights).steps(self.plan)
        self._executor = lib.ggfw_executor_new(
            steps, len(steps), self.plan.arena_bytes, max_rows, max_rows, self._pools, len(self._pools),
            self._states, len(self._states), prefetch,
        )  # fmt: skip
        if self._executor == ffi.NULL:
            raise BackendError(
                "the executor refused the plan, or memory is short; try a smaller --ubatch or --ctx"
            )
        self._ranges: list[PlanRange] = plan_ranges(self.plan, self)
        self._logits = self._output(self.plan.logits)
        self._hidden = self._output(self.plan.hidden)
        self._pooled = self._output(self.plan.pooled)
        self._make_control_arrays(len(cache.pools))

    # -- memory --------------------------------------------------------------------------------------------------

    def _allocate(self, n_bytes: int) -> Any:
        memory = self._lib.ggfw_memory_new(n_bytes, 0)
        if memory == self._ffi.NULL:
            raise BackendError(
                f"{n_bytes >> 20} MiB for the cache are not to be had; lower --ctx or --parallel"
            )
        self._memory.append((memory, n_bytes))
        return memory

    def _make_pools(self, cache: Cache, kv_type: str) -> Any:
        number = KV_TYPES[check_kv_type(kv_type)]
        pools = self._ffi.new("ggfw_pool[]", len(cache.pools))
        for pool, c in zip(cache.pools, pools, strict=True):
            spec = pool.spec
            c.n_layers, c.n_pages, c.page_size = len(spec.layers), pool.n_pages, PAGE_SIZE
            c.type, c.n_head_kv, c.d_k, c.d_v = number, spec.n_head_kv, spec.d_k, spec.d_v
            c.k_page_bytes = PAGE_SIZE * spec.n_head_kv * kv_row_bytes(kv_type, spec.d_k)
            c.v_page_bytes = (
                0 if spec.v_in_k else PAGE_SIZE * spec.n_head_kv * kv_row_bytes(kv_type, spec.d_v)
            )
            c.k = self._allocate(c.k_page_bytes * c.n_layers * c.n_pages)
            if not spec.v_in_k:
                c.v = self._allocate(c.v_page_bytes * c.n_layers * c.n_pages)
        return pools

    def _make_states(self, cache: Cache) -> Any:
        specs = self.plan.layout.states
        states = self._ffi.new("ggfw_state[]", len(specs))
        for spec, c in zip(specs, states, strict=True):
            c.slot_floats, c.n_ring = int(np.prod(spec.shape)), cache.n_ring
            c.n_slots = cache.n_ring * cache.n_slots
            c.data = self._allocate(c.slot_floats * c.n_slots * 4)
        return states

    def wait_until_read(self) -> None:
        """Wait until what stays mapped of the file has been read ahead."""
        self.weights.wait_until_read()

    def state(self, index: int) -> np.ndarray:
        """Return a recurrent state of the plan, (n_ring * n_slots, *shape) float32."""
        c = self._states[index]
        data = np.frombuffer(self._ffi.buffer(c.data, c.slot_floats * c.n_slots * 4), np.float32)
        return data.reshape(c.n_slots, *self.plan.layout.states[index].shape)

    def raw(self, view: View, n_rows: int) -> np.ndarray:
        """Return the bytes of a view's rows, (n_rows, row_bytes) uint8, writable; for int8 activations."""
        base = self._lib.ggfw_executor_arena(self._executor) + view.buffer.offset
        data = np.frombuffer(self._ffi.buffer(base, n_rows * view.buffer.row_bytes), np.uint8)
        return data.reshape(n_rows, view.buffer.row_bytes)

    def array(self, view: View, n_rows: int) -> np.ndarray:
        """Return rows of a float32 or int32 view of the arena, (n_rows, width); valid until the next step."""
        base = self._lib.ggfw_executor_arena(self._executor) + view.buffer.offset
        dtype = np.int32 if view.type == I32 else np.float32
        data = np.frombuffer(self._ffi.buffer(base, n_rows * view.buffer.row_bytes), dtype)
        begin = view.column // 4
        return data.reshape(n_rows, view.buffer.row_bytes // 4)[:, begin : begin + view.width]

    def _output(self, view: View | None) -> np.ndarray | None:
        return None if view is None else self.array(view, self.max_outputs)

    def _make_control_arrays(self, n_pools: int) -> None:
        ffi, n = self._ffi, self.max_rows
        self._tokens, self._positions = np.zeros(n, np.int32), np.zeros(n, np.int32)
        self._row_segment, self._output_rows = np.zeros(n, np.int32), np.zeros(n, np.int32)
        self._sampled = np.zeros(n, np.int32)
        self._segments = ffi.new("ggfw_segment[]", n)
        self._samplers = ffi.new("ggfw_sampler *[]", n)
        self._pages = np.zeros(1024, np.int32)
        self._pages_key: list[int] = []
        self._page_offsets: list[list[int]] = []
        self._counter = np.arange(n, dtype=np.int32)
        batch = self._batch = ffi.new("ggfw_batch *")
        for name in ("tokens", "positions", "row_segment", "output_rows", "sampled"):
            setattr(batch, name, ffi.from_buffer("int32_t *", getattr(self, f"_{name}")))
        batch.segments, batch.samplers = self._segments, self._samplers
        batch.pages = ffi.from_buffer("int32_t *", self._pages)
        self._c_tokens, self._n_pools = batch.tokens, n_pools

    # -- a step --------------------------------------------------------------------------------------------------

    def step(self, batch: Batch) -> StepResult:
        """Run one step (see :class:`~ggfw.execute.batch.Executor`)."""
        self._guard.check()
        segments = batch.segments
        order = sorted(segments, key=_is_prompt) if len(segments) > 1 else segments
        n_outputs = self._fill(order, batch.wants)
        for first, last, python in self._ranges:
            self.run_steps(first, last)
            if python is not None:
                python(self, order)
        self._guard.check()
        result = self._result(segments, order, n_outputs, batch.wants)
        for segment in segments:
            segment.sequence.advance(len(segment.tokens) - segment.n_draft, 1 if segment.n_draft else 0)
        if not self.weights.settled and not segments[0].prompt:  # the first token is out
            self.weights.settle()
        return result

    def prepare(self, batch: Batch) -> None:
        """Write the control arrays for a batch without running it; for :meth:`run_steps`."""
        self._fill(batch.segments, batch.wants)

    def run_steps(self, first: int, last: int) -> None:
        """Run native steps ``first`` to ``last - 1`` for the prepared batch; sequences do not advance (verify)."""
        begin = perf_counter()
        status = self._lib.ggfw_executor_run(self._executor, self._batch, first, last)
        self.native_seconds += perf_counter() - begin
        if status:
            raise self._failure(status, self._batch.n_rows)

    def _fill(self, order: list[Segment], wants: Wants) -> int:
        """Write the control arrays; returns the number of output rows."""
        total = sum(len(s.tokens) for s in order)
        if total > self.max_rows:
            raise InvalidRequest(
                f"a batch of {total} rows exceeds the capacity of {self.max_rows}; raise --ubatch"
            )
        c, row, output, n_decode_rows, n_decode_outputs = self._batch, 0, 0, 0, 0
        embeddings = None
        for i, s in enumerate(order):
            n, position = len(s.tokens), s.sequence.n_positions
            s.sequence.reserve(n)
            target = self._segments[i]
            target.row, target.n_rows, target.position = row, n, position
            target.output, target.n_outputs = (output if s.n_outputs else -1), s.n_outputs
            target.state_read, target.state_write = s.sequence.state_halves(s.n_draft)
            if s.prompt:
                target.row_class = _ROWS_PROMPT
            else:
                target.row_class = _ROWS_DECODE
                n_decode_rows, n_decode_outputs = row + n, output + s.n_outputs
            if n == 1:
                self._tokens[row], self._positions[row], self._row_segment[row] = s.tokens[0], position, i
            else:
                self._tokens[row : row + n] = s.tokens
                np.add(self._counter[:n], position, out=self._positions[row : row + n])
                self._row_segment[row : row + n] = i
            if s.embeddings is not None:
                embeddings = (
                    s.embeddings if embeddings is None else np.concatenate([embeddings, s.embeddings])
                )
            row += n
            for j in range(s.n_outputs):
                self._output_rows[output] = row - s.n_outputs + j
                self._samplers[output] = self._ffi.NULL
                output += 1
            if s.sampler is not None:
                self._samplers[output - 1 - s.n_draft] = s.sampler.pointer
                self._sampled[output - s.n_outputs : output] = STATUS_NOT_DRAWN
        self._fill_pages(order)
        if embeddings is None:
            c.tokens, c.embeddings = self._c_tokens, self._ffi.NULL
            self._embeddings = None
        else:
            self._embeddings = np.ascontiguousarray(embeddings, np.float32)
            c.tokens, c.embeddings = self._ffi.NULL, self._ffi.from_buffer("float *", self._embeddings)
        c.n_rows, c.n_decode_rows, c.n_segments = row, n_decode_rows, len(order)
        c.n_outputs, c.n_decode_outputs, c.wants = output, n_decode_outputs, int(wants)
        return output

    def _fill_pages(self, order: list[Segment]) -> None:
        """Write the page tables, unless they are those of the step before."""
        key = [s.sequence.version for s in order]
        if key != self._pages_key:
            tables = [table for s in order for table in s.sequence.tables]
            needed = sum(map(len, tables))
            if needed > len(self._pages):
                self._pages = np.zeros(2 * needed, np.int32)
                self._batch.pages = self._ffi.from_buffer("int32_t *", self._pages)
            offset, offsets = 0, []
            for table in tables:
                self._pages[offset : offset + len(table)] = table
                offsets.append(offset)
                offset += len(table)
            n = self._n_pools
            self._batch.n_pages = offset
            self._page_offsets = [offsets[i * n : (i + 1) * n] for i in range(len(order))]
            self._pages_key = key
        for i, offsets in enumerate(self._page_offsets):
            self._segments[i].table[0 : self._n_pools] = offsets

    def _result(
        self, segments: list[Segment], order: list[Segment], n_outputs: int, wants: Wants
    ) -> StepResult:
        result = StepResult()
        rows: Any = slice(0, n_outputs)
        ends, end = {}, 0
        for s in order:
            end += s.n_outputs
            ends[id(s)] = end
        if order is not segments and any(a is not b for a, b in zip(order, segments, strict=True)):
            rows = np.concatenate([np.arange(ends[id(s)] - s.n_outputs, ends[id(s)]) for s in segments])
        if wants & Wants.LOGITS and self._logits is not None:
            result.logits = self._logits[rows]
        if wants & Wants.HIDDEN and self._hidden is not None:
            result.hidden = self._hidden[rows]
        if wants & Wants.POOLED and self._pooled is not None:
            place = {id(s): i for i, s in enumerate(order)}
            result.pooled = self._pooled[[place[id(s)] for s in segments]]
        result.sampled = [
            None if s.sampler is None else int(self._sampled[ends[id(s)] - 1 - s.n_draft]) for s in segments
        ]
        for i, s in enumerate(segments):
            if s.n_draft and s.sampler is not None:
                result.followers[i] = self._drawn_after(s, ends[id(s)])
        return result

    def _drawn_after(self, segment: Segment, end: int) -> list[int]:
        """What was drawn behind the first row of a segment with drafts, whose outputs end at ``end``."""
        drawn = self._sampled[end - 1 - segment.n_draft : end].tolist()
        drafts = segment.tokens[len(segment.tokens) - segment.n_draft :]
        n = 0
        while n < segment.n_draft and drawn[n] == drafts[n] and drawn[n + 1] != STATUS_NOT_DRAWN:
            n += 1
        return drawn[1 : n + 1]

    def _failure(self, status: int, n_rows: int) -> Exception:
        if status == self._lib.GGFW_ABORTED:
            return GenerationError("the step was aborted")
        used = self._tokens[:n_rows]
        bad = used[(used < 0) | (used >= self._table_rows)] if self._table_rows else used[:0]
        if bad.size:
            return InvalidRequest(f"token id {bad[0]} is outside the vocabulary of {self._table_rows}", "ids")
        return GenerationError(f"the executor refused the batch (status {status})")

    # -- the rest of the contract --------------------------------------------------------------------------------

    def abort(self) -> None:
        """Ask a running step to stop; it does within one chunk of work."""
        self._lib.ggfw_executor_abort(self._executor)

    def new_sampler(self, setup: SamplerSetup, prompt: list[int]) -> NativeSampler:
        """Return a native sampler that has seen ``prompt``."""
        sampler = NativeSampler(self._ffi, self._lib, setup.params, setup.vocab, setup.n_logprobs)
        sampler.seed(prompt)
        return sampler

    def profile(self, enable: bool) -> None:
        """Switch the per-step clock on or off."""
        self._lib.ggfw_executor_profile(self._executor, int(enable))

    def timings(self) -> list[tuple[str, int]]:
        """Return (step, nanoseconds since the clock was switched on) for every native step."""
        native = [step for step in self.plan.steps if step.node is None]
        out = self._ffi.new("int64_t[]", len(native))
        self._lib.ggfw_executor_timings(self._executor, out)
        return [(step.describe(), int(t)) for step, t in zip(native, out, strict=True)]

    def close(self) -> None:
        """Free plan, caches and packed weights."""
        if self._executor is not None:
            self._logits = self._hidden = self._pooled = None
            del self.memory
            self._lib.ggfw_executor_free(self._executor)
            self._executor = None
            for memory, n_bytes in self._memory:
                self._lib.ggfw_memory_free(memory, n_bytes)
            self._memory.clear()
            self.weights.close()
            self._guard.close()


def _is_prompt(segment: Segment) -> bool:
    return segment.prompt

"""What Python hands to the native executor: batches and plans with numbers that lie. They are refused, never executed."""  # noqa: E501

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from fuzz.choices import Choices
from fuzz.target import Target
from ggfw.execute.batch import Batch, Segment, Wants
from ggfw.execute.marshal import Marshal
from ggfw.model import LoadedModel

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import tiny_models

_COUNTS = ("n_rows", "n_decode_rows", "n_segments", "n_outputs", "n_decode_outputs")
_PARAMS = {
    "linear": ("n_parts",), "norm": ("group", "weight_width"), "rope": ("n_rot",),
    "rope_store": ("n_head", "n_head_kv", "d_k", "d_v", "n_rot", "pool", "layer"),
    "attention": ("n_head", "n_head_kv", "d_k", "d_v", "pool", "layer", "window"),
    "copy": ("slots", "from", "to"), "embed": ("by",), "quantize": ("slots",),
}  # fmt: skip
_SEGMENT = ("row", "n_rows", "position", "output", "n_outputs", "row_class", "state_read", "state_write")


def _i32(c: Choices) -> int:
    return (c.edge() if c.chance(50) else c.between(-3, 9)) % 2**32 - (2**32 if c.chance(20) else 0)


def _signed(n: int, bits: int) -> int:
    n %= 1 << bits
    return n - (1 << bits) if n >> (bits - 1) else n


def target() -> Target:
    """See the module; arrays of rows that are shorter than the batch says cannot be known to C and are not tried."""
    path = tiny_models.write_llama(
        Path(tempfile.mkdtemp(prefix="ggfw-fuzz-")) / "m.gguf", n_layer=1, n_ctx=64
    )
    model = LoadedModel.load(path, threads=1, ctx=64, n_parallel=3, ubatch=16)
    executor: Any = model.executor
    ffi, lib = executor._ffi, executor._lib

    def spoil_batch(c: Choices) -> None:
        sequences = [model.cache.sequence() for _ in range(c.between(1, 3))]
        try:
            executor.prepare(Batch([Segment(s, [1] * c.between(1, 4)) for s in sequences], Wants.LOGITS))
            batch = executor._batch
            n_rows, n_outputs, n_segments = batch.n_rows, batch.n_outputs, batch.n_segments
            for _ in range(c.between(1, 3)):
                kind, value = c.below(9), _signed(_i32(c), 32)
                if kind == 0:
                    setattr(batch, c.pick(_COUNTS), value)
                elif kind == 1:
                    setattr(batch.segments[c.below(n_segments)], c.pick(_SEGMENT), value)
                elif kind == 2:
                    batch.tokens[c.below(n_rows)] = value
                elif kind == 3:
                    batch.positions[c.below(n_rows)] = value
                elif kind == 4:
                    batch.row_segment[c.below(n_rows)] = value
                elif kind == 5:
                    batch.output_rows[c.below(max(1, n_outputs))] = value
                elif kind == 6:
                    batch.pages[c.below(n_segments)] = value
                elif kind == 7:
                    batch.segments[c.below(n_segments)].table[0] = value
                else:
                    batch.n_pages = min(value, n_segments)
            status = lib.ggfw_executor_run(executor._executor, batch, 0, -1)
            assert status <= 0 or status in (lib.GGFW_OK, lib.GGFW_ABORTED), status
        finally:
            executor._pages_key = []
            for sequence in sequences:
                sequence.close()

    def spoil_params(c: Choices, steps: Any) -> None:
        """Numbers that kernels take their extents from; what is accepted is run."""
        at = c.below(len(steps))
        union = executor.plan.steps[at].union
        if union not in _PARAMS:
            return
        name = c.pick(_PARAMS[union])
        value = _signed(_i32(c), 32) if c.chance(50) else c.between(0, 80)
        setattr(getattr(steps[at].params, union), name, value)

    def spoil_widths(c: Choices, steps: Any) -> None:
        step = steps[c.below(len(steps))]
        views = [v for v in (*getattr(step, "in"), *step.out)]
        view = views[c.below(len(views))]
        setattr(view, c.pick(("width", "type")), _signed(_i32(c), 32) if c.chance(30) else c.between(0, 130))

    def run_plan(c: Choices) -> None:
        steps = Marshal(executor.kernels.native, executor.weights).steps(executor.plan)
        for _ in range(c.between(1, 2)):
            spoil_params(c, steps) if c.chance(50) else spoil_widths(c, steps)
        made = lib.ggfw_executor_new(
            steps, len(steps), executor.plan.arena_bytes, 16, 16, executor._pools, len(executor._pools),
            executor._states, len(executor._states), 0,
        )  # fmt: skip
        if made == ffi.NULL:
            return
        sequence = model.cache.sequence()
        try:
            executor.prepare(Batch([Segment(sequence, [1, 2, 3])], Wants.LOGITS))
            assert lib.ggfw_executor_run(made, executor._batch, 0, -1) <= 0
        finally:
            lib.ggfw_executor_free(made)
            executor._pages_key = []
            sequence.close()

    def spoil_plan(c: Choices) -> None:
        steps = Marshal(executor.kernels.native, executor.weights).steps(executor.plan)
        step = steps[c.below(len(steps))]
        views = [v for v in (*getattr(step, "in"), *step.out) if v.width]
        view = views[c.below(len(views))]
        arena = executor.plan.arena_bytes
        name = c.pick(("offset", "stride"))
        value = _signed(c.edge() if c.chance(60) else arena + c.below(64), 64 if name == "offset" else 32)
        setattr(view, name, value)
        made = lib.ggfw_executor_new(
            steps, len(steps), arena, 16, 16, executor._pools, len(executor._pools), executor._states,
            len(executor._states), 0,
        )  # fmt: skip
        if made != ffi.NULL:
            lib.ggfw_executor_free(made)
            assert 0 <= value <= arena, f"{name} {value} was accepted in an arena of {arena}"

    kept = len(executor.weights._keep)

    def run(data: bytes) -> None:
        del executor.weights._keep[kept:]  # what marshalling a plan keeps for as long as the model lives
        c = Choices(data)
        c.pick((spoil_plan, run_plan, run_plan, spoil_batch, spoil_batch))(c)

    return Target(run, [bytes(range(0, 250, n + 1)) for n in range(30)])

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
_SEGMENT = ("row", "n_rows", "position", "output", "n_outputs", "row_class", "state_read", "state_write")


def _i32(c: Choices) -> int:
    return (c.edge() if c.chance(50) else c.between(-3, 9)) % 2**32 - (2**32 if c.chance(20) else 0)


def _signed(n: int, bits: int) -> int:
    n %= 1 << bits
    return n - (1 << bits) if n >> (bits - 1) else n


def target() -> Target:
    """See the module; rows and pages beyond the arrays' ends cannot be known to C and are not tried."""
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
                kind, value = c.below(7), _signed(_i32(c), 32)
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
                else:
                    batch.pages[c.below(n_segments)] = value
            status = lib.ggfw_executor_run(executor._executor, batch, 0, -1)
            assert status <= 0 or status in (lib.GGFW_OK, lib.GGFW_ABORTED), status
        finally:
            executor._pages_key = []
            for sequence in sequences:
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

    def run(data: bytes) -> None:
        c = Choices(data)
        spoil_plan(c) if c.chance(30) else spoil_batch(c)

    return Target(run, [bytes(range(0, 250, n + 1)) for n in range(30)])

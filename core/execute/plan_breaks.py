"""Where a plan is interrupted: a plugin's NumPy op runs between two native calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ggfw.execute.batch import Segment
from ggfw.graph.custom import SegmentRows
from ggfw.graph.plan import Plan, Step
from ggfw.graph.weights import WeightRef

if TYPE_CHECKING:
    from ggfw.execute.native import NativeExecutor

#: (first native step, last native step or -1, what runs after them or None)
PlanRange = tuple[int, int, Callable[..., None] | None]


class NumpyStep:
    """A plugin's NumPy op inside a native plan: inputs and result are views of the arena.

    Args:
        step: the plan's step; its ``node`` is the op.
        executor: whose arena it works on.
        state: (n_ring * n_slots, *shape) float32 for an op with state, else None.
    """

    def __init__(self, step: Step, executor: NativeExecutor, state: np.ndarray | None) -> None:
        assert step.node is not None
        self._step, self._node, self._state = step, step.node, state
        self._attrs = {
            name: executor.weights.array(value).reshape(value.shape)
            if isinstance(value, WeightRef)
            else value
            for name, value in step.node.attrs["attrs"].items()
        }

    def __call__(self, executor: NativeExecutor, order: list[Segment]) -> None:
        """Run the op for the step's segments; an exception of the op fails the step."""
        n_rows = sum(len(s.tokens) for s in order)
        arrays = [
            executor.array(view, n_rows).reshape(n_rows, *tensor.shape)
            for tensor, view in self._step.consumes
        ]
        rows, begin = [], 0
        for s in order:
            place = slice(begin, begin + len(s.tokens))
            rows.append(self._rows(s, place))
            begin = place.stop
        positions = np.concatenate(
            [np.arange(r.position, r.position + r.rows.stop - r.rows.start, dtype=np.int32) for r in rows]
        )
        (tensor, view), *_ = self._step.produces
        result = self._node.attrs["custom"].run(
            arrays, tensor.shape, segments=rows, positions=positions, **self._attrs
        )
        executor.array(view, n_rows)[:] = result.reshape(n_rows, tensor.width)

    def _rows(self, segment: Segment, rows: slice) -> SegmentRows:
        position = segment.sequence.n_positions
        if self._state is None:
            return SegmentRows(rows, position)
        read, write = segment.sequence.state_halves()
        before = self._state[read] if read >= 0 else np.zeros(self._state.shape[1:], np.float32)
        return SegmentRows(rows, position, before, self._state[write])


def plan_ranges(plan: Plan, executor: Any) -> list[PlanRange]:
    """Cut a plan at its NumPy steps; a plan without any is one range, so one native call."""
    ranges: list[PlanRange] = []
    first = index = 0
    for step in plan.steps:
        if step.node is None:
            index += 1
            continue
        state = executor.state(step.params["state"]) if step.params["state"] >= 0 else None
        ranges.append((first, index, NumpyStep(step, executor, state)))
        first = index
    ranges.append((first, -1, None))
    return ranges

"""The escape hatch: operations of a plugin's own, with a NumPy body, and a C body where it is to be fast.

A C op runs inside the native step like a built-in one. A NumPy op cuts the plan: the step becomes several native
calls with the function between them; its exception fails that step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ggfw.errors import GgfwError, PluginError, kind_and_text
from ggfw.records import dataclass

if TYPE_CHECKING:
    import numpy as np

    from ggfw.graph.tensor import Shape


@dataclass(frozen=True)
class StateSpec:
    """Recurrent state of an op: float32 values per sequence, zero at its start.

    Attributes:
        shape: shape of one sequence's state.
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the shape, which an op's author gives."""
        if not isinstance(self.shape, tuple) or not all(isinstance(n, int) and n > 0 for n in self.shape):
            raise PluginError(f"the state of an op has shape {self.shape!r}; a tuple of sizes was expected")


@dataclass(frozen=True)
class SegmentRows:
    """Rows of one sequence inside a batch, as a NumPy op sees them.

    Attributes:
        rows: slice of the batch's rows.
        position: position of the first of them.
        state: (shape of the StateSpec) float32: what the op left behind at the last row before these, or zeros;
            None for ops without state. The op writes the new state into ``next_state``.
        next_state: where the state after the last row goes.
    """

    rows: slice
    position: int
    state: np.ndarray | None = None
    next_state: np.ndarray | None = None


@dataclass(frozen=True)
class CustomOp:
    """A registered op; see :func:`register_op`."""

    name: str
    shape_rule: Callable[..., Shape]
    state: Callable[..., StateSpec] | StateSpec | None = None
    numpy: Callable[..., np.ndarray] | None = None
    c: tuple[str, str] | None = None

    def state_spec(self, shapes: Sequence[Shape], attrs: dict[str, Any]) -> StateSpec | None:
        """Return the state this call of the op needs."""
        return self.state(*shapes, **attrs) if callable(self.state) else self.state

    def run(self, arrays: Sequence[np.ndarray], row: Shape, **arguments: Any) -> np.ndarray:
        """Call the NumPy body.

        Args:
            arrays: the inputs, float32 (T, *row shape).
            row: row shape of the result.
            arguments: ``segments``, ``positions`` and the attributes of the call.

        Returns:
            float32 (T, *row).

        Raises:
            PluginError: it failed, or returned something of another shape.
        """
        import numpy as np

        assert self.numpy is not None
        expected = (len(arrays[0] if arrays else arguments["positions"]), *row)
        try:
            result = np.asarray(self.numpy(*arrays, **arguments), np.float32)
        except (GgfwError, MemoryError):
            raise
        except Exception as exc:
            raise PluginError(f"op {self.name!r} raised {kind_and_text(exc)}") from exc
        if result.shape != expected:
            raise PluginError(f"op {self.name!r} returned shape {result.shape}; {expected} was expected")
        return result


_OPS: dict[str, CustomOp] = {}


def register_op(
    name: str,
    shape_rule: Callable[..., Shape],
    *,
    state: Callable[..., StateSpec] | StateSpec | None = None,
    numpy: Callable[..., np.ndarray] | None = None,
    c: tuple[str, str] | None = None,
) -> CustomOp:
    """Register an op, to be called as ``g.op(name, *tensors, **attrs)``.

    Args:
        name: unique; registering the same definition again is harmless.
        shape_rule: ``(*row shapes, **attrs) -> row shape`` of the result.
        state: recurrent state per sequence, or a function of the same arguments as ``shape_rule``.
        numpy: ``(*arrays: float32 (T, *row), segments: list[SegmentRows], positions: int32 (T,), **attrs)
            -> float32 (T, *row)``: the body where there is no C, and else what the C body is checked against.
        c: (path of a shared library, name of its ``ggfw_kernel`` variable with op GGFW_OP_CUSTOM). Attributes reach
            it in ``params.custom``: integers in ``i``, floats in ``f``, weights in ``constant``, in call order.

    Raises:
        PluginError: there is no NumPy body, or another op has the name.
    """
    op = CustomOp(name, shape_rule, state, numpy, c)
    if numpy is None:
        raise PluginError(
            f"op {name!r} has no NumPy body; it is the reference that a C body is checked against"
        )
    known = _OPS.get(name)
    if known is not None and (known.numpy is None or known.numpy.__module__ != numpy.__module__):
        raise PluginError(
            f"op {name!r} is already registered by {known.numpy.__module__ if known.numpy else '?'}"
        )
    _OPS[name] = op
    return op


def custom_op(name: str) -> CustomOp:
    """Return a registered op.

    Raises:
        PluginError: there is none of that name.
    """
    if name not in _OPS:
        raise PluginError(f"no op {name!r} is registered; call ggfw.graph.register_op before build()")
    return _OPS[name]

"""A plan's steps as C structs, field by field."""

from __future__ import annotations

from typing import Any

from ggfw.errors import GraphError
from ggfw.execute.kernel_set import OPS
from ggfw.execute.library import Native, custom_kernel
from ggfw.graph.plan import Plan, Step, Transposed, View
from ggfw.graph.weights import WeightRef
from ggfw.weights import NativeWeights

#: Fields of parameter unions that are vectors.
_VECTORS = {
    "weight",
    "bias",
    "q_norm",
    "k_norm",
    "v_norm",
    "sinks",
    "alibi",
    "vector",
    "selection_bias",
    "expert_scale",
    "a",
    "d",
}

#: Places for a custom op's attributes in ``ggfw_custom``.
_MAX_INTEGERS, _MAX_FLOATS, _MAX_CONSTANTS = 8, 8, 4


class Marshal:
    """Fills ``ggfw_step`` structs from a plan.

    Args:
        native: the opened executor library.
        weights: where matrices and vectors live.
    """

    def __init__(self, native: Native, weights: NativeWeights) -> None:
        self._ffi, self._lib = native.ffi, native.lib
        self._weights = weights

    def steps(self, plan: Plan) -> Any:
        """Return a ``ggfw_step[]`` for all steps (NumPy steps are left out)."""
        native = [step for step in plan.steps if step.node is None]
        array = self._ffi.new("ggfw_step[]", len(native))
        for step, target in zip(native, array, strict=True):
            self._step(step, target)
        return array

    def _step(self, step: Step, target: Any) -> None:
        target.op, target.domain, target.needed_for = OPS[step.op], step.domain, step.needed_for
        for views, places in ((step.inputs, getattr(target, "in")), (step.outputs, target.out)):
            for i, view in enumerate(views):
                if view is not None:
                    self._view(view, places[i])
        for i, ref in enumerate(step.weights):
            target.weight[i] = self._weights.matrix(ref, step.op)
        if step.kernels is not None:
            decode, prompt = step.kernels
            if step.op == "custom":
                decode = prompt = custom_kernel(*decode)
            target.decode, target.prompt = decode, prompt
        if step.op == "custom":
            self._custom(step, target.params.custom)
        elif step.union:
            self._params(step, getattr(target.params, step.union))

    @staticmethod
    def _view(view: View, target: Any) -> None:
        target.offset = view.buffer.offset + view.column
        target.stride, target.width, target.type = view.buffer.row_bytes, view.width, view.type

    def _params(self, step: Step, target: Any) -> None:
        for name, value in step.params.items():
            if name == "rope":
                factors = None if value.factors is None else self._weights.array(value.factors)
                inv_freq, target.magnitude = value.frequencies(factors)
                target.inv_freq = self._weights.constant(inv_freq)
            elif isinstance(value, Transposed):
                array = self._weights.array(value.ref).reshape(value.ref.shape).T
                setattr(target, name, self._weights.constant(array))
            elif isinstance(value, list):
                for i, ref in enumerate(value):
                    getattr(target, name)[i] = self._ffi.NULL if ref is None else self._weights.vector(ref)
            elif name in _VECTORS:
                setattr(target, name, self._ffi.NULL if value is None else self._weights.vector(value))
            else:
                setattr(target, name, value)

    def _custom(self, step: Step, target: Any) -> None:
        """Attributes in call order: integers to ``i``, floats to ``f``, weights to ``constant``."""
        target.state = step.params["state"]
        counts = {"i": 0, "f": 0, "constant": 0}
        limits = {"i": _MAX_INTEGERS, "f": _MAX_FLOATS, "constant": _MAX_CONSTANTS}
        for name, value in step.params["attrs"].items():
            if isinstance(value, WeightRef):
                field, value = "constant", self._weights.vector(value)
            elif isinstance(value, float):
                field = "f"
            elif isinstance(value, int):
                field = "i"
            else:
                raise GraphError(
                    f"attribute {name} of a C op is {value!r}; integers, floats and weights can be passed"
                )
            if counts[field] == limits[field]:
                raise GraphError(f"a C op takes at most {limits[field]} attributes of the kind of {name}")
            getattr(target, field)[counts[field]] = value
            counts[field] += 1

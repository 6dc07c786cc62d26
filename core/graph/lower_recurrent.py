"""Lowering of the recurrent ops: one native step each, with the number of its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ggfw.errors import GraphError
from ggfw.graph.plan import Step, Transposed
from ggfw.graph.recurrent import CONV_ACTIVATIONS, HEAD_PAIRINGS
from ggfw.graph.tensor import Node, Tensor

#: Largest kernel of the native convolution (GGFW_CONV_MAX).
MAX_KERNEL = 32


class RecurrentLowering:
    """Methods of the lowering for ops with a state."""

    if TYPE_CHECKING:

        def _step(self, op: str, node: Node, inputs: Sequence[Tensor | None], **kw: Any) -> Step: ...
        def _produce(self, step: Step, *tensors: Tensor) -> None: ...
        def _state_index(self, node: Node) -> int: ...

    def _short_conv(self, node: Node) -> None:
        a = node.attrs
        kernel = a["weight"].shape[1]
        if kernel > MAX_KERNEL:
            raise GraphError(
                f"tensor {a['weight'].name} has a kernel of {kernel}; short_conv takes up to {MAX_KERNEL}"
            )
        step = self._step("short_conv", node, node.inputs, union="short_conv")
        step.params = {
            "kernel": kernel, "activation": CONV_ACTIVATIONS.index(a["activation"]),
            "state": self._state_index(node), "weight": Transposed(a["weight"]), "bias": a["bias"],
        }  # fmt: skip
        self._produce(step, *node.outputs)

    def _ssm_scan(self, node: Node) -> None:
        (n_head, head_dim), (n_group, n_state) = node.inputs[0].shape, node.inputs[2].shape
        step = self._step("ssm_scan", node, node.inputs, union="ssm_scan")
        step.params = {
            "n_head": n_head, "head_dim": head_dim, "n_group": n_group, "n_state": n_state,
            "state": self._state_index(node), "a": node.attrs["a"], "d": node.attrs["d"],
        }  # fmt: skip
        self._produce(step, *node.outputs)

    def _gated_delta_rule(self, node: Node) -> None:
        (n_head_k, d_k), (n_head_v, d_v) = node.inputs[0].shape, node.inputs[2].shape
        step = self._step("delta_rule", node, node.inputs, union="delta_rule")
        step.params = {
            "n_head_k": n_head_k, "n_head_v": n_head_v, "d_k": d_k, "d_v": d_v, "scale": node.attrs["scale"],
            "pairing": HEAD_PAIRINGS.index(node.attrs["pairing"]), "state": self._state_index(node),
        }  # fmt: skip
        self._produce(step, *node.outputs)

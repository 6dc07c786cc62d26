"""What an architecture writes: a graph over symbolic tensors (see :class:`Architecture`)."""

from ggfw.graph.architecture import Architecture, RunConfig
from ggfw.graph.builder import Graph
from ggfw.graph.custom import CustomOp, SegmentRows, StateSpec, register_op
from ggfw.graph.hparams import Hparams
from ggfw.graph.rope import Rope, RopeScaling
from ggfw.graph.tensor import Tensor
from ggfw.graph.weights import WeightRef, Weights

__all__ = [
    "Architecture",
    "CustomOp",
    "Graph",
    "Hparams",
    "Rope",
    "RopeScaling",
    "RunConfig",
    "SegmentRows",
    "StateSpec",
    "Tensor",
    "WeightRef",
    "Weights",
    "register_op",
]

"""The base class of architectures: traits, and a ``build`` that describes the computation once, at load."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw.graph.builder import Graph
    from ggfw.graph.hparams import Hparams
    from ggfw.graph.weights import Weights


@dataclass(frozen=True)
class RunConfig:
    """What a graph may depend on besides the file.

    Attributes:
        n_ctx: context per sequence, in positions (long or short rope factors).
        kv_type: element type of the KV cache: f32, f16, bf16, q8_0 or q4_0.
        rope_scaling: override of the file's scaling type ("none" switches it off), or None.
        rope_freq_base: override of the file's base, or None.
    """

    n_ctx: int
    kv_type: str = "f16"
    rope_scaling: str | None = None
    rope_freq_base: float | None = None


class Architecture:
    """An architecture describes its computation over symbolic tensors; it never computes.

    Attributes:
        gguf_names: values of ``general.architecture`` it serves.
        causal: a position sees only itself and what stands before it.
        chunkable: a prompt may be split over several steps.
        cacheable: K/V (or state) of a prefix can be reused.

    A file may say ``attention.causal = false`` of a causal architecture (embedding models made of decoders): its
    instance then has none of the three, and ``g.causal`` is False.
    """

    gguf_names: ClassVar[tuple[str, ...]] = ()
    causal: bool = True
    chunkable: bool = True
    cacheable: bool = True

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph.

        Args:
            g: where ops are called; ends with ``g.output(...)``.
            hp: the file's hyperparameters.
            w: the file's tensors by short name.
            run: context and cache types.

        Raises:
            ModelFileError: a tensor or key is missing or does not fit.
        """
        raise NotImplementedError

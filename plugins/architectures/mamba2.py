"""mamba2: Mamba-2 (Codestral Mamba, mamba2-130m ... 2.7b): nothing but state-space layers.

    x = x + mamba2(rms_norm(x))

Source: Dao, Gu 2024 (2405.21060); tensor names as in ``llama_model_mamba2``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, RunConfig, Weights
from ggfw.graph.mixers import mamba2
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Mamba2(Architecture):
    """A stack of Mamba-2 layers; its whole memory is the state."""

    gguf_names = ("mamba2",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            x = x + mamba2(g, g.rms_norm(x, b["attn_norm"], hp.eps), b, hp, hp.eps)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w.get("output", w["token_embd"])))


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer mamba2."""
    return [ArchitectureSpec(name="mamba2", gguf_names=Mamba2.gguf_names, load=f"{__name__}:Mamba2")]

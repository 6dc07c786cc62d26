"""gemma: Gemma 1.

    x = embd * sqrt(n_embd)
    x = x + Wo attention(rope(Wq h), rope(Wk h), Wv h)        h = rms_norm(x)
    x = x + Wdown (gelu(Wgate h) * Wup h)                     h = rms_norm(x)

Source: Gemma team 2024 (2403.08295); tensor names as in ``llm_build_gemma``. Files hold norm weights with 1 added.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Weights
from ggfw.graph.blocks import gated_ffn, qkv
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Gemma(Architecture):
    """A llama with heads of their own size, scaled embeddings, GELU gates and a tied output."""

    gguf_names = ("gemma",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        rope = Rope.from_file(hp, w, run, pairing="neox")
        x = g.embed(w["token_embd"], scale=hp.n_embd**0.5)  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            q, k, v = qkv(g, h, b, hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v)
            a = g.attention(g.rope(q, rope), g.rope(k, rope), v, layer=i, scale=hp.head_dim**-0.5)
            x = x + g.linear(a, b["attn_output"])
            x = x + gated_ffn(g, g.rms_norm(x, b["ffn_norm"], hp.eps), b, g.gelu)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w["token_embd"]))


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer gemma."""
    return [ArchitectureSpec(name="gemma", gguf_names=Gemma.gguf_names, load=f"{__name__}:Gemma")]

"""smollm3: SmolLM3.

    x = x + Wo attention(rope(Wq h), rope(Wk h), Wv h)        h = rms_norm(x)
    x = x + Wdown (silu(Wgate h) * Wup h)                     h = rms_norm(x)

A llama in which every fourth layer has no rotation (NoPE, Yang et al. 2025, 2501.18795).
Source: Hugging Face 2025; tensor names as in ``llm_build_smollm3``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Weights
from ggfw.graph.blocks import qkv, swiglu
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

#: Layers 3, 7, 11, ... do not rotate.
NO_ROPE_STEP = 4


class SmolLM3(Architecture):
    """A llama without positions in every fourth layer."""

    gguf_names = ("smollm3",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        rope = Rope.from_file(hp, w, run, pairing="norm")
        scale = float(hp.get("attention.scale", 0.0)) or hp.head_dim**-0.5
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            q, k, v = qkv(g, h, b, hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v)
            if (i + 1) % NO_ROPE_STEP:
                q, k = g.rope(q, rope), g.rope(k, rope)
            a = g.attention(q, k, v, layer=i, scale=scale)
            x = x + g.linear(a, b["attn_output"], b.get("attn_output.bias"))
            x = x + swiglu(g, g.rms_norm(x, b["ffn_norm"], hp.eps), b)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w.get("output", w["token_embd"])))


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer smollm3."""
    return [ArchitectureSpec(name="smollm3", gguf_names=SmolLM3.gguf_names, load=f"{__name__}:SmolLM3")]

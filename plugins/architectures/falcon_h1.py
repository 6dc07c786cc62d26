"""falcon_h1: Falcon-H1: attention and Mamba-2 side by side in every layer.

    x = x + (Wo attention(rope(Wq h), rope(Wk h), Wv h) + mamba2(h))        h = rms_norm(x)
    x = x + Wdown (silu(Wgate h) * Wup h)                                   h = rms_norm(x)

Source: TII 2025 (2507.22448), whose multipliers are part of the file's weights; tensor names as in
``llama_model_falcon_h1``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Weights
from ggfw.graph.blocks import qkv, swiglu
from ggfw.graph.mixers import mamba2
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class FalconH1(Architecture):
    """Both mixers read one norm and add up."""

    gguf_names = ("falcon-h1",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        rope = Rope.from_file(hp, w, run, pairing="neox")
        scale = float(hp.get("attention.scale", 0.0)) or hp.head_dim**-0.5
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            q, k, v = qkv(g, h, b, hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v)
            a = g.attention(g.rope(q, rope), g.rope(k, rope), v, layer=i, scale=scale)
            x = x + g.linear(a, b["attn_output"], b.get("attn_output.bias"))
            x = x + mamba2(g, h, b, hp, hp.eps)
            x = x + swiglu(g, g.rms_norm(x, b["ffn_norm"], hp.eps), b)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w.get("output", w["token_embd"])))


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer falcon-h1."""
    return [ArchitectureSpec(name="falcon-h1", gguf_names=FalconH1.gguf_names, load=f"{__name__}:FalconH1")]

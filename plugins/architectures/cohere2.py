"""cohere2: Cohere's Command R7B and Command A.

    h = layer_norm(x)
    x = x + Wo attention(q, k, Wv h) + Wdown (silu(Wgate h) * Wup h)

    three of four layers see a window:      q, k = rope(Wq h), rope(Wk h)
    every fourth sees everything:           q, k = Wq h, Wk h

Source: Cohere 2025 (2504.00698); tensor names as in ``llm_build_cohere2``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Weights
from ggfw.graph.blocks import qkv, swiglu, windowed
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Cohere2(Architecture):
    """Parallel branches under one layer norm; rotation only where there is a window; tied output with a scale."""

    gguf_names = ("cohere2",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        rope = Rope.from_file(hp, w, run, pairing="norm")
        eps = float(hp.get("attention.layer_norm_epsilon"))
        window = hp.integer("attention.sliding_window")
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i, is_local in enumerate(windowed(hp, period=4)):
            b = w.block(i)
            h = g.layer_norm(x, b["attn_norm"], None, eps)
            q, k, v = qkv(g, h, b, hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v)
            if is_local:
                q, k = g.rope(q, rope), g.rope(k, rope)
            a = g.attention(q, k, v, layer=i, scale=hp.head_dim**-0.5, window=window if is_local else 0)
            x = x + g.linear(a, b["attn_output"], b.get("attn_output.bias")) + swiglu(g, h, b)
        h = g.layer_norm(g.select_outputs(x), w["output_norm"], None, eps)
        scale = float(hp.get("logit_scale")) or 1.0
        g.output(hidden=h, logits=g.linear(h, w["token_embd"], scale=scale))


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer cohere2."""
    return [ArchitectureSpec(name="cohere2", gguf_names=Cohere2.gguf_names, load=f"{__name__}:Cohere2")]

"""command-r: Cohere's Command R and R+, Aya.

    h = layer_norm(x)
    x = x + Wo attention(rope(Wq h), rope(Wk h), Wv h) + Wdown (silu(Wgate h) * Wup h)

Both branches read the same norm, which has no bias; R+ normalises q and k per head. Logits are scaled.
Source: Cohere 2024 (model cards of c4ai-command-r-v01 and -plus); tensor names as in ``llm_build_command_r``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Weights
from ggfw.graph.blocks import qkv, swiglu
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class CommandR(Architecture):
    """Parallel branches, layer norms without bias, rotation of neighbouring pairs, tied output with a scale."""

    gguf_names = ("command-r",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        rope = Rope.from_file(hp, w, run, pairing="norm")
        eps = float(hp.get("attention.layer_norm_epsilon"))
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            h = g.layer_norm(x, b["attn_norm"], None, eps)
            q, k, v = qkv(g, h, b, hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v)
            if "attn_q_norm" in b:  # a row of weights for each head
                q = g.layer_norm(q, b["attn_q_norm"], None, eps)
                k = g.layer_norm(k, b["attn_k_norm"], None, eps)
            a = g.attention(g.rope(q, rope), g.rope(k, rope), v, layer=i, scale=hp.head_dim**-0.5)
            x = x + g.linear(a, b["attn_output"], b.get("attn_output.bias")) + swiglu(g, h, b)
        h = g.layer_norm(g.select_outputs(x), w["output_norm"], None, eps)
        scale = float(hp.get("logit_scale", 0.0)) or 1.0
        g.output(hidden=h, logits=g.linear(h, w["token_embd"], scale=scale))


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer command-r."""
    return [ArchitectureSpec(name="command-r", gguf_names=CommandR.gguf_names, load=f"{__name__}:CommandR")]

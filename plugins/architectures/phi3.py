"""phi3: Phi-3, Phi-3.5 and Phi-4 (dense).

    x = x + Wo attention(rope(q), rope(k), v)        q, k, v = Wqkv h,       h = rms_norm(x)
    x = x + Wdown (silu(gate) * up)                  gate, up = Wgate_up h,  h = rms_norm(x)

Beyond the original context, "longrope" divides each frequency by a long factor, else by a short one, and scales cos and
sin (Ding et al. 2024, 2402.13753). The window that files of the small models name is not applied, as in llama.cpp.
Source: Abdin et al. 2024 (2404.14219); tensor names as in ``llm_build_phi3``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Weights
from ggfw.graph.blocks import fused_swiglu, qkv
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Phi3(Architecture):
    """A llama with fused matrices, rotation by halves (of a part of each head, in some), and longrope."""

    gguf_names = ("phi3",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        rope = Rope.from_file(hp, w, run, pairing="neox")
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            q, k, v = qkv(g, h, b, hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v)
            a = g.attention(g.rope(q, rope), g.rope(k, rope), v, layer=i, scale=hp.head_dim**-0.5)
            x = x + g.linear(a, b["attn_output"], b.get("attn_output.bias"))
            x = x + fused_swiglu(g, g.rms_norm(x, b["ffn_norm"], hp.eps), b)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        logits = g.linear(h, w.get("output", w["token_embd"]), w.get("output.bias"))
        g.output(hidden=h, logits=logits)


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer phi3."""
    return [ArchitectureSpec(name="phi3", gguf_names=Phi3.gguf_names, load=f"{__name__}:Phi3")]

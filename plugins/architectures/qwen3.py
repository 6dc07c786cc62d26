"""qwen3: Qwen 3, dense and with experts.

    x = x + Wo attention(rope(norm Wq h), rope(norm Wk h), Wv h)        h = rms_norm(x)
    x = x + Wdown (silu(Wgate h) * Wup h)                               h = rms_norm(x)

    with experts:  x = x + sum_e p_e ffn_e(h)                           p = softmax(Wr h), the best, renormalised

Source: Qwen team 2025 (2505.09388); tensor names as in ``llm_build_qwen3moe``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Weights
from ggfw.graph.blocks import moe, qkv, swiglu
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Qwen3(Architecture):
    """A llama with norms per head on q and k, heads of their own size, and rotation by halves."""

    gguf_names = ("qwen3", "qwen3moe")

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        rope = Rope.from_file(hp, w, run, pairing="neox")
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            q, k, v = qkv(g, h, b, hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v)
            q = g.rope(g.rms_norm(q, b["attn_q_norm"], hp.eps), rope)
            k = g.rope(g.rms_norm(k, b["attn_k_norm"], hp.eps), rope)
            a = g.attention(q, k, v, layer=i, scale=hp.head_dim**-0.5)
            x = x + g.linear(a, b["attn_output"])
            h = g.rms_norm(x, b["ffn_norm"], hp.eps)
            x = x + (moe(g, h, b, hp) if "ffn_gate_inp" in b else swiglu(g, h, b))
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w.get("output", w["token_embd"])))


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer qwen3."""
    return [ArchitectureSpec(name="qwen3", gguf_names=Qwen3.gguf_names, load=f"{__name__}:Qwen3")]

"""qwen2: Qwen 1.5, 2 and 2.5, dense and with experts.

    x = x + Wo attention(rope(Wq h + bq), rope(Wk h + bk), Wv h + bv)        h = rms_norm(x)
    x = x + Wdown (silu(Wgate h) * Wup h)                                    h = rms_norm(x)

    with experts:  x = x + sum_e p_e ffn_e(h) + sigmoid(w_s h) * ffn_s(h)    p = softmax(Wr h), the best, as they are

Source: Qwen team 2024 (2407.10671); tensor names as in ``llm_build_qwen2moe``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Weights
from ggfw.graph.blocks import gated_shared_expert, moe, qkv, swiglu
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Qwen2(Architecture):
    """A llama with biases on q, k and v, rotation by halves, and perhaps a gated shared expert."""

    gguf_names = ("qwen2", "qwen2moe")

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
            h = g.rms_norm(x, b["ffn_norm"], hp.eps)
            if "ffn_gate_inp" in b:
                x = x + (moe(g, h, b, hp, renormalise=False) + gated_shared_expert(g, h, b))
            else:
                x = x + swiglu(g, h, b)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w.get("output", w["token_embd"]), w.get("output.bias")))


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer qwen2."""
    return [ArchitectureSpec(name="qwen2", gguf_names=Qwen2.gguf_names, load=f"{__name__}:Qwen2")]

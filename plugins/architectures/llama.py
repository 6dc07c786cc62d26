"""llama: the Llama family and all that kept its shape (Llama 1-3, Mistral, Mixtral, SmolLM2, ...).

    x = x + Wo attention(rope(Wq h), rope(Wk h), Wv h)        h = rms_norm(x)
    x = x + Wdown (silu(Wgate h) * Wup h)                     h = rms_norm(x), or a mixture of such experts

Source: Touvron et al. 2023 (2302.13971), Jiang et al. 2024 (2401.04088); tensor names as in ``llm_build_llama``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Tensor, Weights
from ggfw.graph.blocks import swiglu
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Llama(Architecture):
    """Pre-norm transformer with GQA, rotary positions of neighbouring pairs, and SwiGLU."""

    gguf_names = ("llama", "llama2", "llama3", "mistral", "mistral3", "ministral", "mixtral")

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        n_head, n_kv, d = hp.n_head, hp.n_head_kv, hp.head_dim
        rope = Rope.from_file(hp, w, run, pairing="norm")
        scale = float(hp.get("attention.scale", 0.0)) or d**-0.5
        temperature = float(hp.get("attention.temperature_scale", 0.0))
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            q = g.linear(h, b["attn_q"], b.get("attn_q.bias")).heads(n_head, d)
            k = g.linear(h, b["attn_k"], b.get("attn_k.bias")).heads(n_kv, d)
            v = g.linear(h, b["attn_v"], b.get("attn_v.bias")).heads(n_kv, hp.head_dim_v)
            q, k = g.rope(q, rope), g.rope(k, rope)
            if temperature:  # Ministral 3 sharpens attention beyond the original context
                q = g.position_scale(q, rope.scaling.original_context, temperature)
            a = g.attention(q, k, v, layer=i, scale=scale)
            x = x + g.linear(a, b["attn_output"], b.get("attn_output.bias"))
            h = g.rms_norm(x, b["ffn_norm"], hp.eps)
            x = x + (moe(g, h, b, hp) if "ffn_gate_inp" in b else swiglu(g, h, b))
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w.get("output", w["token_embd"])))


def moe(g: Graph, h: Tensor, b: Weights, hp: Hparams) -> Tensor:
    """Mixtral's experts: softmax over all, the best ones renormalised."""
    ids, weights = g.moe_route(g.linear(h, b["ffn_gate_inp"]), hp.n_expert_used)
    gate = g.moe_linear(h, ids, b["ffn_gate_exps"])  # (T, n_used, n_ff)
    up = g.moe_linear(h, ids, b["ffn_up_exps"])
    return g.moe_sum(g.moe_linear(g.silu(gate) * up, ids, b["ffn_down_exps"]), weights)


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer llama."""
    return [ArchitectureSpec(name="llama", gguf_names=Llama.gguf_names, load=f"{__name__}:Llama")]

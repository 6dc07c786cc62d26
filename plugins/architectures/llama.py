"""llama: the Llama family and all that kept its shape (Llama 1-3, Mistral, Mixtral, SmolLM2, ...).

    x = x + Wo attention(rope(Wq h), rope(Wk h), Wv h)        h = rms_norm(x)
    x = x + Wdown (silu(Wgate h) * Wup h)                     h = rms_norm(x), or a mixture of such experts

Source: Touvron et al. 2023 (2302.13971), Jiang et al. 2024 (2401.04088); tensor names as in ``llm_build_llama``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Weights
from ggfw.graph.blocks import moe, qkv, swiglu
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Llama(Architecture):
    """Pre-norm transformer with GQA, rotary positions of neighbouring pairs, and SwiGLU."""

    gguf_names = ("llama", "llama2", "llama3", "mistral", "mistral3", "ministral", "mixtral")

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        rope = Rope.from_file(hp, w, run, pairing="norm")
        scale = float(hp.get("attention.scale", 0.0)) or hp.head_dim**-0.5
        temperature = float(hp.get("attention.temperature_scale", 0.0))
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            q, k, v = qkv(g, h, b, hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v)
            q, k = g.rope(q, rope), g.rope(k, rope)
            if temperature:  # Ministral 3 sharpens attention beyond the original context
                q = g.position_scale(q, rope.scaling.original_context, temperature)
            a = g.attention(q, k, v, layer=i, scale=scale)
            x = x + g.linear(a, b["attn_output"], b.get("attn_output.bias"))
            h = g.rms_norm(x, b["ffn_norm"], hp.eps)
            x = x + (moe(g, h, b, hp) if "ffn_gate_inp" in b else swiglu(g, h, b))
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w.get("output", w["token_embd"])))


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer llama."""
    return [ArchitectureSpec(name="llama", gguf_names=Llama.gguf_names, load=f"{__name__}:Llama")]

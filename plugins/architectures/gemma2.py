"""gemma2: Gemma 2.

    x = embd * sqrt(n_embd)
    x = x + norm(Wo attention(rope(Wq h), rope(Wk h), Wv h))        h = rms_norm(x)
    x = x + norm(Wdown (gelu(Wgate h) * Wup h))                     h = rms_norm(x)

Every other layer sees a window; norms sit before and after each branch; scores and logits are capped by tanh.
Source: Gemma team 2024 (2408.00118); tensor names as in ``llm_build_gemma2``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Weights
from ggfw.graph.blocks import gated_ffn, qkv, windowed
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

#: Layers of the 27B model, whose scores are scaled by n_embd / n_head instead of the head size.
N_LAYER_27B = 46


class Gemma2(Architecture):
    """Sandwich norms, alternating windows, soft caps, GELU gates, tied output."""

    gguf_names = ("gemma2",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        full = Rope.from_file(hp, w, run, pairing="neox")
        local = full.at_base(float(hp.get("rope.freq_base_swa", full.base)))
        window = hp.integer("attention.sliding_window", 4096)
        scale = (hp.n_embd / hp.n_head if hp.n_layer == N_LAYER_27B else hp.head_dim) ** -0.5
        score_cap = float(hp.get("attn_logit_softcapping", 50.0))
        x = g.embed(w["token_embd"], scale=hp.n_embd**0.5)  # (T, n_embd)
        for i, is_local in enumerate(windowed(hp, period=2)):
            b, rope = w.block(i), local if is_local else full
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            q, k, v = qkv(g, h, b, hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v)
            q, k = g.rope(q, rope), g.rope(k, rope)
            seen = window if is_local else 0
            a = g.attention(q, k, v, layer=i, scale=scale, window=seen, softcap=score_cap)
            x = x + g.rms_norm(g.linear(a, b["attn_output"]), b["post_attention_norm"], hp.eps)
            h = gated_ffn(g, g.rms_norm(x, b["ffn_norm"], hp.eps), b, g.gelu)
            x = x + g.rms_norm(h, b["post_ffw_norm"], hp.eps)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        logits = g.linear(h, w["token_embd"])
        g.output(hidden=h, logits=g.softcap(logits, float(hp.get("final_logit_softcapping", 30.0))))


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer gemma2."""
    return [ArchitectureSpec(name="gemma2", gguf_names=Gemma2.gguf_names, load=f"{__name__}:Gemma2")]

"""gemma3: Gemma 3 (text).

    x = embd * sqrt(n_embd)
    x = x + norm(Wo attention(rope(norm Wq h), rope(norm Wk h), Wv h))    h = rms_norm(x)
    x = x + norm(Wdown (gelu(Wgate h) * Wup h))                           h = rms_norm(x)

Five of six layers see a window and rotate with their own base; norms sit before and after each branch.
Source: Gemma team 2025 (2503.19786); tensor names as in ``llm_build_gemma3``.
"""

from dataclasses import replace

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RopeScaling, RunConfig, Weights
from ggfw.graph.blocks import gated_ffn, qkv, windowed
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

#: Layers of the 27B model, whose scores are scaled by n_embd / n_head instead of the head size.
N_LAYER_27B = 62


class Gemma3(Architecture):
    """Sandwich norms, q/k norms, alternating windows, GELU gates, tied output."""

    gguf_names = ("gemma3",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        full = Rope.from_file(hp, w, run, pairing="neox")
        local_base = float(hp.get("rope.freq_base_swa", 10000.0))
        local = replace(full, base=local_base, scaling=RopeScaling(), factors=None)
        window = hp.integer("attention.sliding_window", 0)
        scale = (hp.n_embd / hp.n_head if hp.n_layer == N_LAYER_27B else hp.head_dim) ** -0.5
        softcap = float(hp.get("final_logit_softcapping", 0.0))
        x = g.embed(w["token_embd"], scale=hp.n_embd**0.5)  # (T, n_embd)
        for i, is_local in enumerate(windowed(hp, period=6)):
            b, rope = w.block(i), local if is_local and window else full
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            q, k, v = qkv(g, h, b, hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v)
            q = g.rope(g.rms_norm(q, b["attn_q_norm"], hp.eps), rope)
            k = g.rope(g.rms_norm(k, b["attn_k_norm"], hp.eps), rope)
            a = g.attention(q, k, v, layer=i, scale=scale, window=window if is_local else 0)
            x = x + g.rms_norm(g.linear(a, b["attn_output"]), b["post_attention_norm"], hp.eps)
            h = gated_ffn(g, g.rms_norm(x, b["ffn_norm"], hp.eps), b, g.gelu)
            x = x + g.rms_norm(h, b["post_ffw_norm"], hp.eps)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        logits = g.linear(h, w.get("output", w["token_embd"]))
        g.output(hidden=h, logits=g.softcap(logits, softcap) if softcap else logits)


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer gemma3."""
    return [ArchitectureSpec(name="gemma3", gguf_names=Gemma3.gguf_names, load=f"{__name__}:Gemma3")]

"""gemma-embedding: EmbeddingGemma, Gemma 3 as an encoder.

    x = embd * sqrt(n_embd)
    x = x + norm(Wo attention(rope(norm Wq h), rope(norm Wk h), Wv h))    h = rms_norm(x)
    x = x + norm(Wdown (gelu(Wgate h) * Wup h))                           h = rms_norm(x)

Positions see both ways: all others, in five of six layers those at most half a window away, with a rotation of their
own. The output is pooled as the file says; two dense layers may follow.

Source: Gemma team 2025 (2509.20354); tensor names as in ``llama_model_gemma_embedding``.
"""

from dataclasses import replace

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RopeScaling, RunConfig, Weights
from ggfw.graph.blocks import gated_ffn, qkv, windowed
from ggfw.graph.pooling import pooled
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class GemmaEmbedding(Architecture):
    """Sandwich norms, q/k norms, windows on both sides, GELU gates; whole texts in one step, no cache."""

    gguf_names = ("gemma-embedding",)
    causal = chunkable = cacheable = False

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        full = Rope.from_file(hp, w, run, pairing="neox")
        base = hp.number("rope.freq_base_swa", 10000.0, positive=True)
        local = replace(full, base=base, scaling=RopeScaling(), factors=None)
        window = hp.integer("attention.sliding_window", least=1)
        x = g.embed(w["token_embd"], scale=hp.n_embd**0.5)  # (T, n_embd)
        for i, is_local in enumerate(windowed(hp, period=6)):
            b, rope = w.block(i), local if is_local else full
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            q, k, v = qkv(g, h, b, hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v)
            q = g.rope(g.rms_norm(q, b["attn_q_norm"], hp.eps), rope)
            k = g.rope(g.rms_norm(k, b["attn_k_norm"], hp.eps), rope)
            size = window if is_local else 0
            a = g.attention(
                q, k, v, layer=i, scale=hp.head_dim**-0.5, causal=False, window=size, symmetric=is_local
            )
            x = x + g.rms_norm(g.linear(a, b["attn_output"]), b["post_attention_norm"], hp.eps)
            h = gated_ffn(g, g.rms_norm(x, b["ffn_norm"], hp.eps), b, g.gelu)
            x = x + g.rms_norm(h, b["post_ffw_norm"], hp.eps)
        hidden = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=hidden, pooled=pooled(g, hp, w, hidden))


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer gemma-embedding."""
    spec = ArchitectureSpec(
        name="gemma-embedding", gguf_names=GemmaEmbedding.gguf_names, load=f"{__name__}:GemmaEmbedding"
    )
    return [spec]

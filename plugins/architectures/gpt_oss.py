"""gpt-oss: OpenAI's open-weight mixture of experts (20B, 120B).

    x = x + Wo attention(rope(Wq h + bq), rope(Wk h + bk), Wv h + bv; sinks) + bo        h = rms_norm(x)
    x = x + sum_e p_e (Wdown_e gate(Wgate_e h + bg_e, Wup_e h + bu_e) + bd_e)            h = rms_norm(x)

    p = softmax over the best of Wr h + br;  gate(a, u) = a sigmoid(1.702 a) (u + 1), a up to 7, u within +-7

Every other layer sees a window; a learned logit per head (sink) takes its share of each softmax. The norm before the
experts is stored as ``post_attention_norm``.
Source: OpenAI 2025 (2508.10925); tensor names as in ``llm_build_openai_moe``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Weights
from ggfw.graph.blocks import moe, qkv, windowed
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class GptOss(Architecture):
    """Biases everywhere, attention sinks, alternating windows, clamped gates, weights from the chosen logits only."""

    gguf_names = ("gpt-oss",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        full = Rope.from_file(hp, w, run, pairing="neox")
        local = full.at_base(float(hp.get("rope.freq_base_swa", full.base)))
        window = hp.integer("attention.sliding_window")
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i, is_local in enumerate(windowed(hp, period=2)):
            b, rope = w.block(i), local if is_local else full
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            q, k, v = qkv(g, h, b, hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v)
            a = g.attention(
                g.rope(q, rope),
                g.rope(k, rope),
                v,
                layer=i,
                scale=hp.head_dim**-0.5,
                window=window if is_local else 0,
                sinks=b["attn_sinks"],
            )
            x = x + g.linear(a, b["attn_output"], b["attn_output.bias"])
            h = g.rms_norm(x, b["post_attention_norm"], hp.eps)
            x = x + moe(g, h, b, hp, gated=g.gpt_oss_gate, gate="softmax_weight", renormalise=False)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w["output"]))


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer gpt-oss."""
    return [ArchitectureSpec(name="gpt-oss", gguf_names=GptOss.gguf_names, load=f"{__name__}:GptOss")]

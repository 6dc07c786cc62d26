"""lfm2: Liquid's LFM2, dense and with experts: short convolutions, attention in some layers.

    x = x + f(rms_norm(x))                       x = x + ffn(rms_norm(x))

    f = Wo attention(rope(norm Wq h), rope(norm Wk h), Wv h)       where the layer has K/V heads
      | Wout (c * conv(b * u))                                     b, c, u = Win h

    ffn = SwiGLU, after the first layers of lfm2moe experts: p = sigmoid(Wr h), the best of p + bias, renormalised

Source: Liquid AI 2025 (2511.23404); tensor names as in ``llama_model_lfm2``; the final norm is ``token_embd_norm``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Tensor, Weights
from ggfw.graph.blocks import expect_rows, expert_gate, experts, qkv, swiglu
from ggfw.graph.mixers import expect_kernel, expect_kind
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Lfm2(Architecture):
    """Gated short convolutions with attention between them; tied output."""

    gguf_names = ("lfm2", "lfm2moe")

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        n_kv, d = hp.per_layer("attention.head_count_kv"), hp.head_dim
        rope = Rope.from_file(hp, w, run, pairing="neox")
        window = hp.integer("attention.sliding_window", 0)
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            mark = "attn_output" if n_kv[i] else "shortconv.in_proj"
            keys = f"{hp.architecture}.attention.head_count_kv {n_kv[i]}"
            expect_kind(b, i, mark, f"{keys} of the layer asks for it")
            if n_kv[i]:
                q, k, v = qkv(g, h, b, hp.n_head, n_kv[i], d, hp.head_dim_v)
                q = g.rope(g.rms_norm(q, b["attn_q_norm"], hp.eps), rope)
                k = g.rope(g.rms_norm(k, b["attn_k_norm"], hp.eps), rope)
                a = g.attention(q, k, v, layer=i, scale=d**-0.5, window=window)
                x = x + g.linear(a, b["attn_output"])
            else:
                x = x + gated_conv(g, h, b, hp)
            h = g.rms_norm(x, b["ffn_norm"], hp.eps)
            x = x + (moe(g, h, b, hp) if "ffn_gate_inp" in b else swiglu(g, h, b))
        h = g.rms_norm(g.select_outputs(x), w["token_embd_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w.get("output", w["token_embd"])))


def gated_conv(g: Graph, h: Tensor, b: Weights, hp: Hparams) -> Tensor:
    """Wout (c * conv(b * u)): a convolution between two gates."""
    n = hp.n_embd
    expect_rows(b["shortconv.in_proj"], 3 * n, f"{hp.architecture}.embedding_length {n}, three times,")
    expect_kernel(b["shortconv.conv"], hp, "shortconv.l_cache")
    gate_in, gate_out, u = g.split(g.linear(h, b["shortconv.in_proj"]), n, n, n)
    return g.linear(gate_out * g.short_conv(gate_in * u, b["shortconv.conv"]), b["shortconv.out_proj"])


def moe(g: Graph, h: Tensor, b: Weights, hp: Hparams) -> Tensor:
    """SwiGLU experts, chosen with a bias that does not enter their weights."""
    expect_rows(b["ffn_gate_inp"], hp.n_expert, f"{hp.architecture}.expert_count {hp.n_expert}")
    ids, weights = g.moe_route(
        g.linear(h, b["ffn_gate_inp"]),
        hp.n_expert_used,
        gate=expert_gate(hp, "sigmoid"),
        selection_bias=b.get("exp_probs_b.bias"),
        scale=float(hp.get("expert_weights_scale", 0.0)) or 1.0,
    )
    return experts(g, h, ids, weights, b, lambda gate, up: g.silu(gate) * up)


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer lfm2."""
    return [ArchitectureSpec(name="lfm2", gguf_names=Lfm2.gguf_names, load=f"{__name__}:Lfm2")]

"""bert: BERT and RoBERTa encoders, and Nomic Embed (v1 with gates and rotation, v2 with experts as well).

    x = norm(embd + type + position)
    x = norm(x + Wo attention(Wq x, Wk x, Wv x))        every position sees every other one
    x = norm(x + Wdown gelu(Wup x))

    nomic-bert:  no positions are added, q and k are rotated;  Wdown (silu(Wgate x) * Wup x)
    nomic-bert-moe:  in every other layer  sum_e p_e ffn_e(x),  p = softmax(Wr x)

Norms are layer norms after the sums (post-norm). The output is pooled as the file says.

Source: Devlin et al. 2019 (1810.04805), Nussbaum et al. 2024 (2402.01613), Nussbaum, Duderstadt 2025 (2502.07972);
tensor names as in ``llama_model_bert``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Tensor, Weights
from ggfw.graph.blocks import expect_rows, qkv, swiglu
from ggfw.graph.mixers import expect_kind
from ggfw.graph.pooling import pooled
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Bert(Architecture):
    """Post-norm encoder; whole texts in one step, no cache."""

    gguf_names = ("bert", "nomic-bert", "nomic-bert-moe")
    causal = chunkable = cacheable = False

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        eps = hp.number("attention.layer_norm_epsilon")
        rope = None if "position_embd" in w else Rope.from_file(hp, w, run, pairing="neox")
        every = hp.integer("moe_every_n_layers", 0)

        def norm(x: Tensor, t: Weights, name: str) -> Tensor:
            return g.layer_norm(x, t[name], t.get(f"{name}.bias"), eps)

        x = g.embed(w["token_embd"])  # (T, n_embd)
        if "token_types" in w:
            x = x + g.embed(w["token_types"], by="type")
        if rope is None:
            x = x + g.embed(w["position_embd"], by="position")
        x = norm(x, w, "token_embd_norm")
        for i in range(hp.n_layer):
            b = w.block(i)
            q, k, v = qkv(g, x, b, hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v)
            if rope is not None:
                q, k = g.rope(q, rope), g.rope(k, rope)
            a = g.attention(q, k, v, layer=i, scale=hp.head_dim**-0.5, causal=False)
            x = norm(x + g.linear(a, b["attn_output"], b.get("attn_output.bias")), b, "attn_output_norm")
            has_experts = every > 0 and i % every == 1
            key = f"{hp.architecture}.moe_every_n_layers {every} asks for it"
            expect_kind(b, i, "ffn_gate_inp" if has_experts else "ffn_up", key)
            h = moe(g, x, b, hp) if has_experts else ffn(g, x, b)
            x = norm(x + h, b, "layer_output_norm")
        hidden = g.select_outputs(x)
        g.output(hidden=hidden, pooled=pooled(g, hp, w, hidden))


def ffn(g: Graph, x: Tensor, b: Weights) -> Tensor:
    """Wdown gelu(Wup x), or with a gate."""
    if "ffn_gate" in b:
        return swiglu(g, x, b)
    up = g.linear(x, b["ffn_up"], b.get("ffn_up.bias"))
    return g.linear(g.gelu(up), b["ffn_down"], b.get("ffn_down.bias"))


def moe(g: Graph, x: Tensor, b: Weights, hp: Hparams) -> Tensor:
    """Experts without gates."""
    expect_rows(b["ffn_gate_inp"], hp.n_expert, f"{hp.architecture}.expert_count {hp.n_expert}")
    scale = hp.number("expert_weights_scale", 0.0) or 1.0
    ids, weights = g.moe_route(
        g.linear(x, b["ffn_gate_inp"]), hp.n_expert_used, renormalise=False, scale=scale
    )
    up = g.gelu(g.moe_linear(x, ids, b["ffn_up_exps"]))
    return g.moe_sum(g.moe_linear(up, ids, b["ffn_down_exps"]), weights)


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer bert."""
    return [ArchitectureSpec(name="bert", gguf_names=Bert.gguf_names, load=f"{__name__}:Bert")]

"""nemotron_h: Nemotron-H and Nemotron 3: one mixer per layer, Mamba-2, attention without positions, or an FFN.

    x = x + f(rms_norm(x))      f = mamba2(h)
                                  | Wo attention(Wq h, Wk h, Wv h)
                                  | Wdown relu(Wup h)^2
                                  | Wl' sum_e p_e ffn_e(Wl h) + ffn_s(h)    p = sigmoid(Wr h), the best of p + bias

Layer i is attention where it has K/V heads, an FFN where it has hidden columns, Mamba-2 where it has neither. The
latent projections Wl and Wl' are in some files only.

Source: NVIDIA 2025 (2504.03624, 2512.20848); tensor names as in ``llama_model_nemotron_h``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, RunConfig, Tensor, Weights
from ggfw.graph.blocks import expect_rows, qkv
from ggfw.graph.mixers import expect_kind, mamba2
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class NemotronH(Architecture):
    """A hybrid of Mamba-2 and a few attention layers; nothing tells a position but the order of the rows."""

    gguf_names = ("nemotron_h", "nemotron_h_moe")

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        n_head, n_kv = hp.per_layer("attention.head_count"), hp.per_layer("attention.head_count_kv")
        n_ff, n_used = hp.per_layer("feed_forward_length"), hp.per_layer("expert_used_count", 0)
        d = hp.integer("attention.key_length", hp.n_embd // max(n_head))
        scale = float(hp.get("attention.scale", 0.0)) or d**-0.5
        layer_eps = hp.get("attention.layer_norm_epsilon", None)
        eps = float(hp.get("attention.layer_norm_rms_epsilon", *([] if layer_eps is None else [layer_eps])))
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            h = g.rms_norm(x, b["attn_norm"], eps)
            mark = (
                ("ffn_gate_inp" if hp.n_expert else "ffn_up")
                if n_ff[i]
                else "attn_output"
                if n_kv[i]
                else "ssm_in"
            )
            keys = f"feed_forward_length {n_ff[i]} and attention.head_count_kv {n_kv[i]}"
            expect_kind(b, i, mark, f"{hp.architecture}.{keys} of the layer ask for it")
            if n_ff[i]:
                x = x + (moe(g, h, b, hp, n_used[i]) if hp.n_expert else ffn(g, h, b))
            elif n_kv[i]:
                q, k, v = qkv(g, h, b, n_head[i], n_kv[i], d, hp.integer("attention.value_length", d))
                a = g.attention(q, k, v, layer=i, scale=scale)
                x = x + g.linear(a, b["attn_output"], b.get("attn_output.bias"))
            else:
                x = x + mamba2(g, h, b, hp, eps)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], eps)
        g.output(hidden=h, logits=g.linear(h, w.get("output", w["token_embd"])))


def ffn(g: Graph, h: Tensor, b: Weights, kind: str = "") -> Tensor:
    """Wdown relu(Wup h)^2."""
    up = g.linear(h, b[f"ffn_up{kind}"], b.get(f"ffn_up{kind}.bias"))
    return g.linear(g.relu2(up), b[f"ffn_down{kind}"], b.get(f"ffn_down{kind}.bias"))


def moe(g: Graph, h: Tensor, b: Weights, hp: Hparams, n_used: int) -> Tensor:
    """Experts of the squared-ReLU kind, perhaps in a narrower (latent) space, and one shared expert outside it."""
    expect_rows(b["ffn_gate_inp"], hp.n_expert, f"{hp.architecture}.expert_count {hp.n_expert}")
    ids, weights = g.moe_route(
        g.linear(h, b["ffn_gate_inp"]),
        int(n_used),
        gate="sigmoid",
        selection_bias=b["exp_probs_b.bias"],
        renormalise=bool(hp.get("expert_weights_norm", False)),
        scale=float(hp.get("expert_weights_scale", 0.0)) or 1.0,
    )
    latent = "ffn_latent_down" in b
    u = g.linear(h, b["ffn_latent_down"]) if latent else h
    up = g.relu2(g.moe_linear(u, ids, b["ffn_up_exps"], scale=b.get("ffn_up_exps.scale")))
    down = g.moe_linear(
        up, ids, b["ffn_down_exps"], scale=b.get("ffn_down_exps.scale")
    )  # (T, n_used, n_latent)
    y = g.moe_sum(down, weights)
    return (g.linear(y, b["ffn_latent_up"]) if latent else y) + ffn(g, h, b, "_shexp")


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer nemotron_h."""
    return [
        ArchitectureSpec(name="nemotron_h", gguf_names=NemotronH.gguf_names, load=f"{__name__}:NemotronH")
    ]

"""qwen3next, qwen35: Qwen3-Next and Qwen 3.5: gated delta nets, gated attention in each n-th layer.

    x = x + f(rms_norm(x))                       x = x + ffn(rms_norm(x))

    f = Wo (sigmoid(gate) * attention(rope(norm q), rope(norm Wk h), Wv h))                  q, gate = Wq h
      | Wo (silu(Wz h) * norm(delta(l2 q, l2 k, v, decay, sigmoid(Wb h))))                   q, k, v = silu(conv(W h))
        decay = a softplus(Wa h + bias)

    ffn = SwiGLU, or experts with softmax weights and a gated shared expert

The two families differ in the order of value heads and in how beta and alpha are stored.

Source: Yang et al. 2024 (2412.06464), Qwen team 2025; tensor names as in ``llama_model_qwen3next`` and
``llama_model_qwen35``.
"""

from typing import ClassVar

from ggfw.descriptors import ArchitectureSpec
from ggfw.errors import ModelFileError
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Tensor, Weights
from ggfw.graph.blocks import expect_rows, gated_shared_expert, moe, swiglu
from ggfw.graph.mixers import divided, expect_kernel, expect_kind
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Qwen3Next(Architecture):
    """Grouped value heads (head h reads key head h / r); beta and alpha interleaved by key head."""

    gguf_names: ClassVar[tuple[str, ...]] = ("qwen3next",)
    pairing: ClassVar[str] = "div"

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        # Sections of the rotation tell media positions apart; those of text are equal, so it is an ordinary one.
        rope = Rope.from_file(hp, w, run, pairing="neox")
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i, is_recurrent in enumerate(recurrent_layers(hp)):
            b = w.block(i)
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            keys = f"{hp.architecture}.attention.recurrent_layers or full_attention_interval"
            kind, mark = ("a delta net", "ssm_out") if is_recurrent else ("attention", "attn_output")
            expect_kind(b, i, mark, f"{keys} make the layer {kind}")
            x = x + (self.delta_net(g, h, b, hp) if is_recurrent else gated_attention(g, h, b, hp, rope, i))
            h = g.rms_norm(x, b["post_attention_norm"], hp.eps)
            if "ffn_gate_inp" in b:
                x = x + (moe(g, h, b, hp) + gated_shared_expert(g, h, b))
            else:
                x = x + swiglu(g, h, b)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w.get("output", w["token_embd"])))

    def delta_net(self, g: Graph, h: Tensor, b: Weights, hp: Hparams) -> Tensor:
        """A gated delta net with its convolution, norms and gate."""
        n_k, n_v = hp.integer("ssm.group_count"), hp.integer("ssm.time_step_rank")
        d_k, d_v = hp.integer("ssm.state_size"), divided(hp, "ssm.inner_size", "ssm.time_step_rank")
        mixed, z = self.mixed_and_gate(g, h, b, hp)  # (T, 2 * n_k * d_k + n_v * d_v), (T, n_v * d_v)
        beta, alpha = self.beta_and_alpha(g, h, b, hp)  # (T, n_v)
        decay = g.softplus(alpha + b["ssm_dt.bias"]) * b["ssm_a"]
        expect_kernel(b["ssm_conv1d"], hp, "ssm.conv_kernel")
        mixed = g.short_conv(mixed, b["ssm_conv1d"], activation="silu")
        q, k, v = g.split(mixed, n_k * d_k, n_k * d_k, n_v * d_v)
        q, k = (g.l2_norm(t.heads(n_k, d_k), hp.eps) for t in (q, k))
        o = g.gated_delta_rule(
            q, k, v.heads(n_v, d_v), decay, g.sigmoid(beta), scale=d_k**-0.5, pairing=self.pairing
        )
        o = g.rms_norm(
            o.named(b["ssm_norm"].name.replace("norm.weight", "delta")), b["ssm_norm"], hp.eps
        ).flat()
        return g.linear(g.silu(z) * o, b["ssm_out"])

    def mixed_and_gate(self, g: Graph, h: Tensor, b: Weights, hp: Hparams) -> tuple[Tensor, Tensor]:
        """Return q, k and v before the convolution, side by side, and the gate z."""
        n_k, d_k = hp.integer("ssm.group_count"), hp.integer("ssm.state_size")
        n_value = hp.integer("ssm.inner_size")
        keys = f"{hp.architecture}.ssm.inner_size {n_value}, state_size {d_k} and group_count {n_k}"
        if "ssm_in" in b:  # older files: q, k, v, z of each key head together
            expect_rows(b["ssm_in"], 2 * n_k * d_k + 2 * n_value, keys)
            width = divided(hp, "ssm.inner_size", "ssm.group_count")
            row = g.linear(h, b["ssm_in"]).heads(n_k, 2 * d_k + 2 * width)
            q, k, v, z = g.split(row, d_k, d_k, width, width)
            return g.concat(q.flat(), k.flat(), v.flat()), z.flat()
        expect_rows(b["attn_qkv"], 2 * n_k * d_k + n_value, keys)
        expect_rows(b["attn_gate"], n_value, f"{hp.architecture}.ssm.inner_size {n_value}")
        return g.linear(h, b["attn_qkv"]), g.linear(h, b["attn_gate"])

    def beta_and_alpha(self, g: Graph, h: Tensor, b: Weights, hp: Hparams) -> tuple[Tensor, Tensor]:
        """Return the update's strength and the decay's step, one per value head, before their functions."""
        n_v, r = hp.integer("ssm.time_step_rank"), divided(hp, "ssm.time_step_rank", "ssm.group_count")
        expect_rows(b["ssm_ba"], 2 * n_v, f"{hp.architecture}.ssm.time_step_rank {n_v}")
        beta, alpha = g.split(g.linear(h, b["ssm_ba"]).heads(n_v // r, 2 * r), r, r)
        return beta.flat(), alpha.flat()


class Qwen35(Qwen3Next):
    """Tiled value heads (head h reads key head h mod n_k); beta and alpha are matrices of their own."""

    gguf_names = ("qwen35", "qwen35moe")
    pairing = "mod"

    def beta_and_alpha(self, g: Graph, h: Tensor, b: Weights, hp: Hparams) -> tuple[Tensor, Tensor]:
        """Return the update's strength and the decay's step, one per value head, before their functions."""
        n_v = hp.integer("ssm.time_step_rank")
        for name in ("ssm_beta", "ssm_alpha"):
            expect_rows(b[name], n_v, f"{hp.architecture}.ssm.time_step_rank {n_v}")
        return g.linear(h, b["ssm_beta"]), g.linear(h, b["ssm_alpha"])


def recurrent_layers(hp: Hparams) -> tuple[bool, ...]:
    """Return which layers are delta nets: a flag per layer, or all but each n-th."""
    flags = hp.get("attention.recurrent_layers", None)
    if flags is not None:
        return tuple(map(bool, hp.per_layer("attention.recurrent_layers")))
    interval = hp.integer("full_attention_interval", 4)
    if interval < 1:
        raise ModelFileError(
            f"{hp.architecture}.full_attention_interval is {interval}; at least 1 was expected"
        )
    return tuple((i + 1) % interval != 0 for i in range(hp.n_layer))


def gated_attention(g: Graph, h: Tensor, b: Weights, hp: Hparams, rope: Rope, layer: int) -> Tensor:
    """Attention with norms per head on q and k, and a gate for each column of its result."""
    n_head, n_kv, d, d_v = hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v
    heads = f"{hp.architecture}.attention.head_count {n_head} and heads of {d}"
    expect_rows(b["attn_q"], 2 * n_head * d, f"{heads}, each with its gate,")
    q, gate = g.split(g.linear(h, b["attn_q"]).heads(n_head, 2 * d), d, d)
    q = g.rope(g.rms_norm(q, b["attn_q_norm"], hp.eps), rope)
    k = g.rope(g.rms_norm(g.linear(h, b["attn_k"]).heads(n_kv, d), b["attn_k_norm"], hp.eps), rope)
    v = g.linear(h, b["attn_v"]).heads(n_kv, d_v)
    scale = float(hp.get("attention.scale", 0.0)) or d**-0.5
    a = g.attention(q, k, v, layer=layer, scale=scale)
    return g.linear(g.sigmoid(gate.flat()) * a, b["attn_output"])


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer qwen3next and qwen35."""
    return [
        ArchitectureSpec(name="qwen3next", gguf_names=Qwen3Next.gguf_names, load=f"{__name__}:Qwen3Next"),
        ArchitectureSpec(name="qwen35", gguf_names=Qwen35.gguf_names, load=f"{__name__}:Qwen35"),
    ]

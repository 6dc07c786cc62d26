"""deepseek2: DeepSeek V2, V2-Lite, V3, R1 and those built alike (GLM-4.7-Flash, GigaChat 3, Kimi K2, ...).

Multi-head latent attention: one latent row c per position stands for the keys and values of all heads, and one rotated
part r for the positions of all of them.

    q_n, q_r = Wqb norm(Wqa h), or Wq h         c, r = Wkva h       c = norm(c)         h = rms_norm(x)
    x = x + Wo (Wvb attention([Wkb q_n, rope q_r], [c, rope r], c))     Wkb, Wvb: a matrix for each head
    x = x + Wdown (silu(Wgate h) * Wup h)                           in the first layers
    x = x + sum_e p_e ffn_e(h) + ffn_s(h)                           after them, h = rms_norm(x)

Keys and values are never expanded: the cache holds [c, rope r]. Only files older than that form have both matrices in
one (``attn_kv_b``), and are run with keys and values of each head's own.

Source: DeepSeek 2024 (2405.04434, 2412.19437); tensor names as in ``llama_model_deepseek2``.
"""

import math
from dataclasses import replace

from ggfw.descriptors import ArchitectureSpec
from ggfw.errors import ModelFileError
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Tensor, WeightRef, Weights
from ggfw.graph.blocks import expect_rows, expert_gate, experts, swiglu
from ggfw.graph.mixers import expect_kind
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

#: GLM-4.7-Flash, whose first files do not say that their experts are gated by sigmoids.
GLM_LAYERS, GLM_VOCABULARY = (47, 48), 154880


class DeepSeek2(Architecture):
    """Latent attention, dense first layers, then many small experts beside shared ones."""

    gguf_names = ("deepseek2",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        rope, scale = rotation(hp, w, run)
        n_dense = hp.integer("leading_dense_block_count", 0)
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            x = x + g.linear(attention(g, h, b, hp, rope, scale, i), b["attn_output"])
            h = g.rms_norm(x, b["ffn_norm"], hp.eps)
            mark = "ffn_gate" if i < n_dense else "ffn_gate_inp"
            expect_kind(b, i, mark, f"{hp.architecture}.leading_dense_block_count {n_dense} asks for it")
            x = x + (swiglu(g, h, b) if i < n_dense else moe(g, h, b, hp, w["token_embd"].shape[0]))
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w.get("output", w["token_embd"])))


def head_dims(hp: Hparams) -> tuple[int, int]:
    """Columns of a head's keys and values, if they were expanded."""
    if hp.get("attention.key_length_mla", None) is None:
        return hp.head_dim, hp.head_dim_v
    return hp.integer("attention.key_length_mla", least=1), hp.integer("attention.value_length_mla", least=1)


def rotation(hp: Hparams, w: Weights, run: RunConfig) -> tuple[Rope, float]:
    """The rotation, and the factor of the scores, into which yarn's magnitude goes twice: once for q, once for k.

    Files hold a tenth of yarn's ``mscale_all_dim``. With it, cos and sin keep their size.
    """
    rope = Rope.from_file(hp, w, run, pairing="norm")
    scaling, magnitude = rope.scaling, 1.0
    if scaling.kind == "yarn":
        stretch = 0.1 * math.log(max(scaling.factor, 1.0))
        all_dims = scaling.log_multiplier / 0.1
        magnitude = scaling.attn_factor * (1.0 + all_dims * stretch) * (1.0 if all_dims else 1.0 + stretch)
        rope = replace(rope, scaling=replace(scaling, log_multiplier=float(all_dims > 0)))
    return rope, magnitude**2 * head_dims(hp)[0] ** -0.5


def attention(g: Graph, h: Tensor, b: Weights, hp: Hparams, rope: Rope, scale: float, layer: int) -> Tensor:
    """Latent attention, before the output matrix; flat (n_head * d_v,)."""
    n_head, (d_k, d_v) = hp.n_head, head_dims(hp)
    n_rot, n_latent = hp.rope_dims, hp.integer("attention.kv_lora_rank", least=1)
    q = query(g, h, b, hp, d_k).heads(n_head, d_k)
    q_plain, q_rot = g.split(q, d_k - n_rot, n_rot)
    why = f"{hp.architecture}.attention.kv_lora_rank {n_latent} and rope.dimension_count {n_rot}"
    expect_rows(b["attn_kv_a_mqa"], n_latent + n_rot, why)
    latent, k_rot = g.split(g.linear(h, b["attn_kv_a_mqa"]), n_latent, n_rot)
    latent = g.rms_norm(latent, b["attn_kv_a_norm"], hp.eps)
    q_rot, k_rot = g.rope(q_rot, rope), g.rope(k_rot.heads(1, n_rot), rope)
    if "attn_k_b" not in b:  # keys and values of each head's own
        expect_cache(hp, b["attn_kv_b"], n_head, d_k, d_v)
        why = f"{n_head} heads with keys of {d_k - n_rot} and values of {d_v} columns"
        expect_rows(b["attn_kv_b"], n_head * (d_k - n_rot + d_v), why)
        expanded = g.linear(latent, b["attn_kv_b"]).heads(n_head, d_k - n_rot + d_v)
        k_plain, v = g.split(expanded, d_k - n_rot, d_v)
        q, k = g.concat(q_plain, q_rot), g.concat(k_plain, k_rot)
        return g.attention(sharpened(g, q, hp), k, v, layer=layer, scale=scale)
    expect_cache(hp, b["attn_k_b"], 1, n_latent + n_rot, n_latent)
    q = g.concat(g.linear_heads(q_plain, b["attn_k_b"]), q_rot)
    k = g.concat(latent.heads(1, n_latent), k_rot)
    q = sharpened(g, q, hp)
    mixed = g.attention(q, k, None, v_columns=n_latent, layer=layer, scale=scale)  # (T, n_head * n_latent)
    values = b["attn_v_b"]
    if values.shape[1] != d_v:
        key = f"{hp.architecture}.attention.value_length_mla"
        raise ModelFileError(
            f"tensor {values.name} has heads of {values.shape[1]} columns; {key} {d_v} asks for {d_v}"
        )
    return g.linear_heads(mixed.heads(n_head, n_latent), values).flat()


def expect_cache(hp: Hparams, weight: WeightRef, n_head: int, d_k: int, d_v: int) -> None:
    """Check that the file says of the cache what ``weight``, which fills it or asks it, makes of it."""
    said = (hp.n_head_kv, hp.get("attention.key_length", d_k), hp.get("attention.value_length", d_v))
    if said != (n_head, d_k, d_v):
        raise ModelFileError(
            f"{hp.architecture}.attention.head_count_kv {said[0]}, key_length {said[1]} and value_length {said[2]} do "
            f"not fit tensor {weight.name}, with which {n_head} heads have keys of {d_k} and values of {d_v} columns"
        )


def query(g: Graph, h: Tensor, b: Weights, hp: Hparams, d_k: int) -> Tensor:
    """All heads' queries; through a narrower row in the larger models."""
    compressed = "attn_q_a" in b
    matrix = b["attn_q_b" if compressed else "attn_q"]
    expect_rows(matrix, hp.n_head * d_k, f"attention.head_count {hp.n_head} and heads of {d_k} columns")
    if not compressed:
        return g.linear(h, matrix)
    rank = hp.integer("attention.q_lora_rank", least=1)
    expect_rows(b["attn_q_a"], rank, f"{hp.architecture}.attention.q_lora_rank {rank}")
    return g.linear(g.rms_norm(g.linear(h, b["attn_q_a"]), b["attn_q_a_norm"], hp.eps), matrix)


def sharpened(g: Graph, q: Tensor, hp: Hparams) -> Tensor:
    """The queries, multiplied by a factor that grows with the position where the file asks for it (Mistral Large 3)."""
    beta = hp.number("attention.temperature_scale", 0.0)
    return g.position_scale(q, hp.integer("attention.temperature_length", least=1), beta) if beta else q


def moe(g: Graph, h: Tensor, b: Weights, hp: Hparams, n_vocab: int) -> Tensor:
    """Experts, perhaps only of the best groups, and a shared one."""
    expect_rows(b["ffn_gate_inp"], hp.n_expert, f"{hp.architecture}.expert_count {hp.n_expert}")
    gate = "sigmoid" if hp.n_layer in GLM_LAYERS and n_vocab == GLM_VOCABULARY else "softmax"
    ids, weights = g.moe_route(
        g.linear(h, b["ffn_gate_inp"]),
        hp.n_expert_used,
        gate=expert_gate(hp, gate),
        selection_bias=b.get("exp_probs_b.bias"),
        renormalise=bool(hp.get("expert_weights_norm", False)),
        scale=hp.number("expert_weights_scale", 0.0) or 1.0,
        groups=(hp.integer("expert_group_count", 1), hp.integer("expert_group_used_count", 1)),
    )
    routed = experts(g, h, ids, weights, b, lambda gate, up: g.silu(gate) * up)
    return routed + swiglu(g, h, b, "_shexp")


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer deepseek2."""
    return [ArchitectureSpec(name="deepseek2", gguf_names=DeepSeek2.gguf_names, load=f"{__name__}:DeepSeek2")]

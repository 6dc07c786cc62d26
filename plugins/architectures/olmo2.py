"""olmo2: OLMo 2, and OLMo 3 with its windows.

    x = x + norm(Wo attention(rope(norm Wq x), rope(norm Wk x), Wv x))
    x = x + norm(Wdown (silu(Wgate x) * Wup x))

No norm stands before a branch, one stands after it; the norms of q and k run over all heads at once. In OLMo 3 three
of four layers see a window, and those rotate without the stretch to longer contexts.
Source: OLMo team 2024 (2501.00656), 2025 (2512.13961); tensor names as in ``llm_build_olmo2``.
"""

from dataclasses import replace

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RopeScaling, RunConfig, Weights
from ggfw.graph.blocks import qkv, swiglu, windowed
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Olmo2(Architecture):
    """Norms after the branches, q and k normed over the whole row, perhaps windows."""

    gguf_names = ("olmo2",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        n_head, n_kv, d = hp.n_head, hp.n_head_kv, hp.head_dim
        full = Rope.from_file(hp, w, run, pairing="neox")
        local = replace(full, scaling=RopeScaling())
        window = hp.integer("attention.sliding_window", 0)
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i, is_local in enumerate(windowed(hp, period=4)):
            b, rope = w.block(i), local if is_local and window else full
            q, k, v = qkv(g, x, b, n_head, n_kv, d, hp.head_dim_v)
            q = g.rope(g.rms_norm(q.flat(), b["attn_q_norm"], hp.eps).heads(n_head, d), rope)
            k = g.rope(g.rms_norm(k.flat(), b["attn_k_norm"], hp.eps).heads(n_kv, d), rope)
            a = g.attention(q, k, v, layer=i, scale=d**-0.5, window=window if is_local else 0)
            x = x + g.rms_norm(g.linear(a, b["attn_output"]), b["post_attention_norm"], hp.eps)
            x = x + g.rms_norm(swiglu(g, x, b), b["post_ffw_norm"], hp.eps)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w["output"]))


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer olmo2."""
    return [ArchitectureSpec(name="olmo2", gguf_names=Olmo2.gguf_names, load=f"{__name__}:Olmo2")]

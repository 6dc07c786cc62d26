"""granite: IBM's Granite 3, dense and with experts.

    x = embd * e
    x = x + r * Wo attention(rope(Wq h), rope(Wk h), Wv h)        h = rms_norm(x)
    x = x + r * ffn(h)                                            h = rms_norm(x)
    logits = W norm(x) / l

    ffn(h) = Wdown (silu(Wgate h) * Wup h), or softmax experts of that form, perhaps beside one that all rows share

Source: IBM 2024 (Granite 3.0 Language Models); factors e, r, l from ``embedding_scale``, ``residual_scale``,
``logit_scale``, that of the scores from ``attention.scale``; tensor names as in ``llm_build_granite``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Tensor, Weights
from ggfw.graph.blocks import moe, qkv, swiglu
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Granite(Architecture):
    """A llama with four factors of its own, and perhaps experts."""

    gguf_names = ("granite", "granitemoe")

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        rope = Rope.from_file(hp, w, run, pairing="norm")
        rotated = bool(
            hp.get("rope.scaling.finetuned", True)
        )  # Granite's way to say that there is rope at all
        scale = float(hp.get("attention.scale", 0.0)) or hp.head_dim**-0.5
        residual = float(hp.get("residual_scale", 0.0)) or 1.0
        x = g.embed(w["token_embd"], scale=float(hp.get("embedding_scale", 0.0)) or 1.0)  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            q, k, v = qkv(g, h, b, hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v)
            if rotated:
                q, k = g.rope(q, rope), g.rope(k, rope)
            a = g.attention(q, k, v, layer=i, scale=scale)
            x = x + g.scale(g.linear(a, b["attn_output"], b.get("attn_output.bias")), residual)
            x = x + g.scale(ffn(g, g.rms_norm(x, b["ffn_norm"], hp.eps), b, hp), residual)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        logits = g.linear(h, w.get("output", w["token_embd"]), scale=1.0 / float(hp.get("logit_scale")))
        g.output(hidden=h, logits=logits)


def ffn(g: Graph, h: Tensor, b: Weights, hp: Hparams) -> Tensor:
    """SwiGLU, or experts, perhaps with a shared one."""
    if "ffn_gate_inp" not in b:
        return swiglu(g, h, b)
    y = moe(g, h, b, hp)
    return y + swiglu(g, h, b, "_shexp") if "ffn_up_shexp" in b else y


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer granite."""
    return [ArchitectureSpec(name="granite", gguf_names=Granite.gguf_names, load=f"{__name__}:Granite")]

"""granitehybrid: Granite 4.0: Mamba-2, attention in a few layers, an FFN or experts in all.

    x = embd * e
    x = x + r * f(rms_norm(x))        f = mamba2(h) | Wo attention(Wq h, Wk h, Wv h), rotated in some files
    x = x + r * ffn(rms_norm(x))      ffn = SwiGLU | softmax experts (+ a shared SwiGLU)
    logits = W norm(x) / l

Source: IBM 2025; factors e, r, l from ``embedding_scale``, ``residual_scale``, ``logit_scale``; tensor names as in
``llama_model_granite_hybrid``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Tensor, Weights
from ggfw.graph.blocks import moe, qkv, swiglu
from ggfw.graph.mixers import expect_kind, mamba2
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class GraniteHybrid(Architecture):
    """Granite's scaled residuals around Mamba-2 and attention."""

    gguf_names = ("granitehybrid",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        n_kv, d = hp.per_layer("attention.head_count_kv"), hp.head_dim
        # This key is Granite's switch for the rotation.
        rope = Rope.from_file(hp, w, run, pairing="norm") if hp.get("rope.scaling.finetuned", True) else None
        scale = float(hp.get("attention.scale", 0.0)) or d**-0.5
        residual = float(hp.get("residual_scale", 0.0)) or 1.0
        logit_scale = float(hp.get("logit_scale", 0.0)) or 1.0
        x = g.embed(w["token_embd"], scale=float(hp.get("embedding_scale", 0.0)) or 1.0)  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            keys = f"{hp.architecture}.attention.head_count_kv {n_kv[i]}"
            expect_kind(b, i, "attn_output" if n_kv[i] else "ssm_in", f"{keys} of the layer asks for it")
            if n_kv[i]:
                q, k, v = qkv(g, h, b, hp.n_head, n_kv[i], d, hp.head_dim_v)
                if rope is not None:
                    q, k = g.rope(q, rope), g.rope(k, rope)
                a = g.attention(q, k, v, layer=i, scale=scale)
                y = g.linear(a, b["attn_output"], b.get("attn_output.bias"))
            else:
                y = mamba2(g, h, b, hp, hp.eps)
            x = x + g.scale(y, residual)
            x = x + g.scale(ffn(g, g.rms_norm(x, b["ffn_norm"], hp.eps), b, hp), residual)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w.get("output", w["token_embd"]), scale=1.0 / logit_scale))


def ffn(g: Graph, h: Tensor, b: Weights, hp: Hparams) -> Tensor:
    """SwiGLU, or experts beside a shared SwiGLU."""
    if "ffn_gate_inp" not in b:
        return swiglu(g, h, b)
    y = moe(g, h, b, hp)
    return y + swiglu(g, h, b, "_shexp") if "ffn_up_shexp" in b else y


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer granitehybrid."""
    return [
        ArchitectureSpec(
            name="granitehybrid", gguf_names=GraniteHybrid.gguf_names, load=f"{__name__}:GraniteHybrid"
        )
    ]

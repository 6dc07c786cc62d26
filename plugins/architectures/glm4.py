"""glm4: GLM-4-0414 (9B, 32B) and the text part of GLM-OCR.

    x = x + norm(Wo attention(rope(Wq h), rope(Wk h), Wv h))        h = rms_norm(x)
    x = x + norm(Wdown (silu(gate) * up))                           gate, up = Wgate_up h,  h = rms_norm(x)

Half of each head is rotated; norms sit before and after each branch.
Source: GLM team 2024 (2406.12793); tensor names as in ``llm_build_glm4``.
"""

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Weights
from ggfw.graph.blocks import fused_swiglu, qkv
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Glm4(Architecture):
    """Sandwich norms, partial rotation of neighbouring pairs, a fused gate; biases on q, k and v in some."""

    gguf_names = ("glm4",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        # Files with image positions (GLM-OCR) pair by halves; for text all their sections count alike.
        sections = hp.get("rope.dimension_sections", (0, 0))
        pairing = "neox" if sections[0] > 0 and sections[1] > 0 else "norm"
        rope = Rope.from_file(hp, w, run, pairing=pairing)
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            q, k, v = qkv(g, h, b, hp.n_head, hp.n_head_kv, hp.head_dim, hp.head_dim_v)
            a = g.attention(g.rope(q, rope), g.rope(k, rope), v, layer=i, scale=hp.head_dim**-0.5)
            x = x + g.rms_norm(g.linear(a, b["attn_output"]), b["post_attention_norm"], hp.eps)
            h = fused_swiglu(g, g.rms_norm(x, b["ffn_norm"], hp.eps), b)
            x = x + g.rms_norm(h, b["post_ffw_norm"], hp.eps)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w.get("output", w["token_embd"])))


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer glm4."""
    return [ArchitectureSpec(name="glm4", gguf_names=Glm4.gguf_names, load=f"{__name__}:Glm4")]

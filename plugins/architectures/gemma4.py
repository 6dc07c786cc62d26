"""gemma4: Gemma 4 (text): dense, with per-layer embeddings and shared K/V (E2B, E4B), with experts (26B-A4B).

    x = embd * sqrt(n_embd)
    x = x + norm(Wo attention(rope(norm Wq h), rope(norm Wk h), norm Wv h))      h = rms_norm(x)
    x = x + norm(ffn(x))                  ffn(x) = Wdown (gelu(Wgate h) * Wup h),  h = rms_norm(x)
    x = x + norm(Wp (gelu(Wg x) * e_i))   where there are per-layer embeddings e
    x = x * s_i                           where the layer has a scale

    with experts:  ffn(x) = norm(dense(norm x)) + norm(sum_e p_e s_e dense_e(norm' x))
                   p = softmax(Wr (c * rms(x) / sqrt(n_embd))), the best, renormalised

Layers see a window or everything, each kind with heads and rotation of its own. Where there is no Wv, V is the raw
product of Wk. The last layers compute only queries and attend the cache of the last layer of their kind that has one.
Scores are not scaled.
Source: Gemma 4 (Google 2026) as in ``llm_build_gemma4``; tensor names likewise.
"""

from dataclasses import replace

from ggfw.descriptors import ArchitectureSpec
from ggfw.errors import ModelFileError
from ggfw.graph import Architecture, Graph, Hparams, Rope, RopeScaling, RunConfig, Tensor, Weights
from ggfw.graph.blocks import gated_ffn, heads, moe, per_layer_inputs, qkv, windowed
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1


class Gemma4(Architecture):
    """Sandwich norms, two kinds of layers, shared K/V, per-layer embeddings, a dense branch beside the experts."""

    gguf_names = ("gemma4",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        layers = Layers(hp, w, run)
        x = g.embed(w["token_embd"], scale=hp.n_embd**0.5)  # (T, n_embd)
        inputs = per_layer_inputs(g, hp, w, x, hp.integer("embedding_length_per_layer_input", 0))
        for i in range(hp.n_layer):
            b = w.block(i)
            a = attention(g, g.rms_norm(x, b["attn_norm"], hp.eps), b, hp, layers, i)
            x = x + g.rms_norm(g.linear(a, b["attn_output"]), b["post_attention_norm"], hp.eps)
            h = gated_ffn(g, g.rms_norm(x, b["ffn_norm"], hp.eps), b, g.gelu)
            if "ffn_gate_inp" in b:
                h = g.rms_norm(h, b["post_ffw_norm_1"], hp.eps) + expert_branch(g, x, b, hp)
            x = x + g.rms_norm(h, b["post_ffw_norm"], hp.eps)
            if inputs:
                h = g.linear(g.gelu(g.linear(x, b["inp_gate"])) * inputs[i], b["proj"])
                x = x + g.rms_norm(h, b["post_norm"], hp.eps)
            if "layer_output_scale" in b:
                x = x * b["layer_output_scale"]
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        logits = g.linear(h, w.get("output", w["token_embd"]))
        softcap = float(hp.get("final_logit_softcapping", 30.0))
        g.output(hidden=h, logits=g.softcap(logits, softcap) if softcap else logits)


class Layers:
    """What differs between layers that see a window ("local") and layers that see everything.

    Attributes:
        local: whether layer i sees a window only.
        window: how many positions.
        head_dim, rope: of layer i.
        n_head, n_head_kv: of layer i.
        source: layer whose cache layer i attends: itself, unless it is one of the last, which have none.
    """

    def __init__(self, hp: Hparams, w: Weights, run: RunConfig) -> None:
        hp.get("attention.sliding_window_pattern")  # has no default here
        self.local = windowed(hp, period=0)
        self.window = hp.integer("attention.sliding_window")
        sizes = {False: head_dim(hp, ""), True: head_dim(hp, "_swa")}
        full = Rope.from_file(hp, w, run, pairing="neox")
        ropes = {
            False: full,
            True: replace(
                full,
                dims=hp.integer("rope.dimension_count_swa", sizes[True]),
                base=float(hp.get("rope.freq_base_swa", 10000.0)),
                factors=None,
                scaling=RopeScaling(),
            ),
        }
        self.head_dim = [sizes[local] for local in self.local]
        self.rope = [ropes[local] for local in self.local]
        self.n_head = [int(n) for n in hp.per_layer("attention.head_count")]
        self.n_head_kv = [
            int(n) for n in hp.per_layer("attention.head_count_kv", hp.get("attention.head_count"))
        ]
        n_own = hp.n_layer - hp.integer("attention.shared_kv_layers", 0)
        last = {local: i for i, local in enumerate(self.local[:n_own])}
        if not set(self.local) <= set(last):
            raise ModelFileError(
                f"{hp.architecture}.attention.shared_kv_layers leaves {n_own} of {hp.n_layer} layers with K and V of "
                "their own; each kind of layer in attention.sliding_window_pattern needs one"
            )
        self.source = [i if i < n_own else last[local] for i, local in enumerate(self.local)]


def head_dim(hp: Hparams, kind: str) -> int:
    """Return the columns of a head of one kind of layers, the same for keys and values."""
    d_k, d_v = (hp.integer(f"attention.{x}_length{kind}") for x in ("key", "value"))
    if d_k != d_v:
        raise ModelFileError(
            f"{hp.architecture}.attention.key_length{kind} is {d_k} and value_length{kind} is {d_v}; "
            "one number was expected"
        )
    return d_k


def attention(g: Graph, h: Tensor, b: Weights, hp: Hparams, layers: Layers, i: int) -> Tensor:
    """Attention of layer i over its own cache or another's; (n_head * head_dim,)."""
    n_head, n_kv, d, rope = layers.n_head[i], layers.n_head_kv[i], layers.head_dim[i], layers.rope[i]
    window, source = layers.window if layers.local[i] else 0, layers.source[i]
    if "attn_qkv" in b:
        q, k, v = qkv(g, h, b, n_head, n_kv, d, d)
    else:
        q = heads(g, h, b, "attn_q", n_head, d)
        k = heads(g, h, b, "attn_k", n_kv, d) if source == i else q
        v = heads(g, h, b, "attn_v", n_kv, d) if source == i and "attn_v" in b else k
    q = g.rope(g.rms_norm(q, b["attn_q_norm"], hp.eps), rope)
    if source != i:
        shape = (layers.n_head_kv[source], d, d)
        return g.attention(q, None, None, layer=source, scale=1.0, window=window, kv_shape=shape)
    k = g.rope(g.rms_norm(k, b["attn_k_norm"], hp.eps), rope)
    return g.attention(q, k, g.rms_norm(v, None, hp.eps), layer=i, scale=1.0, window=window)


def expert_branch(g: Graph, x: Tensor, b: Weights, hp: Hparams) -> Tensor:
    """The experts' part of a layer; the router looks at the stream itself, normed without weight; (n_embd,)."""
    h = g.scale(g.rms_norm(x, None, hp.eps), hp.n_embd**-0.5) * b["ffn_gate_inp.scale"]
    logits = g.linear(h, b["ffn_gate_inp"])
    h = g.rms_norm(x, b["pre_ffw_norm_2"], hp.eps)
    h = moe(g, h, b, hp, logits=logits, gated=lambda gate, up: g.gelu(gate) * up)
    return g.rms_norm(h, b["post_ffw_norm_2"], hp.eps)


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer gemma4."""
    return [ArchitectureSpec(name="gemma4", gguf_names=Gemma4.gguf_names, load=f"{__name__}:Gemma4")]

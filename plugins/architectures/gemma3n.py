"""gemma3n: Gemma 3n (text; E2B, E4B): four streams, of which one is computed with, and embeddings for each layer.

    s_0 = x = embd * sqrt(n_embd),  s_k = P_k x as long as x                          k = 1 .. 3
    each layer:
        t_k = s_k + sum_j A_kj s_j                     A = Wa router(s_0), predicted; a = t_0
        h = norm a;  l = h + norm(Wr (Wl h))           (LAuReL: a low-rank residual)
        x = (a + norm(Wo attention(rope(norm Wq h), rope(norm Wk h), norm Wv h)) + l) / sqrt 2
        y = x + norm(Wdown (gelu(top(Wgate h')) * Wup h'))      h' = norm x; top keeps what is far above the mean
        s_k = t_k + (1 + c_k)(y - a)                   c = Wc router(y), corrected
        s_k += norm(Wp (gelu(Wg (s_0 * w)) * e_i))     k = 1 .. 3; e: per-layer embeddings
    x = (s_0 + sum_k U_k s_k as long as s_0) / 4

    router(s) = tanh(Wm norm(s) / n_embd)

Four of five layers see a window; the last layers attend the cache of the last layer of their kind that has one.
Source: MatFormer (2310.07707), AltUp (2301.13310), LAuReL (2411.07501); as in ``llm_build_gemma3n``.
"""

from dataclasses import replace

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RopeScaling, RunConfig, Tensor, WeightRef, Weights
from ggfw.graph.blocks import gated_ffn, per_layer_inputs, qkv, windowed
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

#: Layers with K and V of their own, where the file does not say.
N_OWN_CACHE = 20
#: Layers with sparse gates, and how many standard deviations above the mean a gate must be, where it does not say.
N_SPARSE, SPARSITY = 10, 1.6448533535003662


class Gemma3n(Architecture):
    """AltUp streams, LAuReL, sparse gates, per-layer embeddings, shared K/V."""

    gguf_names = ("gemma3n",)

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph (see the module's formula)."""
        n_stream, n_layer = hp.integer("altup.num_inputs", 4), hp.n_layer
        active = hp.integer("altup.active_idx", 0)
        local = windowed(hp, period=5)
        n_own = n_layer - hp.integer("attention.shared_kv_layers", max(0, n_layer - N_OWN_CACHE))
        last = {is_local: i for i, is_local in enumerate(local[:n_own])}
        full = Rope.from_file(hp, w, run, pairing="neox")
        base = float(hp.get("rope.freq_base_swa", 10000.0))
        ropes = (full, replace(full, base=base, scaling=RopeScaling(), factors=None))
        sparsity = hp.per_layer("activation_sparsity_scale", [SPARSITY] * N_SPARSE + [0.0] * n_layer)
        x = g.embed(w["token_embd"], scale=hp.n_embd**0.5)  # (T, n_embd)
        inputs = per_layer_inputs(g, hp, w, x, hp.integer("embedding_length_per_layer_input", 256))
        others = g.linear(x, stacked(w["altup_proj"])).heads(n_stream - 1, hp.n_embd)
        streams = [x, *as_long_as(g, x, g.split(others.flat(), *[hp.n_embd] * (n_stream - 1)))]
        for i in range(n_layer):
            b = w.block(i)
            predicted = predict(g, streams, active, b, hp)
            a = predicted[active]
            h = g.rms_norm(a, b["attn_norm"], hp.eps)
            laurel = g.linear(g.linear(h, b["laurel_l"]), b["laurel_r"])
            laurel = h + g.rms_norm(laurel, b["laurel_post_norm"], hp.eps)
            source = i if i < n_own else last[local[i]]
            window = hp.integer("attention.sliding_window") if local[i] else 0
            y = attention(g, h, b, hp, ropes[local[i]], i, source, window)
            y = a + g.rms_norm(g.linear(y, b["attn_output"]), b["post_attention_norm"], hp.eps)
            x = g.scale(y + laurel, 2**-0.5)
            h = g.rms_norm(x, b["ffn_norm"], hp.eps)
            deviations = float(sparsity[i])  # minus infinity where all gates are kept
            gate = (lambda t, d=deviations: g.gelu(top(g, t, d))) if deviations > 0 else g.gelu
            y = x + g.rms_norm(gated_ffn(g, h, b, gate), b["post_ffw_norm"], hp.eps)
            streams = correct(g, predicted, y, active, b, hp)
            h = g.linear(streams[active] * b["altup_correct_scale"], b["inp_gate"])
            h = g.rms_norm(g.linear(g.gelu(h) * inputs[i], b["proj"]), b["post_norm"], hp.eps)
            streams = [streams[0], *(s + h for s in streams[1:])]
        first, *rest = (g.select_outputs(s) for s in streams)
        unembed = stacked(w["altup_unembd_proj"])
        rest = [g.split(g.linear(s, unembed), *[hp.n_embd] * (n_stream - 1))[k] for k, s in enumerate(rest)]
        for s in as_long_as(g, first if active == 0 else g.select_outputs(streams[active]), rest):
            first = first + s
        h = g.rms_norm(g.scale(first, 1.0 / n_stream), w["output_norm"], hp.eps)
        logits = g.linear(h, w.get("output", w["token_embd"]))
        g.output(hidden=h, logits=g.softcap(logits, float(hp.get("final_logit_softcapping", 30.0))))


def attention(
    g: Graph, h: Tensor, b: Weights, hp: Hparams, rope: Rope, i: int, source: int, window: int
) -> Tensor:
    """Attention of layer i over the cache of layer ``source``; scores are not scaled; (n_head * head_dim,)."""
    n_kv, d, d_v = hp.n_head_kv, hp.head_dim, hp.head_dim_v
    q, k, v = qkv(g, h, b, hp.n_head, n_kv, d, d_v)
    q = g.rope(g.rms_norm(q, b["attn_q_norm"], hp.eps), rope)
    if source != i:  # files hold k and v of these layers too; nobody uses them
        return g.attention(q, None, None, layer=source, scale=1.0, window=window, kv_shape=(n_kv, d, d_v))
    k = g.rope(g.rms_norm(k, b["attn_k_norm"], hp.eps), rope)
    return g.attention(q, k, g.rms_norm(v, None, hp.eps), layer=i, scale=1.0, window=window)


def stacked(ref: WeightRef) -> WeightRef:
    """Matrices (n, n_out, n_in) as one of n * n_out rows."""
    n, n_out, n_in = ref.shape
    return replace(ref, shape=(n * n_out, n_in))


def as_long_as(g: Graph, x: Tensor, others: tuple[Tensor, ...] | list[Tensor]) -> list[Tensor]:
    """Give rows the length (L2) of those of x."""
    length = g.reduce(x, "norm")  # (T, 1)
    return [g.l2_norm(y, 0.0) * length for y in others]


def top(g: Graph, x: Tensor, deviations: float) -> Tensor:
    """max(0, x - (mean + deviations * standard deviation)) over the row."""
    centred = x + g.scale(g.reduce(x, "mean"), -1.0)
    return g.relu(centred + g.scale(g.reduce(centred, "norm"), -deviations * (x.width - 1) ** -0.5))


def router(g: Graph, x: Tensor, b: Weights, hp: Hparams) -> Tensor:
    """How much of each stream; (n_stream,)."""
    h = g.rms_norm(x, b["altup_router_norm"], hp.eps)
    return g.tanh(g.linear(h, b["altup_router"], scale=1.0 / hp.n_embd))


def predict(g: Graph, streams: list[Tensor], active: int, b: Weights, hp: Hparams) -> list[Tensor]:
    """Each stream plus a mixture of all."""
    n = len(streams)
    mixture = g.linear(router(g, streams[active], b, hp), b["altup_predict_coef"])  # (T, n * n)
    stack = g.concat(*streams).heads(n, hp.n_embd)
    return [s + g.moe_sum(stack, part) for s, part in zip(streams, g.split(mixture, *[n] * n), strict=True)]


def correct(
    g: Graph, predicted: list[Tensor], y: Tensor, active: int, b: Weights, hp: Hparams
) -> list[Tensor]:
    """Each stream plus its share of what the layer found beyond the prediction."""
    shares = g.scale(g.linear(router(g, y, b, hp), b["altup_correct_coef"]), 1.0, 1.0)  # (T, n)
    found = y + g.scale(predicted[active], -1.0)
    return [
        t + found * share for t, share in zip(predicted, g.split(shares, *[1] * len(predicted)), strict=True)
    ]


@hookimpl
def ggfw_register_architectures() -> list[ArchitectureSpec]:
    """Offer gemma3n."""
    return [ArchitectureSpec(name="gemma3n", gguf_names=Gemma3n.gguf_names, load=f"{__name__}:Gemma3n")]

"""parallel: attention and FFN read the same normed input and are added together, as in GPT-J and Falcon.

    h = token_shift(layer_norm(x));  x = x + Wo attention(h) + Wdown softsign_gate(Wgate h, Wup h)

``token_shift`` mixes each row with the one before it (state: the last row), in NumPy; ``softsign_gate`` is C.
"""

from pathlib import Path

import numpy as np

from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, StateSpec, Weights, register_op


def token_shift(x, *, segments, positions, mix):
    """x_t + mix * (x_{t-1} - x_t); the row before a sequence's first one is zero."""
    out = np.empty_like(x)
    for s in segments:
        rows = x[s.rows]
        before = np.concatenate([s.state[None], rows[:-1]])
        out[s.rows] = rows + mix * (before - rows)
        s.next_state[:] = rows[-1]
    return out


def softsign_gate(a, b, *, segments, positions):
    """a / (1 + |a|) * b: the reference of the C body."""
    return a / (1 + np.abs(a)) * b


register_op("token_shift", lambda x, mix: x, state=lambda x, mix: StateSpec(x), numpy=token_shift)
register_op(
    "softsign_gate",
    lambda a, b: a,
    numpy=softsign_gate,
    c=(str(Path(__file__).with_name("ops.so")), "softsign_gate"),
)


class Parallel(Architecture):
    """See the module."""

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        """Describe the graph."""
        n_head, n_kv, d, eps = hp.n_head, hp.n_head_kv, hp.head_dim, hp.get("attention.layer_norm_epsilon")
        rope = Rope.from_file(hp, w, run, pairing="neox")
        x = g.embed(w["token_embd"])  # (T, n_embd)
        for i in range(hp.n_layer):
            b = w.block(i)
            h = g.op("token_shift", g.layer_norm(x, b["attn_norm"], b["attn_norm.bias"], eps), mix=b["shift"])
            q = g.rope(g.linear(h, b["attn_q"]).heads(n_head, d), rope)
            k = g.rope(g.linear(h, b["attn_k"]).heads(n_kv, d), rope)
            v = g.linear(h, b["attn_v"]).heads(n_kv, d)
            a = g.linear(g.attention(q, k, v, layer=i, scale=d**-0.5), b["attn_output"])
            f = g.op("softsign_gate", g.linear(h, b["ffn_gate"]), g.linear(h, b["ffn_up"]))
            x = x + a + g.linear(f, b["ffn_down"])
        h = g.layer_norm(g.select_outputs(x), w["output_norm"], w["output_norm.bias"], eps)
        g.output(hidden=h, logits=g.linear(h, w["output"]))

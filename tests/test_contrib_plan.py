"""An architecture from elsewhere costs nothing: of the same shape as a built-in, it compiles to the same plan."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from ggfw.descriptors import ArchitectureSpec
from ggfw.graph import Architecture, Graph, Hparams, Rope, RunConfig, Weights
from ggfw.graph.plan import Plan, View
from ggfw.model import LoadedModel
from ggfw.registry import default_registry
from ggfw.testing import registry_with, tiny_gguf


class Outsider(Architecture):
    """Llama's shape, written from its paper with the public ops alone."""

    def build(self, g: Graph, hp: Hparams, w: Weights, run: RunConfig) -> None:
        rope = Rope.from_file(hp, w, run, pairing="norm")
        stream = g.embed(w["token_embd"])
        for layer in range(hp.n_layer):
            block = w.block(layer)
            seen = g.rms_norm(stream, block["attn_norm"], hp.eps)
            query = g.linear(seen, block["attn_q"]).heads(hp.n_head, hp.head_dim)
            key = g.linear(seen, block["attn_k"]).heads(hp.n_head_kv, hp.head_dim)
            value = g.linear(seen, block["attn_v"]).heads(hp.n_head_kv, hp.head_dim)
            mixed = g.attention(
                g.rope(query, rope), g.rope(key, rope), value, layer=layer, scale=hp.head_dim**-0.5
            )
            stream = stream + g.linear(mixed, block["attn_output"])
            seen = g.rms_norm(stream, block["ffn_norm"], hp.eps)
            gate = g.silu(g.linear(seen, block["ffn_gate"]))
            stream = stream + g.linear(gate * g.linear(seen, block["ffn_up"]), block["ffn_down"])
        hidden = g.rms_norm(g.select_outputs(stream), w["output_norm"], hp.eps)
        g.output(hidden=hidden, logits=g.linear(hidden, w["output"]))


def place(view: View | None) -> Any:
    return view and (
        view.buffer.offset,
        view.buffer.row_bytes,
        view.buffer.domain,
        view.column,
        view.width,
        view.type,
    )


def steps(plan: Plan) -> list[Any]:
    """Everything of each step that the executor sees: op, views with their places, weights, parameters, kernels."""
    return [
        (
            step.op, step.domain, [place(v) for v in step.inputs], [place(v) for v in step.outputs],
            [w.name for w in step.weights], repr(sorted(step.params.items())), step.union, step.needed_for,
            step.kernels and tuple(str(kernel) for kernel in step.kernels), step.node,
        )
        for step in plan.steps
    ]  # fmt: skip


@pytest.mark.parametrize("fmt", [None, "Q4_0", "Q8_0"])
def test_the_plans_are_equal_step_by_step(fmt: str | None) -> None:
    registry = registry_with(ArchitectureSpec(name="outsider", gguf_names=("outsider",), load=Outsider))
    found = {}
    for name, plugins in (("llama", default_registry()), ("outsider", registry)):
        with closing(LoadedModel.load(tiny_gguf(name, fmt=fmt), registry=plugins, threads=1)) as model:
            plan = model.executor.plan
            found[name] = (steps(plan), plan.arena_bytes)
    (ours, our_bytes), (theirs, their_bytes) = found["llama"], found["outsider"]
    assert len(ours) == len(theirs) and our_bytes == their_bytes
    for a, b in zip(ours, theirs, strict=True):
        assert a == b
    assert np.unique([step[0] for step in ours]).size > 4, "the plan has the steps of a whole model"

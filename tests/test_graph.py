"""The graph: shape rules, passes, plans. No kernel runs here."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggfw.cache import PAGE_SIZE, Cache, OutOfPages, PoolSpec
from ggfw.descriptors import resolve
from ggfw.errors import GraphError, ModelFileError
from ggfw.gguf import GGUF
from ggfw.graph import Graph, Hparams, Rope, RopeScaling, RunConfig, WeightRef, Weights
from ggfw.graph.cache_layout import cache_layout
from ggfw.graph.lower import check_vocabulary, make_plan
from ggfw.graph.passes import optimise
from ggfw.graph.plan import F32, Q8
from ggfw.registry import default_registry

MODELS = Path(__file__).parent / "data" / "models"


@dataclasses.dataclass
class FakeKernels:
    """Every format has a kernel; matrices want int8 activations unless told otherwise."""

    activation_type: int = Q8

    def weight_type(self, ref: WeightRef, op: str) -> int:
        return ref.ggml_type

    def activation(self, ggml_type: int, op: str) -> int:
        return self.activation_type

    def pair(self, op: str, ggml_type: int | None) -> tuple[Any, Any]:
        return (op, op)


def describe(name: str, n_ctx: int = 256) -> Graph:
    """Build the graph of a model in tests/data."""
    with GGUF.open(MODELS / f"{name}.gguf") as gguf:
        architecture = resolve(default_registry().architecture_for(gguf.metadata).load)()
        graph = Graph()
        architecture.build(
            graph, Hparams(gguf.metadata, gguf.architecture), Weights(gguf.tensors), RunConfig(n_ctx)
        )
        return graph


def weight(name: str, *shape: int) -> WeightRef:
    return WeightRef(name, shape, 0)


def test_every_op_has_a_reference_and_a_lowering() -> None:
    check_vocabulary()


def test_llama_becomes_seven_steps_per_layer() -> None:
    """norm, q/k/v, rope + store, attention, output + residual, norm, gate/up, gate, down + residual."""
    graph = describe("llama")
    plan = make_plan(graph, FakeKernels(), max_rows=8, max_outputs=8)
    per_layer = [
        "norm",
        "linear",
        "rope_store",
        "attention",
        "linear",
        "norm",
        "linear",
        "elementwise",
        "linear",
    ]
    ops = [step.op for step in plan.steps]
    n_layer = 3
    assert ops == ["embed", "norm", "linear", "rope_table", *per_layer[2:], *per_layer * (n_layer - 1),
                   "gather", "norm", "linear", "sample"]  # fmt: skip
    qkv = plan.steps[2]
    assert qkv.params["n_parts"] == 3 and len(qkv.outputs) == 3


def test_int8_activations_are_written_by_the_step_before() -> None:
    plan = make_plan(describe("llama"), FakeKernels(), max_rows=8, max_outputs=8)
    for step in plan.steps:
        if step.op == "linear":
            assert step.inputs[0] is not None and step.inputs[0].type == Q8
    assert not [step for step in plan.steps if step.op == "quantize"]
    plain = make_plan(describe("llama"), FakeKernels(F32), max_rows=8, max_outputs=8)
    assert all(v.type != Q8 for step in plain.steps for v in step.views())


def test_expert_inputs_are_quantised_slot_by_slot() -> None:
    plan = make_plan(describe("mixtral"), FakeKernels(), max_rows=8, max_outputs=8)
    slots = [step.params["slots"] for step in plan.steps if step.op == "quantize"]
    assert slots and set(slots) == {2}


@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma3", "mistral3"])
@pytest.mark.parametrize("keep_all", [False, True])
def test_plans_validate_and_share_memory(name: str, keep_all: bool) -> None:
    graph = describe(name)
    plan = make_plan(graph, FakeKernels(), max_rows=64, max_outputs=64, keep_all=keep_all)
    plan.validate()
    total = sum(b.row_bytes * 64 for b in {v.buffer for s in plan.steps for v in s.views()})
    assert plan.arena_bytes == total if keep_all else plan.arena_bytes < total


def test_without_fusions_every_named_tensor_has_a_place() -> None:
    graph = describe("gemma3")
    plan = make_plan(graph, FakeKernels(F32), max_rows=4, max_outputs=4, fuse=False, keep_all=True)
    places = {t.name for step in plan.steps for t, _ in step.produces}
    views = {"reshape", "split", "rope"}
    assert {t.name for n in graph.nodes if n.op not in views for t in n.outputs} <= places


def test_an_overwritten_buffer_is_found() -> None:
    plan = make_plan(describe("llama"), FakeKernels(), max_rows=8, max_outputs=8)
    first, second = plan.steps[0].outputs[0], plan.steps[1].outputs[0]
    assert first is not None and second is not None
    second.buffer.offset = first.buffer.offset
    with pytest.raises(GraphError, match="overlap"):
        plan.validate()


def test_gates_and_residuals_are_fused_only_when_nobody_else_looks() -> None:
    g = Graph()
    x = g.embed(weight("token_embd.weight", 10, 8))
    gate = g.silu(g.linear(x, weight("gate.weight", 8, 8)))
    product = gate * g.linear(x, weight("up.weight", 8, 8))
    down = g.linear(product, weight("down.weight", 8, 8))
    y = x + down
    h = g.select_outputs(y + gate)  # a second use of the activation
    g.output(hidden=h)
    ops = [node.op for node in optimise(g.nodes, {h})]
    assert "silu" in ops and "silu_mul" not in ops
    assert ops.count("add") == 1  # the residual went into the product, the other add stays


def test_wrong_shapes_name_the_tensor_and_what_was_expected() -> None:
    g = Graph()
    x = g.embed(weight("token_embd.weight", 10, 8))
    with pytest.raises(
        ModelFileError, match=r"blk\.0\.attn_q\.weight has shape \(4, 6\).*\(4, 8\) was expected"
    ):
        g.linear(x, weight("blk.0.attn_q.weight", 4, 6))
    with pytest.raises(ModelFileError, match="9 columns"):
        g.linear(x, weight("blk.0.attn_q.weight", 9, 8)).heads(2, 4)
    with pytest.raises(ModelFileError, match="norm.weight has 7 values"):
        g.rms_norm(x, weight("norm.weight", 7), 1e-5)
    with pytest.raises(GraphError, match="select_outputs"):
        g.output(hidden=x)


def test_graph_mistakes_are_told_in_the_words_of_the_builder() -> None:
    g = Graph()
    x = g.embed(weight("token_embd.weight", 10, 8))
    q = x.heads(2, 4)
    with pytest.raises(GraphError, match=r"viewed with \.heads"):
        g.attention(q, x, x, layer=0, scale=1.0)
    h = g.select_outputs(x)
    g.output(hidden=h)
    with pytest.raises(GraphError, match="set already"):
        g.output(hidden=h)


def test_missing_tensors_and_keys_are_named() -> None:
    weights = Weights({})
    with pytest.raises(ModelFileError, match=r"tensor blk\.3\.attn_q\.weight is missing"):
        weights.block(3)["attn_q"]
    with pytest.raises(ModelFileError, match=r"llama\.block_count is missing"):
        _ = Hparams({}, "llama").n_layer
    with pytest.raises(ModelFileError, match="2 values; 3 layers"):
        Hparams({"a.block_count": 3, "a.k": [1, 2]}, "a").per_layer("k")


def test_layers_of_one_kind_share_a_pool() -> None:
    layout = cache_layout(describe("gemma3"))
    assert [(p.window, p.layers) for p in layout.pools] == [(24, (0, 1, 2, 3, 4)), (0, (5,))]
    assert layout.place[5] == (1, 0)


def test_rope_frequencies() -> None:
    """Llama 3's divisors come from the file; linear divides all; yarn leaves the fast pairs alone."""
    base = Rope(dims=128, base=500000.0)
    plain, one = base.frequencies(None)
    assert one == 1.0 and plain[0] == 1.0
    halved, _ = base.frequencies(np.full(64, 2.0, np.float32))
    assert np.allclose(halved * 10, plain * 5)
    linear, _ = dataclasses.replace(base, scaling=RopeScaling("linear", 4.0)).frequencies(None)
    assert np.allclose(linear * 4, plain)
    yarn = RopeScaling("yarn", 4.0, original_context=4096)
    mixed, magnitude = dataclasses.replace(base, scaling=yarn).frequencies(None)
    assert np.allclose(mixed[:8], plain[:8]) and np.allclose(mixed[-8:] * 4, plain[-8:])
    assert magnitude == pytest.approx(1 + 0.1 * np.log(4))
    flat = dataclasses.replace(yarn, log_multiplier=1.0)
    assert dataclasses.replace(base, scaling=flat).frequencies(None)[1] == pytest.approx(1.0)


def test_pages_are_given_back_when_they_leave_the_window() -> None:
    spec = PoolSpec(layers=(0,), n_head_kv=1, d_k=4, d_v=4, window=40)
    cache = Cache([spec, dataclasses.replace(spec, window=0)], n_positions=20 * PAGE_SIZE)
    sequence = cache.sequence()
    for _ in range(10 * PAGE_SIZE):
        sequence.reserve(1)
        sequence.advance(1)
        # the row at n_positions - 1 saw n_positions - window .. n_positions - 1
        first_seen = max(0, sequence.n_positions - spec.window + 1)
        assert all(page >= 0 for page in sequence.tables[0][first_seen // PAGE_SIZE :])
    assert sum(page >= 0 for page in sequence.tables[0]) <= spec.window // PAGE_SIZE + 2
    assert all(page >= 0 for page in sequence.tables[1])
    sequence.close()
    assert cache.n_pages_used() == 0


def test_running_out_of_pages_changes_nothing() -> None:
    cache = Cache([PoolSpec((0,), 1, 4, 4)], n_positions=4 * PAGE_SIZE)
    a, b = cache.sequence(), cache.sequence()
    a.reserve(3 * PAGE_SIZE)
    with pytest.raises(OutOfPages):
        b.reserve(2 * PAGE_SIZE)
    assert cache.n_pages_used() == 3
    b.reserve(PAGE_SIZE)
    a.close()
    b.close()
    assert cache.n_pages_used() == 0

"""Blocks that architectures share, inner splits, and the errors of files that contradict themselves. No kernel runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_graph import FakeKernels

from ggfw.descriptors import resolve
from ggfw.errors import GgfwError, ModelFileError
from ggfw.gguf import GGUF
from ggfw.graph import Graph, Hparams, RunConfig, WeightRef, Weights
from ggfw.graph.blocks import fused_swiglu, moe, qkv, windowed
from ggfw.graph.lower import make_plan
from ggfw.graph.plan import F32
from ggfw.registry import default_registry

MODELS = Path(__file__).parent / "data" / "models"


@dataclasses.dataclass
class Info:
    """What :class:`Weights` asks of a tensor."""

    shape: tuple[int, ...]
    ggml_type: int = 0


def layer(**shapes: tuple[int, ...]) -> Weights:
    """Tensors of one layer: keywords are names, ``__`` stands for a dot."""
    names = {name.replace("__", ".") if "__" in name else f"{name}.weight": s for name, s in shapes.items()}
    return Weights({name: Info(shape) for name, shape in names.items()})


def stream(g: Graph, n: int = 16) -> Any:
    return g.embed(WeightRef("token_embd.weight", (10, n), 0))


def hparams(**keys: Any) -> Hparams:
    return Hparams({f"a.{k.replace('__', '.')}": v for k, v in keys.items()}, "a")


# -- blocks ----------------------------------------------------------------------------------------------------------


def test_fused_and_single_projections_have_the_same_shapes() -> None:
    g = Graph()
    fused = qkv(g, stream(g), layer(attn_qkv=(56, 16), attn_qkv__bias=(56,)), 4, 2, 8, 4)
    single = qkv(g, stream(g), layer(attn_q=(32, 16), attn_k=(16, 16), attn_v=(8, 16)), 4, 2, 8, 4)
    assert [t.shape for t in fused] == [t.shape for t in single] == [(4, 8), (2, 8), (2, 4)]


def test_biases_apart_from_a_fused_matrix_are_added() -> None:
    g = Graph()
    biases = {"attn_q__bias": (32,), "attn_k__bias": (16,), "attn_v__bias": (8,)}
    qkv(g, stream(g), layer(attn_qkv=(56, 16), **biases), 4, 2, 8, 4)
    assert [n.attrs["vector"].name for n in g.nodes if n.op == "add"] == [
        "attn_q.bias",
        "attn_k.bias",
        "attn_v.bias",
    ]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (None, "LLFLLF"),
        (2, "LFLFLF"),
        (1, "FFFFFF"),
        (0, "LLLLLL"),
        ([True, False, False, True, True, False], "LFFLLF"),
    ],
)
def test_window_patterns(pattern: Any, expected: str) -> None:
    hp = hparams(block_count=6, attention__sliding_window_pattern=pattern)
    assert "".join("FL"[local] for local in windowed(hp, period=3)) == expected


def test_a_short_window_pattern_is_an_error() -> None:
    with pytest.raises(ModelFileError, match="sliding_window_pattern has 2 values; 6 layers"):
        windowed(hparams(block_count=6, attention__sliding_window_pattern=[True, False]), period=3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda g, x: qkv(g, x, layer(attn_q=(24, 16), attn_k=(16, 16), attn_v=(16, 16)), 4, 2, 8, 8),
         r"attn_q.weight has 24 rows; attention.head_count 4 and heads of 8 columns ask for 32"),
        (lambda g, x: qkv(g, x, layer(attn_q=(32, 16), attn_k=(8, 16), attn_v=(16, 16)), 4, 2, 8, 8),
         r"attn_k.weight has 8 rows; attention.head_count_kv 2"),
        (lambda g, x: qkv(g, x, layer(attn_qkv=(60, 16)), 4, 2, 8, 8), r"attn_qkv.weight has 60 rows; .* ask for 64"),
        (lambda g, x: fused_swiglu(g, x, layer(ffn_up=(30, 16), ffn_down=(16, 16))), r"ffn_up.weight has 30 rows"),
        (lambda g, x: moe(g, x, layer(ffn_gate_inp=(4, 16)), hparams(expert_count=8, expert_used_count=2)),
         r"ffn_gate_inp.weight has 4 rows; a.expert_count 8 ask for 8"),
        (lambda g, x: moe(g, x, layer(ffn_gate_inp=(4, 16), ffn_gate_exps=(3, 8, 16), ffn_up_exps=(3, 8, 16)),
                          hparams(expert_count=4, expert_used_count=2)), r"ffn_gate_exps.weight has 3 experts"),
        (lambda g, x: moe(g, x, layer(ffn_gate_inp=(4, 16)), hparams(expert_count=4, expert_used_count=5)),
         r"expert_used_count is 5"),
    ],
)  # fmt: skip
def test_contradictions_name_tensor_key_and_both_values(
    build: Callable[[Graph, Any], Any], message: str
) -> None:
    g = Graph()
    with pytest.raises(ModelFileError, match=message):
        build(g, stream(g))


# -- real files, spoilt ----------------------------------------------------------------------------------------------

#: Keys that say how big something in the file is, and what makes each wrong.
SIZES = {
    "attention.head_count": lambda n: n + 1,
    "attention.head_count_kv": lambda n: n + 1,
    "attention.key_length": lambda n: n + 2,
    "attention.key_length_swa": lambda n: n + 2,
    "expert_count": lambda n: n + 1,
    "expert_used_count": lambda n: 1000,
    "rope.dimension_count": lambda n: 1000,
    "block_count": lambda n: n + 1,
    "attention.shared_kv_layers": lambda n: 1000,
    "embedding_length_per_layer_input": lambda n: n + 1,
}


def spoilt_files() -> list[Any]:
    cases = []
    for path in sorted(MODELS.glob("*.gguf")):
        with GGUF.open(path) as gguf:
            for key in SIZES:
                value = gguf.metadata.get(f"{gguf.architecture}.{key}")
                says_none = key.startswith("attention.head_count") and value == 0
                if value is not None and not says_none:
                    cases.append(pytest.param(path, key, id=f"{path.stem}-{key}"))
    return cases


@pytest.mark.parametrize(("path", "key"), spoilt_files())
def test_metadata_that_contradict_the_tensors_are_an_error(path: Path, key: str) -> None:
    with GGUF.open(path) as gguf:
        metadata = dict(gguf.metadata)
        full = f"{gguf.architecture}.{key}"
        value = metadata[full]
        change = SIZES[key]
        metadata[full] = [change(int(n)) for n in value] if hasattr(value, "__len__") else change(int(value))
        architecture = resolve(default_registry().architecture_for(gguf.metadata).load)()
        with pytest.raises(GgfwError) as caught:
            architecture.build(
                Graph(), Hparams(metadata, gguf.architecture), Weights(gguf.tensors), RunConfig(64)
            )
    said = str(caught.value)
    assert "is missing" in said or any(character.isdigit() for character in said), said


# -- inner splits and passes -----------------------------------------------------------------------------------------


def test_inner_axes_are_split_by_one_copy_per_part() -> None:
    g = Graph()
    x = stream(g, 24).heads(4, 6)
    a, b = g.split(x, 2, 4)
    assert a.shape == (4, 2) and b.shape == (4, 4)
    both = g.concat(b, a)
    assert both.shape == (4, 6)
    g.output(hidden=g.select_outputs(both.flat()))
    plan = make_plan(g, FakeKernels(F32), max_rows=4, max_outputs=4)
    apart = [{"slots": 4, "from": 6, "to": 2}, {"slots": 4, "from": 6, "to": 4}]
    together = [{"slots": 4, "from": 4, "to": 6}, {"slots": 4, "from": 2, "to": 6}]
    copies = [s.params for s in plan.steps if s.op == "copy"]
    assert copies == [*apart, *together]
    with pytest.raises(ModelFileError, match="cannot be split"):
        g.split(x, 12, 12)


def test_outer_ranges_cost_nothing() -> None:
    g = Graph()
    gate, up = g.split(stream(g), 8, 8)
    g.output(hidden=g.select_outputs(g.silu(gate) * up))
    assert [s.op for s in make_plan(g, FakeKernels(F32), max_rows=4, max_outputs=4).steps][:2] == [
        "embed",
        "elementwise",
    ]


def test_a_factor_goes_into_its_product_and_the_residual_after_it() -> None:
    g = Graph()
    x = stream(g)
    y = x + g.scale(g.linear(x, WeightRef("w", (16, 16), 0), scale=2.0), 0.5)
    g.output(hidden=g.select_outputs(g.scale(g.linear(y, WeightRef("v", (16, 16), 0)), 3.0, 1.0)))
    steps = make_plan(g, FakeKernels(F32), max_rows=4, max_outputs=4).steps
    assert [s.op for s in steps] == ["embed", "linear", "linear", "elementwise", "gather"]
    assert steps[1].params["scale"] == 1.0 and len(steps[1].inputs) == 2
    assert steps[2].params["scale"] == 1.0, "a factor with an addend stays a step"


def test_layers_that_share_a_cache_read_the_one_that_fills_it() -> None:
    with GGUF.open(MODELS / "gemma4-e2b.gguf") as gguf:
        architecture = resolve(default_registry().architecture_for(gguf.metadata).load)()
        g = Graph()
        architecture.build(g, Hparams(gguf.metadata, gguf.architecture), Weights(gguf.tensors), RunConfig(64))
    attends = [n for n in g.nodes if n.op == "attention"]
    assert [n.attrs["layer"] for n in attends] == [0, 1, 2, 1, 1, 2]
    assert [len(n.inputs) for n in attends] == [3, 3, 3, 1, 1, 1]
    make_plan(g, FakeKernels(F32), max_rows=4, max_outputs=4)

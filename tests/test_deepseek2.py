"""DeepSeek 2: products by head and columns by head on both executors, older files, yarn in the scores, bad files."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests_support import check_logits

import ggfw
from ggfw import quants
from ggfw.errors import GraphError, ModelFileError
from ggfw.gguf import GGUF, write_gguf
from ggfw.graph import Graph, RunConfig, WeightRef
from ggfw.model import Described
from ggfw.registry import default_registry
from ggfw.verify import ROUNDED_BOUND, verify

MODELS = Path(__file__).parent / "data" / "models"
EXECUTORS = ["reference", "native"]
N_LAYER, N_HEAD, N_PLAIN, N_VALUE, N_LATENT = 2, 4, 16, 16, 32


def changed(name: str, keys: dict[str, Any], tensors: dict[str, Any] | None = None) -> bytes:
    """A model of tests/data with other keys or tensors; None removes."""
    tensors = dict(tensors or {})
    with GGUF.open(MODELS / f"{name}.gguf") as gguf:
        meta = {**gguf.metadata, **{f"deepseek2.{k}": v for k, v in keys.items()}}
        payload: list[tuple[str, Any]] = [(n, t) for n, t in gguf.tensors.items() if n not in tensors]
        payload += [(n, t) for n, t in tensors.items() if t is not None]
        out = io.BytesIO()
        write_gguf(out, {k: v for k, v in meta.items() if v is not None}, payload)
        return out.getvalue()


def tensor(name: str, tensor_name: str) -> np.ndarray:
    with GGUF.open(MODELS / f"{name}.gguf") as gguf:
        info = gguf.tensors[tensor_name]
        return np.frombuffer(bytes(info.data), np.float32).reshape(info.shape)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ["deepseek2", "deepseek2-lite"])
def test_files_with_one_matrix_for_keys_and_values(name: str, executor: str) -> None:
    """Expanding keys and values head by head is the same attention as leaving them latent."""
    tensors: dict[str, np.ndarray | None] = {}
    for i in range(N_LAYER):
        k = tensor(name, f"blk.{i}.attn_k_b.weight")  # (n_head, n_latent, n_plain)
        v = tensor(name, f"blk.{i}.attn_v_b.weight")  # (n_head, n_value, n_latent)
        both = np.concatenate([k.transpose(0, 2, 1), v], axis=1)
        tensors[f"blk.{i}.attn_kv_b.weight"] = both.reshape(N_HEAD * (N_PLAIN + N_VALUE), N_LATENT)
        tensors |= {f"blk.{i}.attn_k_b.weight": None, f"blk.{i}.attn_v_b.weight": None}
    keys = {"attention.key_length": 24, "attention.value_length": 16, "attention.head_count_kv": N_HEAD,
            "attention.key_length_mla": None, "attention.value_length_mla": None}  # fmt: skip
    fx = check_logits().load(name, root=str(MODELS.parent))
    backend = None if executor == "native" else executor
    with ggfw.load(changed(name, keys, tensors), backend=backend, ctx=128, threads=2) as model:
        logits = {p: model.logits(fx.prompts[p], chunk=7) for p in ("p12", "p90")}
    report = check_logits().compare(fx, logits, root=str(MODELS.parent))
    assert report["ok"], report


def test_the_magnitude_of_yarn_is_in_the_scores_only() -> None:
    """Without yarn's key the rotation has a magnitude of its own, and the scores have it once more."""

    def of(**keys: Any) -> tuple[float, float]:
        """(magnitude of cos and sin, factor of the scores less 1 / sqrt(d_k))."""
        with GGUF.open(changed("deepseek2", {f"rope.scaling.{k}": v for k, v in keys.items()})) as gguf:
            graph = Described(gguf, RunConfig(64), default_registry()).graph
        rope = next(node.attrs["rope"] for node in graph.nodes if node.op == "rope")
        scale = next(node.attrs["scale"] for node in graph.nodes if node.op == "attention")
        return rope.frequencies(None)[1], scale * math.sqrt(24)

    stretch = 0.1 * math.log(40)
    assert of() == pytest.approx((1.0, (1 + stretch) ** 2), rel=1e-6)
    assert of(yarn_log_multiplier=0.0707) == pytest.approx((1.0, (1 + 0.707 * stretch) ** 2), rel=1e-6)
    assert of(yarn_log_multiplier=None) == pytest.approx((1 + stretch, (1 + stretch) ** 2), rel=1e-6)
    assert of(type="none") == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_experts_of_the_best_groups(executor: str) -> None:
    """Two of three groups of two: an expert of the worst group is never used, whatever its weights are."""
    keys = {"expert_group_count": 3, "expert_group_used_count": 1}
    bias = np.array([0, 0, 9, 9, 0, 0], np.float32)  # group 1 wins everywhere
    poison = np.full((6, 64, 32), np.nan, np.float32)
    poison[2:4] = tensor("deepseek2", "blk.1.ffn_down_exps.weight")[2:4]
    data = changed("deepseek2", keys, {"blk.1.exp_probs_b.bias": bias, "blk.1.ffn_down_exps.weight": poison})
    with ggfw.load(data, backend=None if executor == "native" else executor, ctx=64, threads=1) as model:
        assert np.isfinite(model.logits(list(range(20)))).all()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"attention.kv_lora_rank": 24}, r"blk\.0\.attn_kv_a_mqa\.weight has 40 rows.*kv_lora_rank 24"),
        ({"attention.key_length_mla": 32}, r"blk\.0\.attn_q_b\.weight has 96 rows.*32 columns"),
        ({"attention.head_count_kv": 2}, r"head_count_kv 2.*blk\.0\.attn_k_b\.weight.*1 heads"),
        ({"attention.key_length": 48}, r"key_length 48.*blk\.0\.attn_k_b\.weight.*keys of 40"),
        ({"attention.value_length": 16}, r"value_length 16.*blk\.0\.attn_k_b\.weight.*values of 32"),
        ({"rope.dimension_count": 24}, "24 columns and cannot be split"),
        ({"attention.q_lora_rank": 40}, r"blk\.0\.attn_q_a\.weight has 48 rows.*q_lora_rank 40"),
        ({"attention.value_length_mla": 8}, r"blk\.0\.attn_v_b\.weight has heads of 16 columns.*value_length_mla 8"),
        ({"leading_dense_block_count": 2}, r"blk\.1\.ffn_gate\.weight is missing.*leading_dense_block_count 2"),
        ({"leading_dense_block_count": 0}, r"blk\.0\.ffn_gate_inp\.weight is missing.*leading_dense_block_count 0"),
        ({"expert_count": 8}, r"blk\.1\.ffn_gate_inp\.weight has 6 rows.*expert_count 8"),
        ({"expert_gating_func": 7}, r"expert_gating_func is 7"),
        ({"expert_group_count": 4}, r"6 experts.*4 groups.*expert_group_count"),
        ({"expert_group_count": 3, "expert_group_used_count": 1, "expert_used_count": 3}, "expert_used_count is 3"),
        ({"attention.temperature_scale": 0.5}, "temperature_length"),
    ],
)  # fmt: skip
def test_contradictions_name_the_key_and_the_tensor(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFileError, match=said):
        ggfw.load(changed("deepseek2", keys), ctx=64, threads=1)


def test_shapes_of_products_and_columns_by_head() -> None:
    g = Graph()
    x = g.embed(WeightRef("token_embd.weight", (10, 12), 0)).heads(3, 4)
    with pytest.raises(ModelFileError, match=r"w\.weight has shape \(2, 5, 4\).*\(3, 5, 4\)"):
        g.linear_heads(x, WeightRef("w.weight", (2, 5, 4), 0))
    assert g.linear_heads(x, WeightRef("w.weight", (3, 5, 4), 0)).shape == (3, 5)
    one = g.reshape(g.split(x.flat(), 4, 8)[0], (1, 4))
    assert g.concat(x, one).shape == (3, 8) and g.concat(one, x, x).shape == (3, 12)
    with pytest.raises(GraphError, match="same number of heads"):
        g.concat(x, x.flat().heads(2, 6))
    with pytest.raises(GraphError, match="same number of heads"):
        g.concat(x, x.flat())


def test_quantised_matrices_of_each_head() -> None:
    """Int8 rows by head: the native products are those of the same int8 activations."""
    quantised = {}
    for i in range(N_LAYER):
        name = f"blk.{i}.attn_v_b.weight"
        values = tensor("deepseek2", name)
        quantised[name] = (quants.quantize("Q8_0", values).tobytes(), values.shape, "Q8_0")
    found = verify(changed("deepseek2", {}, quantised), list(range(3, 30)), threads=2)
    assert found.ok, found.first_bad
    by_head = [step for step in found.steps if step.step.startswith("moe_linear") and "attn_v_b" in step.step]
    assert len(by_head) == N_LAYER and all(step.bound == ROUNDED_BOUND for step in by_head)


def test_values_cost_no_memory_of_their_own() -> None:
    """V is the first columns of K: a page holds K alone, and no step stores anything else."""
    with GGUF.open(MODELS / "deepseek2.gguf") as gguf:
        described = Described(gguf, RunConfig(64), default_registry())
    (pool,) = described.layout.pools
    assert (pool.d_k, pool.d_v, pool.v_in_k) == (40, 32, True)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_values_as_columns_of_keys_are_those_values(kv_type: str, executor: str) -> None:
    """Cached twice or once, attention is the same to the bit, for prompts and for single tokens."""

    def logits(twice: bool) -> np.ndarray:
        original = Graph.attention

        def attention(g: Graph, q: Any, k: Any, v: Any, *, v_columns: int = 0, **more: Any) -> Any:
            part = g.split(k.flat(), v_columns, k.width - v_columns)[0].heads(1, v_columns)
            return original(g, q, k, part, **more)

        with pytest.MonkeyPatch.context() as patch:
            if twice:
                patch.setattr(Graph, "attention", attention)
            with ggfw.load(MODELS / "deepseek2.gguf", backend=None if executor == "native" else executor,
                           ctx=64, kv_type=kv_type, threads=2) as model:  # fmt: skip
                assert model.loaded.cache.pools[0].spec.v_in_k is not twice
                prompt = model.logits(list(range(3, 43)))
                return np.concatenate([prompt, [model.greedy(list(range(3, 10)), 20)[-1:] * 288]])

    np.testing.assert_array_equal(logits(True), logits(False))


def test_columns_of_keys_that_do_not_exist_are_refused() -> None:
    g = Graph()
    k = g.embed(WeightRef("token_embd.weight", (10, 12), 0)).heads(1, 12)
    for v, v_columns, said in (
        (None, 13, "v_columns 13 exceed"),
        (None, 0, "or neither"),
        (k, 4, "or neither"),
    ):
        with pytest.raises(GraphError, match=said):
            g.attention(k, k, v, v_columns=v_columns, layer=0, scale=1.0)

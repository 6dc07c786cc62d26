"""Hybrid architectures: state across steps, older file forms, waypoints, and files that contradict themselves."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests_support import check_logits

import ggfw
from ggfw.errors import GraphError, ModelFileError
from ggfw.execute.batch import Batch, Segment
from ggfw.gguf import GGUF, write_gguf
from ggfw.graph import Graph, StateSpec, Tensor, WeightRef
from ggfw.graph.cache_layout import cache_layout
from ggfw.model import LoadedModel
from ggfw.verify import trace, verify

MODELS = Path(__file__).parent / "data" / "models"
IDS = [5, 9, 33, 7, 100, 200, 3, 77, 8, 250]


def changed(name: str, keys: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> bytes:
    """A model of tests/data with other metadata (None = removed) or tensors (None = removed, new ones added)."""
    keys, tensors = keys or {}, dict(tensors or {})
    with GGUF.open(MODELS / f"{name}.gguf") as gguf:
        arch = gguf.architecture
        meta = {k: v for k, v in gguf.metadata.items() if k.removeprefix(f"{arch}.") not in keys}
        meta |= {f"{arch}.{k}": v for k, v in keys.items() if v is not None}
        payload = [(n, info) for n, info in gguf.tensors.items() if n not in tensors]
        out = io.BytesIO()
        write_gguf(out, meta, [*payload, *((n, t) for n, t in tensors.items() if t is not None)])
        return out.getvalue()


# -- state across steps (kv-context-3) ---------------------------------------------------------------------------------


@pytest.fixture(params=[(n, e) for n in ("nemotron_h", "qwen35", "lfm2") for e in ("native", "reference")],
                ids="-".join)  # fmt: skip
def model(request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    name, executor = request.param
    backend = None if executor == "native" else "reference"
    loaded = LoadedModel.load(MODELS / f"{name}.gguf", backend=backend, ctx=64, n_parallel=3, threads=2)
    yield loaded
    loaded.close()


def last_logits(model: LoadedModel, sequence: Any, ids: list[int], cuts: list[int]) -> np.ndarray:
    """Logits after ``ids``, evaluated in steps of ``cuts`` rows."""
    begin = 0
    for n in cuts:
        part = ids[begin : begin + n]
        logits = model.executor.step(Batch([Segment(sequence, part, 1, prompt=True)])).logits
        begin += n
    assert begin == len(ids) and logits is not None
    return logits[-1].copy()


@pytest.mark.parametrize("cuts", [[1] * 10, [3, 7], [4, 4, 2]], ids=str)
def test_chunks_of_a_prompt(model: LoadedModel, cuts: list[int]) -> None:
    whole = last_logits(model, model.cache.sequence(), IDS, [10])
    np.testing.assert_allclose(last_logits(model, model.cache.sequence(), IDS, cuts), whole, atol=1e-3)


def test_beside_another_sequence(model: LoadedModel) -> None:
    alone = last_logits(model, model.cache.sequence(), IDS, [10])
    other, mine = model.cache.sequence(), model.cache.sequence()
    batch = Batch(
        [Segment(other, [4, 8, 15, 16, 23, 42], 1, prompt=True), Segment(mine, IDS, 1, prompt=True)]
    )
    logits = model.executor.step(batch).logits
    assert logits is not None
    if model.executor.name == "reference":
        np.testing.assert_allclose(logits[1], alone, atol=1e-3)
    else:
        np.testing.assert_array_equal(logits[1], alone)


def test_slot_used_before(model: LoadedModel) -> None:
    first = model.cache.sequence()
    alone = last_logits(model, first, IDS, [10])
    for _ in range(4):  # every slot, and both of its halves, has seen something else since
        first.close()
        first = model.cache.sequence()
        last_logits(model, first, [7, 7, 7, 1, 2], [2, 1, 2])
    first.close()
    again = model.cache.sequence()
    np.testing.assert_array_equal(last_logits(model, again, IDS, [10]), alone)


def test_rewound_and_continued_differently(model: LoadedModel) -> None:
    """A state cannot be rewound, so a sequence that is taken back is computed again from its start."""
    other = [*IDS[:6], 11, 12, 13]
    fresh = last_logits(model, model.cache.sequence(), other, [9])
    sequence = model.cache.sequence()
    last_logits(model, sequence, IDS, [4, 6])
    sequence.release()
    assert sequence.n_positions == 0
    np.testing.assert_array_equal(last_logits(model, sequence, other, [9]), fresh)


def test_sequences_take_slots_and_give_them_back(model: LoadedModel) -> None:
    sequences = [model.cache.sequence() for _ in range(3)]
    assert sorted(s.state_slot for s in sequences) == [0, 1, 2]
    with pytest.raises(ggfw.errors.GgfwError, match="slots are in use"):
        model.cache.sequence()
    sequences[1].close()
    assert model.cache.sequence().state_slot == 1


# -- layer by layer ----------------------------------------------------------------------------------------------------

#: Waypoints that our graphs have as tensors, whatever their names here.
SHARED = ("attn_norm", "mamba2_y_add_d", "mamba_out", "block_out", "attn_out", "conv_output_silu", "linear_attn",
          "gate", "beta_sigmoid", "attn_output", "final_output", "attn_residual", "l_out", "z", "conv.conv",
          "out_proj", "result_norm", "ffn_shexp", "attn_gated", "ffn_moe_out")  # fmt: skip


@pytest.mark.parametrize("name", ["nemotron_h", "nemotron_h_moe-latent", "qwen35", "qwen3next", "lfm2"])
def test_waypoints(name: str) -> None:
    fx = check_logits().load(name, root=str(MODELS.parent))
    ours: dict[int, list[np.ndarray]] = {}
    for array in trace(MODELS / f"{name}.gguf", fx.prompts["p12"], backend="reference").values():
        ours.setdefault(array.size, []).append(array.reshape(-1))
    seen = 0
    for key, want in sorted(fx.waypoints.items()):
        stem = key.rsplit("/", 1)[1].rsplit("-", 1)[0]
        if not any(stem.endswith(s) or stem.startswith(s) for s in SHARED) or want.shape[0] != 12:
            continue
        error = min(np.abs(a - want.reshape(-1)).max() for a in ours[want.size]) / np.abs(want).max()
        assert error < 1e-3, key
        seen += 1
    assert seen >= 12


@pytest.mark.parametrize("name", ["nemotron_h", "nemotron_h_moe", "qwen35", "qwen3next", "lfm2"])
def test_every_native_step_agrees_with_the_reference(name: str) -> None:
    result = verify(MODELS / f"{name}.gguf", IDS, threads=2)
    assert result.ok, result.first_bad


# -- other forms of the same file --------------------------------------------------------------------------------------


def logits_of(data: bytes | Path, backend: str | None = "reference") -> np.ndarray:
    with ggfw.load(data, backend=backend, ctx=64, threads=2) as m:
        return m.logits(IDS)


def tensor(name: str, tensor: str) -> np.ndarray:
    with GGUF.open(MODELS / f"{name}.gguf") as gguf:
        info = gguf.tensors[tensor]
        return np.frombuffer(info.data, np.float32).reshape(info.shape).copy()


@pytest.mark.parametrize("backend", ["reference", None])
def test_qwen3next_with_fused_projection_by_key_head(backend: str | None) -> None:
    """Older files: rows of q, k, v and z of each key head together, as ``ssm_in``."""
    n_k, d_k, width = 2, 16, 32
    tensors: dict[str, Any] = {}
    for i in range(3):
        qkv, z = (
            tensor("qwen3next", f"blk.{i}.attn_qkv.weight"),
            tensor("qwen3next", f"blk.{i}.attn_gate.weight"),
        )
        q, k, v = np.split(qkv, [n_k * d_k, 2 * n_k * d_k])
        heads = [m.reshape(n_k, -1, qkv.shape[1]) for m in (q, k, v, z)]
        assert [h.shape[1] for h in heads] == [d_k, d_k, width, width]
        tensors |= {f"blk.{i}.attn_qkv.weight": None, f"blk.{i}.attn_gate.weight": None}
        tensors[f"blk.{i}.ssm_in.weight"] = np.concatenate(heads, 1).reshape(-1, qkv.shape[1])
    old = logits_of(changed("qwen3next", tensors=tensors), backend)
    np.testing.assert_allclose(old, logits_of(MODELS / "qwen3next.gguf"), atol=1e-4)


def test_recurrent_layers_by_flags() -> None:
    flags = changed(
        "qwen35", {"full_attention_interval": None, "attention.recurrent_layers": [True, True, True, False]}
    )
    np.testing.assert_array_equal(logits_of(flags), logits_of(MODELS / "qwen35.gguf"))


def test_draft_heads_are_left_out() -> None:
    """Blocks beyond the trunk are draft heads; their count is part of ``block_count``."""
    keys = {"block_count": 6, "nextn_predict_layers": 1, "attention.head_count_kv": [0, 0, 0, 2, 0, 2],
            "feed_forward_length": [0, 96, 0, 0, 96, 96]}  # fmt: skip
    np.testing.assert_array_equal(
        logits_of(changed("nemotron_h", keys)), logits_of(MODELS / "nemotron_h.gguf")
    )


def test_experts_differ_between_layers() -> None:
    """One number for all layers, or one per layer."""
    scalar = logits_of(MODELS / "nemotron_h_moe.gguf")
    same = logits_of(changed("nemotron_h_moe", {"expert_used_count": [0, 2, 0, 0, 2]}))
    other = logits_of(changed("nemotron_h_moe", {"expert_used_count": [0, 2, 0, 0, 3]}))
    np.testing.assert_array_equal(same, scalar)
    assert np.abs(other - scalar).max() > 1e-2


def test_eps_of_the_layer_norm_serves_where_there_is_no_other() -> None:
    data = changed("nemotron_h", {"attention.layer_norm_rms_epsilon": None})
    np.testing.assert_array_equal(logits_of(data), logits_of(MODELS / "nemotron_h.gguf"))


# -- files that contradict themselves ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "keys", "parts"), [
    ("nemotron_h", {"ssm.state_size": 32}, ["ssm_in.weight", "ssm.inner_size", "state_size 32", "328", "392"]),
    ("nemotron_h", {"ssm.conv_kernel": 3}, ["ssm_conv1d.weight", "nemotron_h.ssm.conv_kernel", "4", "3"]),
    ("nemotron_h", {"ssm.group_count": 3}, ["ssm_in.weight", "group_count 3"]),
    ("nemotron_h", {"ssm.time_step_rank": 7}, ["ssm.inner_size", "128", "ssm.time_step_rank", "7"]),
    ("nemotron_h", {"attention.head_count_kv": [0, 0, 0, 4, 0]}, ["attn_k.weight", "head_count_kv 4", "32", "64"]),
    ("nemotron_h", {"attention.head_count_kv": [0, 0, 0, 0, 0]}, ["blk.3.ssm_in.weight", "head_count_kv 0"]),
    ("nemotron_h", {"attention.head_count_kv": [0, 0, 2]}, ["head_count_kv", "3", "5"]),
    ("nemotron_h", {"ssm.inner_size": None}, ["nemotron_h.ssm.inner_size", "missing"]),
    ("nemotron_h_moe", {"expert_count": 6}, ["ffn_gate_inp.weight", "expert_count 6", "5"]),
    ("nemotron_h_moe", {"expert_used_count": 9}, ["expert_used_count", "9", "5"]),
    ("qwen35", {"ssm.group_count": 4}, ["attn_qkv.weight", "group_count 4", "128", "192"]),
    ("qwen35", {"ssm.inner_size": 128}, ["attn_qkv.weight", "inner_size 128"]),
    ("qwen35", {"ssm.time_step_rank": 8}, ["ssm_beta.weight", "time_step_rank 8", "4"]),
    ("qwen35", {"attention.head_count": 3}, ["attn_q.weight", "attention.head_count 3", "128", "192"]),
    ("qwen35", {"full_attention_interval": 2}, ["blk.1.attn_output.weight", "missing", "full_attention_interval"]),
    ("qwen35", {"full_attention_interval": 0}, ["qwen35.full_attention_interval", "0"]),
    ("lfm2moe", {"expert_gating_func": 7}, ["lfm2moe.expert_gating_func", "7"]),
    ("granitehybrid", {"attention.head_count_kv": [0, 0, 0]}, ["blk.1.ssm_in.weight", "head_count_kv 0"]),
    ("mamba2", {"ssm.time_step_rank": 0}, ["mamba2.ssm.time_step_rank", "0"]),
    ("qwen3next", {"ssm.time_step_rank": 8}, ["ssm_ba.weight", "time_step_rank 8", "16"]),
    ("lfm2", {"shortconv.l_cache": 4}, ["shortconv.conv.weight", "lfm2.shortconv.l_cache", "3", "4"]),
    ("lfm2", {"embedding_length": 32}, ["in_proj.weight", "192", "embedding_length 32", "96"]),
    ("lfm2", {"attention.head_count_kv": [0, 2, 2, 0]}, ["blk.1.attn_output.weight", "head_count_kv 2"]),
    ("lfm2", {"attention.head_count_kv": [0, 0, 0, 0]}, ["blk.2.shortconv.in_proj.weight", "head_count_kv 0"]),
])  # fmt: skip
def test_contradictions_name_key_tensor_and_values(name: str, keys: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ModelFileError) as caught:
        LoadedModel.load(changed(name, keys), backend="reference", ctx=64)
    message = str(caught.value)
    assert all(part in message for part in parts), message


# -- shape rules -------------------------------------------------------------------------------------------------------


def ref(name: str, *shape: int) -> WeightRef:
    return WeightRef(name, shape, 0)


def columns(g: Graph, n: int) -> Tensor:
    return g.linear(g.embed(ref("token_embd.weight", 10, 8)), ref(f"w{n}.weight", n, 8))


def test_states_follow_from_shapes() -> None:
    g = Graph()
    x = g.short_conv(columns(g, 32), ref("conv.weight", 32, 4))
    y = g.ssm_scan(x.heads(4, 8), columns(g, 4), columns(g, 12).heads(2, 6), columns(g, 12).heads(2, 6),
                   a=ref("a", 4, 1), d=ref("d", 4))  # fmt: skip
    o = g.gated_delta_rule(columns(g, 10).heads(2, 5), columns(g, 10).heads(2, 5), y, columns(g, 4), columns(g, 4),
                           scale=1.0, pairing="mod")  # fmt: skip
    assert y.shape == o.shape == (4, 8)
    assert cache_layout(g).states == (StateSpec((3, 32)), StateSpec((4, 6, 8)), StateSpec((4, 5, 8)))


def test_short_conv_refuses() -> None:
    g = Graph()
    x = columns(g, 32)
    for weight, bias in [(ref("c.weight", 31, 4), None), (ref("c.weight", 32, 1), None), (ref("c.weight", 32), None),
                         (ref("c.weight", 32, 4), ref("c.bias", 31))]:  # fmt: skip
        with pytest.raises(ModelFileError, match=r"c\.(weight|bias).*32"):
            g.short_conv(x, weight, bias)
    with pytest.raises(GraphError, match="gelu"):
        g.short_conv(x, ref("c.weight", 32, 4), activation="gelu")
    with pytest.raises(GraphError, match="of the batch"):
        g.short_conv(x.heads(4, 8), ref("c.weight", 32, 4))
    with pytest.raises(GraphError, match="of the batch"):
        g.short_conv(g.select_outputs(x), ref("c.weight", 32, 4))


def test_ssm_scan_refuses() -> None:
    g = Graph()
    x, dt = columns(g, 32).heads(4, 8), columns(g, 4)
    b, a, d = columns(g, 12).heads(2, 6), ref("a", 4), ref("d", 4)
    with pytest.raises(ModelFileError, match="step size"):
        g.ssm_scan(x, columns(g, 5), b, b, a=a, d=d)
    with pytest.raises(ModelFileError, match="groups"):
        g.ssm_scan(x, dt, columns(g, 18).heads(3, 6), columns(g, 18).heads(3, 6), a=a, d=d)
    with pytest.raises(ModelFileError, match="one shape"):
        g.ssm_scan(x, dt, b, columns(g, 12).heads(4, 3), a=a, d=d)
    with pytest.raises(ModelFileError, match="a has 3 values; 4 heads need 4"):
        g.ssm_scan(x, dt, b, b, a=ref("a", 3), d=d)
    with pytest.raises(GraphError, match="heads"):
        g.ssm_scan(columns(g, 32), dt, b, b, a=a, d=d)


def test_gated_delta_rule_refuses() -> None:
    g = Graph()
    q, v, one = columns(g, 10).heads(2, 5), columns(g, 32).heads(4, 8), columns(g, 4)
    with pytest.raises(ModelFileError, match="do not fit"):
        g.gated_delta_rule(q, columns(g, 10).heads(1, 10), v, one, one, scale=1.0, pairing="div")
    with pytest.raises(ModelFileError, match="do not fit"):
        g.gated_delta_rule(
            q, q, columns(g, 24).heads(3, 8), columns(g, 3), columns(g, 3), scale=1.0, pairing="div"
        )
    with pytest.raises(ModelFileError, match="4 value heads"):
        g.gated_delta_rule(q, q, v, columns(g, 2), one, scale=1.0, pairing="div")
    with pytest.raises(GraphError, match="tiled"):
        g.gated_delta_rule(q, q, v, one, one, scale=1.0, pairing="tiled")


# -- through the engine ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nemotron_h_moe", "qwen35", "mamba2"])
def test_more_requests_than_slots(name: str) -> None:
    """Requests wait for a slot, and each starts from a state of its own, whoever had the slot before."""
    fx = check_logits().load(name, root=str(MODELS.parent))
    ids = fx.prompts["p12"]
    with ggfw.load(fx.gguf, ctx=128, n_parallel=2, threads=2) as model:
        prompts = [ids, ids[3:], [*ids, *ids], ids[:1], ids, ids[5:]]

        def submit(prompt: list[int]) -> Any:
            return model.submit(model.request(prompt, max_tokens=20, ignore_eos=True, temperature=0))

        alone = [submit(prompt).result(60).token_ids for prompt in prompts]
        assert list(alone[0]) == fx.greedy["p12"][:20]
        handles = [submit(prompt) for prompt in prompts]
        assert [handle.result(60).token_ids for handle in handles] == alone
        assert sorted(model.loaded.cache.sequence().state_slot for _ in range(2)) == [0, 1]

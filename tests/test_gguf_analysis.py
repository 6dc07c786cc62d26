"""The analyzer: facts from metadata and records only."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, LlamaFileType

from ggfw.gguf import GGML_TYPES, GGUF, analyze, gguf_bytes, values

BASE: dict[str, Any] = {
    "general.architecture": "toy",
    "general.name": "Toy",
    "toy.block_count": 4,
    "toy.embedding_length": 64,
    "toy.feed_forward_length": 128,
    "toy.attention.head_count": 8,
    "toy.attention.head_count_kv": 2,
    "toy.context_length": 8192,
    "toy.rope.freq_base": 10000.0,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "default",
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}


def model(**changes: Any) -> Any:
    tensors = [
        ("token_embd.weight", (bytes(3 * 36), (3, 64), "Q4_0")),
        ("output_norm.weight", np.ones(64, np.float32)),
    ]
    metadata = BASE | {key.replace("__", "."): value for key, value in changes.items()}
    return analyze(gguf_bytes(metadata, tensors))


def test_plain_model() -> None:
    a = model()
    assert (a.architecture, a.name, a.n_vocab, a.n_ctx_train) == ("toy", "Toy", 3, 8192)
    assert a.n_parameters == 3 * 64 + 64
    assert a.bits_per_weight == pytest.approx(8 * (108 + 256) / 256)
    assert (a.n_layer, a.n_embd, a.n_ff, a.n_head, a.n_head_kv) == (4, 64, 128, 8, 2)
    assert (a.head_dim_k, a.head_dim_v, a.quantization) == (8, 8, "Q4_0")
    assert a.rope == {"freq_base": 10000.0}
    assert (a.tokenizer, a.pre_tokenizer, a.has_chat_template) == ("gpt2", "default", False)
    assert a.types["Q4_0"].n_bytes == 108 and a.types["F32"].n_elements == 64
    assert [t.name for t in a.biggest] == ["output_norm.weight", "token_embd.weight"]
    elements = 4 * 2 * (8 + 8)  # layers, heads, key and value width
    assert a.kv_full is not None and a.kv_4k is not None
    assert (a.kv_full.n_ctx, a.kv_full.f32, a.kv_full.f16) == (8192, 8192 * elements * 4, 8192 * elements * 2)
    assert (a.kv_4k.n_ctx, a.kv_4k.f32) == (4096, 4096 * elements * 4)
    json.dumps(a.to_dict())


def test_windowed_layers_keep_their_window() -> None:
    a = model(
        toy__attention__sliding_window=512, toy__attention__sliding_window_pattern=[True, True, True, False]
    )
    assert (a.sliding_window, a.sliding_window_layers) == (512, 3)
    assert a.kv_full is not None and a.kv_full.f32 == (3 * 512 + 8192) * 2 * 16 * 4
    assert model(toy__attention__sliding_window=512).sliding_window_layers is None


def test_recurrent_latent_and_shared_caches() -> None:
    assert model(toy__attention__head_count_kv=[0, 2, 0, 2]).kv_full.f32 == 8192 * 2 * 2 * 16 * 4
    assert model(toy__full_attention_interval=4).kv_full.f32 == 8192 * 2 * 16 * 4
    assert model(toy__attention__shared_kv_layers=2).kv_full.f32 == 2 * 8192 * 2 * 16 * 4
    latent = model(
        toy__attention__key_length=40, toy__attention__value_length=32, toy__attention__key_length_mla=24
    )
    assert latent.kv_full.f32 == 4 * 8192 * 2 * 40 * 4


def test_file_type_names_the_mixture() -> None:
    assert model(general__file_type=15).quantization == "Q4_K_M"
    assert model(general__file_type=1024).quantization == "Q4_0"
    for known in LlamaFileType:
        if known != LlamaFileType.GUESSED:
            assert model(general__file_type=int(known)).quantization == known.name.split("_", 1)[1]


def test_file_without_geometry() -> None:
    a = analyze(gguf_bytes({"general.architecture": "x"}))
    assert a.n_layer is None and a.kv_full is None and a.bits_per_weight == 0 and a.quantization == "none"
    assert a.n_experts == 0 and a.rope == {} and a.biggest == ()


def test_odd_value_types_are_no_crash() -> None:
    a = model(toy__block_count="four", toy__context_length=8192.0, toy__attention__head_count_kv=[1, 2])
    assert a.n_layer is None and a.n_ctx_train == 8192 and a.kv_full is None


@pytest.mark.parametrize("value", [2**32 - 1, values.U64(2**64 - 1), values.F64(1e308), values.I32(-1)])
def test_impossible_layer_counts_cost_nothing(value: Any) -> None:
    a = model(toy__block_count=value)
    assert a.kv_full is None and a.kv_4k is None


@pytest.mark.parametrize(
    "value",
    ["four", ["a", "b"], [[1], [2]], [], values.F32(float("nan")), values.F32(-0.5), True, [1.5, 2.5]],
)
@pytest.mark.parametrize("key", ["head_count", "head_count_kv", "key_length", "sliding_window_pattern"])
def test_odd_values_of_per_layer_keys_are_no_crash(key: str, value: Any) -> None:
    a = model(**{f"toy__attention__{key}": value, "toy__attention__sliding_window": 16})
    a.to_dict()
    assert a.kv_full is None or a.kv_full.f32 >= 0


def test_open_model_stays_open() -> None:
    gguf = GGUF.open(gguf_bytes(BASE, [("w", np.ones(8, np.float32))]))
    analyze(gguf)
    assert gguf.tensors["w"].data.view("<f4")[0] == 1


def test_type_table_equals_gguf_package() -> None:
    for known, (block_size, type_size) in GGML_QUANT_SIZES.items():
        ours = GGML_TYPES[int(known)]
        # The gguf package counts 40 bytes for Q8_1, from when its two header fields were float32.
        expected = 36 if known.name == "Q8_1" else type_size
        assert (ours.name, ours.block_size, ours.type_size) == (known.name, block_size, expected)

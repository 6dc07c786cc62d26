#!/usr/bin/env python3
"""Write a random model of real proportions, for speed only: `python bench/synthetic.py nemotron_h OUT.gguf`.

Matrices are random blocks whose products keep the scale of their input, so that nothing overflows and no layer is
skipped by zeros; what the model says means nothing. About 300 million parameters, llama 1.1 billion:

    llama         22 layers, 32 heads of 64 (4 for keys and values), SwiGLU of 5632; 2048 columns
    nemotron_h    13 Mamba-2 layers (32 heads of 64, 128 states, 8 groups), 13 FFN, 2 attention; 1024 columns
    qwen35        9 delta nets (16 heads of 128) and 3 attention layers, each with SwiGLU; 1024 columns
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ggfw.gguf import write_gguf

N_VOCAB = 32768
N_EMBD = 1024

#: name -> shape, slowest axis first.
Shapes = dict[str, tuple[int, ...]]


def q8_0(rng: np.random.Generator, n_values: int, n_in: int) -> np.ndarray:
    """Random Q8_0 blocks: (n_blocks, 34) uint8. Uniform int8 have a deviation of 73."""
    blocks = rng.integers(0, 256, (n_values // 32, 34), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(1 / (73 * n_in**0.5)).tobytes(), np.uint8)
    return blocks


def q4_0(rng: np.random.Generator, n_values: int, n_in: int) -> np.ndarray:
    """Random Q4_0 blocks: (n_blocks, 18) uint8. Uniform values of -8 to 7 have a deviation of 4.6."""
    blocks = rng.integers(0, 256, (n_values // 32, 18), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(1 / (4.6 * n_in**0.5)).tobytes(), np.uint8)
    return blocks


def q4_k(rng: np.random.Generator, n_values: int, n_in: int) -> np.ndarray:
    """Random Q4_K blocks: (n_blocks, 144) uint8. A 6-bit scale times a 4-bit code: a deviation of about 300 d."""
    blocks = rng.integers(0, 256, (n_values // 256, 144), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(1 / (300 * n_in**0.5)).tobytes(), np.uint8)
    blocks[:, 2:4] = np.frombuffer(np.float16(7.5 / (300 * n_in**0.5)).tobytes(), np.uint8)
    return blocks


def q6_k(rng: np.random.Generator, n_values: int, n_in: int) -> np.ndarray:
    """Random Q6_K blocks: (n_blocks, 210) uint8. An int8 scale times a code of -32 to 31: deviation about 1350 d."""
    blocks = rng.integers(0, 256, (n_values // 256, 210), np.uint8)
    blocks[:, 208:] = np.frombuffer(np.float16(1 / (1350 * n_in**0.5)).tobytes(), np.uint8)
    return blocks


def f16(rng: np.random.Generator, n_values: int, n_in: int) -> np.ndarray:
    """Normal F16 values as bytes."""
    return (rng.standard_normal(n_values, np.float32) / n_in**0.5).astype(np.float16).view(np.uint8)


TYPES: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "Q8_0": q8_0,
    "Q4_0": q4_0,
    "Q4_K": q4_k,
    "Q6_K": q6_k,
    "F16": f16,
}
#: A mixture: Q6_K where llama.cpp's Q4_K_M has it (output, half of the attn_v and ffn_down), Q4_K elsewhere.
Q4_K_M = "Q4_K_M"


def type_of(name: str, type_name: str, n_layer: int) -> str:
    """The type of a matrix in a model of ``type_name``."""
    if type_name != Q4_K_M:
        return type_name
    if name == "output.weight":
        return "Q6_K"
    if not name.endswith(("attn_v.weight", "ffn_down.weight")):
        return "Q4_K"
    layer = int(name.split(".")[1])
    first, last = n_layer // 8, 7 * n_layer // 8
    return "Q6_K" if layer < first or layer >= last or (layer - first) % 3 == 2 else "Q4_K"


def llama() -> tuple[dict[str, Any], Shapes]:
    """Keys and tensors of a llama of the 1B class."""
    n_layer, n_embd, n_head, n_kv, d, n_ff = 22, 2048, 32, 4, 64, 5632
    keys = {
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_kv,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": d,
    }
    shapes: Shapes = {"output.weight": (N_VOCAB, n_embd)}
    for i in range(n_layer):
        layer: Shapes = {
            "attn_norm.weight": (n_embd,), "attn_q.weight": (n_head * d, n_embd), "attn_k.weight": (n_kv * d, n_embd),
            "attn_v.weight": (n_kv * d, n_embd), "attn_output.weight": (n_embd, n_head * d),
            "ffn_norm.weight": (n_embd,), "ffn_gate.weight": (n_ff, n_embd), "ffn_up.weight": (n_ff, n_embd),
            "ffn_down.weight": (n_embd, n_ff),
        }  # fmt: skip
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return keys | {"block_count": n_layer}, shapes


def nemotron_h() -> tuple[dict[str, Any], Shapes]:
    """Keys and tensors of the Nemotron-H, one mixer per layer."""
    kinds = "MFMFMFMFMFMFMAFMFMFMFMFMFMAF"
    d_inner, n_head, n_state, n_group, n_ff, n_kv, d = 2048, 32, 128, 8, 4096, 2, 128
    keys = {
        "feed_forward_length": [n_ff if k == "F" else 0 for k in kinds],
        "attention.head_count": N_EMBD // d,
        "attention.head_count_kv": [n_kv if k == "A" else 0 for k in kinds],
        "attention.key_length": d,
        "attention.value_length": d,
        "attention.layer_norm_epsilon": 1e-5,
        **ssm_keys(d_inner, n_head, n_state, n_group),
    }
    n_conv = d_inner + 2 * n_group * n_state
    shapes: Shapes = {"output.weight": (N_VOCAB, N_EMBD)}
    for i, kind in enumerate(kinds):
        layer: Shapes = {"attn_norm.weight": (N_EMBD,)}
        if kind == "M":
            layer |= {
                "ssm_in.weight": (d_inner + n_conv + n_head, N_EMBD), "ssm_conv1d.weight": (n_conv, 4),
                "ssm_conv1d.bias": (n_conv,), "ssm_dt.bias": (n_head,), "ssm_a": (n_head, 1), "ssm_d": (n_head, 1),
                "ssm_norm.weight": (n_group, d_inner // n_group), "ssm_out.weight": (N_EMBD, d_inner),
            }  # fmt: skip
        elif kind == "F":
            layer |= {"ffn_up.weight": (n_ff, N_EMBD), "ffn_down.weight": (N_EMBD, n_ff)}
        else:
            layer |= {
                "attn_q.weight": (N_EMBD, N_EMBD), "attn_k.weight": (n_kv * d, N_EMBD),
                "attn_v.weight": (n_kv * d, N_EMBD), "attn_output.weight": (N_EMBD, N_EMBD),
            }  # fmt: skip
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return keys | {"block_count": len(kinds)}, shapes


def qwen35() -> tuple[dict[str, Any], Shapes]:
    """Keys and tensors of the Qwen 3.5, with every fourth layer attention."""
    n_layer, n_k, n_v, d, n_ff, n_head, n_kv, d_head = 12, 16, 16, 128, 3584, 8, 2, 256
    keys = {
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_kv,
        "attention.key_length": d_head,
        "attention.value_length": d_head,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "full_attention_interval": 4,
        "rope.dimension_count": 64,
        "rope.dimension_sections": [11, 11, 10, 0],
        "rope.freq_base": 1e7,
        **ssm_keys(n_v * d, n_v, d, n_k),
    }
    n_mixed = (2 * n_k + n_v) * d
    shapes: Shapes = {}
    for i in range(n_layer):
        layer: Shapes = {
            "attn_norm.weight": (N_EMBD,), "post_attention_norm.weight": (N_EMBD,), "ffn_gate.weight": (n_ff, N_EMBD),
            "ffn_up.weight": (n_ff, N_EMBD), "ffn_down.weight": (N_EMBD, n_ff),
        }  # fmt: skip
        if (i + 1) % 4:
            layer |= {
                "attn_qkv.weight": (n_mixed, N_EMBD), "attn_gate.weight": (n_v * d, N_EMBD),
                "ssm_conv1d.weight": (n_mixed, 4), "ssm_dt.bias": (n_v,), "ssm_a": (n_v,),
                "ssm_beta.weight": (n_v, N_EMBD), "ssm_alpha.weight": (n_v, N_EMBD), "ssm_norm.weight": (d,),
                "ssm_out.weight": (N_EMBD, n_v * d),
            }  # fmt: skip
        else:
            layer |= {
                "attn_q.weight": (2 * n_head * d_head, N_EMBD), "attn_k.weight": (n_kv * d_head, N_EMBD),
                "attn_v.weight": (n_kv * d_head, N_EMBD), "attn_q_norm.weight": (d_head,),
                "attn_k_norm.weight": (d_head,), "attn_output.weight": (N_EMBD, n_head * d_head),
            }  # fmt: skip
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return keys | {"block_count": n_layer}, shapes


def ssm_keys(d_inner: int, n_head: int, n_state: int, n_group: int) -> dict[str, int]:
    """The ``ssm.*`` keys, with a kernel of 4."""
    return {
        "ssm.conv_kernel": 4, "ssm.inner_size": d_inner, "ssm.time_step_rank": n_head, "ssm.state_size": n_state,
        "ssm.group_count": n_group,
    }  # fmt: skip


MODELS: dict[str, Callable[[], tuple[dict[str, Any], Shapes]]] = {
    "llama": llama,
    "nemotron_h": nemotron_h,
    "qwen35": qwen35,
}


def vector(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A small tensor, F32: what keeps the recurrence alive and bounded."""
    if name.endswith("ssm_a"):
        return -np.exp(rng.uniform(-2, 1, shape)).astype(np.float32)
    if name.endswith("ssm_dt.bias"):
        return rng.uniform(-5, -1, shape).astype(np.float32)
    if name.endswith("conv1d.weight"):
        return (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)
    mean = 0.0 if name.endswith(".bias") else 1.0
    return (mean + 0.1 * rng.standard_normal(shape)).astype(np.float32)


def tensors(shapes: Shapes, type_name: str, seed: int, n_layer: int) -> Iterator[tuple[str, Any]]:
    """Names and data for the writer; matrices are made when it is their turn."""
    for i, (name, shape) in enumerate(shapes.items()):
        rng = np.random.default_rng((seed, i))
        if len(shape) < 2 or "conv1d" in name or "ssm_norm" in name or name.endswith(("ssm_a", "ssm_d")):
            yield name, vector(rng, name, shape)
        else:
            own = type_of(name, type_name, n_layer)

            def load(
                rng: np.random.Generator = rng, shape: tuple[int, ...] = shape, own: str = own
            ) -> np.ndarray:
                return TYPES[own](rng, prod(shape), shape[-1]).reshape(-1)

            yield name, (load, shape, own)


def vocabulary() -> dict[str, Any]:
    """A SentencePiece vocabulary of the bytes and made-up pieces."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581"]
    types = [2, 3, 3, *[6] * 256, 1]
    pieces += [f"\u2581{i:x}" for i in range(N_VOCAB - len(pieces))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": -np.arange(N_VOCAB, dtype=np.float32),
        "tokenizer.ggml.token_type": np.array(types + [1] * (N_VOCAB - len(types)), np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
    }


def write(architecture: str, path: Path, type_name: str = "Q8_0", seed: int = 0) -> int:
    """Write a model; returns its number of parameters."""
    keys, shapes = MODELS[architecture]()
    n_embd = keys.get("embedding_length", N_EMBD)
    shapes = {"token_embd.weight": (N_VOCAB, n_embd), "output_norm.weight": (n_embd,), **shapes}
    common = {"context_length": 4096, "embedding_length": N_EMBD, "vocab_size": N_VOCAB}
    meta = {
        "general.architecture": architecture,
        "general.name": f"synthetic {architecture} {type_name}",
        **{f"{architecture}.{key}": value for key, value in (common | keys).items()},
        **vocabulary(),
    }
    write_gguf(path, meta, tensors(shapes, type_name, seed, keys["block_count"]))
    return sum(map(prod, shapes.values()))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write a random model of real proportions, for speed only.")
    parser.add_argument("architecture", choices=sorted(MODELS))
    parser.add_argument("path", type=Path, metavar="OUT.gguf")
    parser.add_argument("--type", default="Q8_0", choices=[*sorted(TYPES), Q4_K_M])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    n = write(args.architecture, args.path, args.type, args.seed)
    print(f"{args.path}: {n / 1e6:.0f} million parameters, {args.path.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()

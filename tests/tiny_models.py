"""Tiny random models, written on the spot: enough of a file for engine, server and command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ggfw.gguf import write_gguf

#: Token types: normal, unknown, control, byte.
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def vocabulary() -> dict[str, Any]:
    """A SentencePiece vocabulary of 262 pieces: bytes, a space, two ChatML marks."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{i:02X}>" for i in range(256)),
        "<|im_start|>",
        "<|im_end|>",
        "▁",
    ]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, CONTROL, CONTROL, NORMAL]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": np.zeros(len(pieces), np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": CHATML,
    }


def metadata(architecture: str, **keys: Any) -> dict[str, Any]:
    """General keys, the vocabulary, and ``architecture.KEY`` for each keyword (``__`` stands for a dot)."""
    own = {f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}
    return {"general.architecture": architecture, "general.name": "tiny", **vocabulary(), **own}


def random_matrix(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """A matrix whose products keep the scale of their input."""
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def write_llama(path: Path, n_layer: int = 2, seed: int = 0, n_ctx: int = 256, n_ff: int = 64) -> Path:
    """Write a random llama: 32 columns, 4 heads of 8, 2 key heads, ``n_ff`` hidden columns, all F32."""
    rng = np.random.default_rng(seed)
    n_embd, n_head, n_kv, d = 32, 4, 2, 8
    meta = metadata(
        "llama", context_length=n_ctx, embedding_length=n_embd, block_count=n_layer, feed_forward_length=n_ff,
        attention__head_count=n_head, attention__head_count_kv=n_kv, attention__layer_norm_rms_epsilon=1e-5,
        rope__dimension_count=d,
    )  # fmt: skip
    n_vocab = len(meta["tokenizer.ggml.tokens"])
    shapes = {
        "attn_q": (n_head * d, n_embd), "attn_k": (n_kv * d, n_embd), "attn_v": (n_kv * d, n_embd),
        "attn_output": (n_embd, n_head * d), "ffn_gate": (n_ff, n_embd), "ffn_up": (n_ff, n_embd),
        "ffn_down": (n_embd, n_ff),
    }  # fmt: skip
    tensors = [("token_embd.weight", random_matrix(rng, n_vocab, n_embd) * np.float32(n_embd**0.5))]
    for i in range(n_layer):
        tensors += [(f"blk.{i}.{name}.weight", random_matrix(rng, *shape)) for name, shape in shapes.items()]
        tensors += [
            (f"blk.{i}.{name}.weight", np.ones(n_embd, np.float32)) for name in ("attn_norm", "ffn_norm")
        ]
    tensors += [
        ("output_norm.weight", np.ones(n_embd, np.float32)),
        ("output.weight", random_matrix(rng, n_vocab, n_embd) * np.float32(3)),
    ]
    write_gguf(path, meta, tensors)
    return path

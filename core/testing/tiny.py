"""Tiny random models, made on the spot, and registries that hold a plugin which is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ggfw import quants
from ggfw.descriptors import Descriptor, QuantFormat
from ggfw.discovery import Offer, Origin, Switches, discover
from ggfw.gguf import gguf_bytes
from ggfw.registry import Registry

__all__ = ["registry_with", "tiny_gguf", "tiny_metadata", "tiny_vocabulary"]

#: What stands in a tiny file for a tensor or key that it does without.
WITHOUT = None

_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def registry_with(*descriptors: Descriptor) -> Registry:
    """A registry of everything that is installed and of ``descriptors``, which win over what has their names."""
    found = discover(None, Switches())
    found.offers = [
        offer
        for offer in found.offers
        if not any(offer.kind == d.kind and offer.descriptor.name == d.name for d in descriptors)
    ]
    found.offers += [Offer(d.kind, d, Origin(f"testing.{d.name}", "", "")) for d in descriptors]
    return Registry(found)


def tiny_vocabulary() -> dict[str, Any]:
    """Metadata of a SentencePiece vocabulary of 262 pieces: 3 special ones, all bytes, 2 ChatML marks, a space."""
    marks = ["<|im_start|>", "<|im_end|>"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *marks, "▁"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": np.zeros(len(pieces), np.float32),
        # unknown, control, control, bytes, control, control, normal
        "tokenizer.ggml.token_type": np.array([2, 3, 3, *[6] * 256, 3, 3, 1], np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": _CHATML,
    }


def tiny_metadata(
    architecture: str, n_layer: int, n_embd: int, n_head: int, n_head_kv: int, n_ff: int, n_ctx: int
) -> dict[str, Any]:
    """The usual keys of a transformer, and the vocabulary."""
    own = {
        "context_length": n_ctx,
        "block_count": n_layer,
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_head_kv,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
        "rope.dimension_count": n_embd // n_head,
    }
    return {
        "general.architecture": architecture,
        "general.name": f"tiny {architecture}",
        **tiny_vocabulary(),
        **{f"{architecture}.{key}": value for key, value in own.items()},
    }


def tiny_gguf(
    architecture: str = "llama",
    *,
    n_layer: int = 2,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 96,
    n_ctx: int = 256,
    n_expert: int = 0,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
    fmt: quants.Format | None = None,
    registry: Registry | None = None,
    seed: int = 0,
) -> bytes:
    """A GGUF file of a random model with Llama's tensors, changed as the caller says.

    Args:
        architecture: ``general.architecture`` and prefix of the keys.
        n_layer, n_embd, n_head, n_head_kv, n_ff, n_ctx: its sizes.
        n_expert: experts of each layer, of which a token uses 2; 0: an ordinary FFN.
        metadata: further keys, whole or (without ``general.`` or ``tokenizer.`` in front) behind the architecture's
            name; the value None removes one.
        tensors: further tensors: name -> shape (slowest axis first) or array. ``{}`` in a name stands for every layer.
            Random values: vectors near 1 (``.bias``: near 0), matrices that keep the scale of their input. The value
            None removes a tensor.
        fmt: quant format of the matrices whose rows fit it; None: float32.
        registry: where ``fmt`` is looked up by name.
        seed: of the random values.

    Returns:
        The file's bytes, which :func:`ggfw.load` takes as they are.
    """
    d = n_embd // n_head
    meta = tiny_metadata(architecture, n_layer, n_embd, n_head, n_head_kv, n_ff, n_ctx)
    n_vocab = len(meta["tokenizer.ggml.tokens"])
    shapes: dict[str, Any] = {"token_embd.weight": (n_vocab, n_embd)}
    block: dict[str, Any] = {
        "attn_norm": (n_embd,),
        "attn_q": (n_head * d, n_embd), "attn_k": (n_head_kv * d, n_embd), "attn_v": (n_head_kv * d, n_embd),
        "attn_output": (n_embd, n_head * d),
        "ffn_norm": (n_embd,),
    }  # fmt: skip
    ffn: dict[str, tuple[int, ...]] = {
        "ffn_gate": (n_ff, n_embd),
        "ffn_up": (n_ff, n_embd),
        "ffn_down": (n_embd, n_ff),
    }
    if n_expert:
        meta |= {f"{architecture}.expert_count": n_expert, f"{architecture}.expert_used_count": 2}
        ffn = {f"{name}_exps": (n_expert, *shape) for name, shape in ffn.items()}
        block["ffn_gate_inp"] = (n_expert, n_embd)
    for name, shape in {**block, **ffn}.items():
        shapes |= {f"blk.{i}.{name}.weight": shape for i in range(n_layer)}
    shapes |= {"output_norm.weight": (n_embd,), "output.weight": (n_vocab, n_embd)}
    for name, shape in (tensors or {}).items():
        for i in range(n_layer) if "{}" in name else (0,):
            shapes[name.replace("{}", str(i))] = shape
    for key, value in (metadata or {}).items():
        whole = key if key.startswith(("general.", "tokenizer.")) else f"{architecture}.{key}"
        meta[whole] = value
    rng = np.random.default_rng(seed)
    found = _format(fmt, registry)
    return gguf_bytes(
        {key: value for key, value in meta.items() if value is not WITHOUT},
        [(name, _tensor(name, shape, rng, found)) for name, shape in shapes.items() if shape is not WITHOUT],
    )


def _format(fmt: quants.Format | None, registry: Registry | None) -> QuantFormat | None:
    if fmt is None:
        return None
    return registry.quant_formats[fmt] if registry is not None and isinstance(fmt, str) else quants.get(fmt)


def _tensor(name: str, shape: Any, rng: np.random.Generator, fmt: QuantFormat | None) -> Any:
    if hasattr(shape, "dtype"):
        return shape
    values = rng.standard_normal(shape, np.float32)
    if len(shape) == 1:
        return values * np.float32(0.2) + np.float32(not name.endswith(".bias"))
    if name.startswith("token_embd"):
        scale = 1.0
    else:  # logits spread over several units, so that a wrong one shows
        scale = (3.0 if name.startswith("output.") else 1.0) / shape[-1] ** 0.5
    values *= np.float32(scale)
    if fmt is None or fmt.quantize is None or shape[-1] % fmt.block_size or "gate_inp" in name:
        return values
    return quants.quantize(fmt, values).tobytes(), values.shape, fmt.ggml_type

"""What a model file says about itself: reads metadata and tensor records, never a weight."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ggfw.gguf.metadata import MetadataArray
from ggfw.gguf.reader import GGUF, FileLike
from ggfw.gguf.tensors import TensorInfo
from ggfw.gguf.types import FILE_TYPES
from ggfw.records import dataclass

SHORT_CONTEXT = 4096
MAX_LAYERS = 2**16 - 1  # far above any model's; a damaged count must not cost lists of that length


@dataclass(frozen=True)
class TypeShare:
    """How much of a file one tensor type makes up."""

    n_tensors: int
    n_elements: int
    n_bytes: int


@dataclass(frozen=True)
class TensorSummary:
    """One of the biggest tensors."""

    name: str
    shape: tuple[int, ...]
    type: str
    n_bytes: int


@dataclass(frozen=True)
class KVSize:
    """Bytes of the attention cache of one sequence of ``n_ctx`` positions; windowed layers keep their window only."""

    n_ctx: int
    f32: int
    f16: int


@dataclass(frozen=True)
class Analysis:
    """Facts about a model file. A number that the file does not state is None; per-layer lists stay lists.

    Attributes:
        quantization: the mixture that ``general.file_type`` names (``Q4_K_M``), else the type of most elements.
        bits_per_weight: tensor bits per tensor element, scales included.
        n_experts / n_experts_used: 0 for dense models.
        sliding_window: positions seen by windowed layers, or None.
        sliding_window_layers: number of windowed layers, or None when the file does not say which they are.
        rope: the ``rope.*`` keys of the architecture, without the prefix.
        kv_full / kv_4k: attention cache at the trained context and at min(4096, that); None if the geometry is not in
            the file.
        types: tensor type -> share, biggest first.
        biggest: the five biggest tensors.
    """

    paths: tuple[str, ...]
    architecture: str
    name: str | None
    n_bytes: int
    n_tensors: int
    n_parameters: int
    bits_per_weight: float
    quantization: str
    n_layer: int | None
    n_embd: int | None
    n_ff: int | Sequence[int] | None
    n_head: int | Sequence[int] | None
    n_head_kv: int | Sequence[int] | None
    head_dim_k: int | None
    head_dim_v: int | None
    n_experts: int
    n_experts_used: int
    n_vocab: int | None
    n_ctx_train: int | None
    sliding_window: int | None
    sliding_window_layers: int | None
    rope: Mapping[str, Any]
    tokenizer: str | None
    pre_tokenizer: str | None
    has_chat_template: bool
    kv_full: KVSize | None
    kv_4k: KVSize | None
    types: Mapping[str, TypeShare]
    biggest: tuple[TensorSummary, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars, for JSON."""
        return asdict(self)


def analyze(model: GGUF | FileLike | Sequence[FileLike]) -> Analysis:
    """Describe a model file (or an open one, which stays open).

    Raises:
        ModelNotFound, GGUFError: see :meth:`GGUF.open`.
    """
    if isinstance(model, GGUF):
        return _analyze(model)
    with GGUF.open(model) as gguf:
        return _analyze(gguf)


def _analyze(gguf: GGUF) -> Analysis:
    tensors = list(gguf.tensors.values())
    n_parameters = sum(t.n_elements for t in tensors)
    tensor_bytes = sum(t.n_bytes for t in tensors)
    types = _types(tensors)
    n_layer = _number(gguf.arch_get("block_count"))
    n_embd = _number(gguf.arch_get("embedding_length"))
    n_head = _counts(gguf.arch_get("attention.head_count"))
    n_head_kv = _counts(gguf.arch_get("attention.head_count_kv"))
    if n_head_kv is None:
        n_head_kv = n_head
    head_dim = None
    if n_embd is not None and _largest(n_head):
        head_dim = n_embd // _largest(n_head)
    head_dim_k = _number(gguf.arch_get("attention.key_length"), head_dim)
    head_dim_v = _number(gguf.arch_get("attention.value_length"), head_dim)
    n_ctx = _number(gguf.arch_get("context_length"))
    window = _number(gguf.arch_get("attention.sliding_window")) or None
    windowed = _windowed_layers(gguf, n_layer) if window else None
    tokens = gguf.get("tokenizer.ggml.tokens")
    biggest = sorted(tensors, key=lambda t: -t.n_bytes)[:5]

    def kv(context: int | None) -> KVSize | None:
        elements = kv_elements(gguf, context) if context else None
        return None if elements is None or context is None else KVSize(context, 4 * elements, 2 * elements)

    return Analysis(
        paths=tuple(os.fspath(path) for path in gguf.paths),
        architecture=gguf.architecture,
        name=_text(gguf.get("general.name")),
        n_bytes=gguf.n_bytes,
        n_tensors=len(tensors),
        n_parameters=n_parameters,
        bits_per_weight=8 * tensor_bytes / n_parameters if n_parameters else 0.0,
        quantization=_quantization(gguf, types),
        n_layer=n_layer,
        n_embd=n_embd,
        n_ff=_counts(gguf.arch_get("feed_forward_length")),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim_k=head_dim_k,
        head_dim_v=head_dim_v,
        n_experts=_number(gguf.arch_get("expert_count"), 0) or 0,
        n_experts_used=_number(gguf.arch_get("expert_used_count"), 0) or 0,
        n_vocab=len(tokens) if isinstance(tokens, MetadataArray) else _number(gguf.arch_get("vocab_size")),
        n_ctx_train=n_ctx,
        sliding_window=window,
        sliding_window_layers=sum(windowed) if windowed is not None else None,
        rope=_rope(gguf),
        tokenizer=_text(gguf.get("tokenizer.ggml.model")),
        pre_tokenizer=_text(gguf.get("tokenizer.ggml.pre")),
        has_chat_template=bool(gguf.get("tokenizer.chat_template")),
        kv_full=kv(n_ctx),
        kv_4k=kv(min(n_ctx, SHORT_CONTEXT) if n_ctx else None),
        types=types,
        biggest=tuple(TensorSummary(t.name, t.shape, t.type_name, t.n_bytes) for t in biggest),
    )


def _types(tensors: Sequence[TensorInfo]) -> dict[str, TypeShare]:
    by_name: dict[str, list[TensorInfo]] = {}
    for t in tensors:
        by_name.setdefault(t.type_name, []).append(t)
    shares = {
        name: TypeShare(len(group), sum(t.n_elements for t in group), sum(t.n_bytes for t in group))
        for name, group in by_name.items()
    }
    return dict(sorted(shares.items(), key=lambda item: -item[1].n_bytes))


def _quantization(gguf: GGUF, types: Mapping[str, TypeShare]) -> str:
    """The name of the mixture where the file states it, else the type of most elements."""
    number = _number(gguf.get("general.file_type"))
    name = FILE_TYPES.get(number, "-") if number is not None else "-"
    if name != "-":
        return name
    return max(types, key=lambda t: types[t].n_elements, default="none")


def _rope(gguf: GGUF) -> dict[str, Any]:
    prefix = f"{gguf.architecture}.rope."
    return {
        key[len(prefix) :]: _plain(value) for key, value in gguf.metadata.items() if key.startswith(prefix)
    }


def _windowed_layers(gguf: GGUF, n_layer: int | None) -> list[bool] | None:
    """Which layers see the window only, where the file says so (an array of flags, or a period)."""
    pattern = gguf.arch_get("attention.sliding_window_pattern")
    if n_layer is None or not 0 <= n_layer <= MAX_LAYERS or pattern is None:
        return None
    if isinstance(pattern, MetadataArray):
        return [bool(v) for v in pattern] if len(pattern) == n_layer else None
    period = _number(pattern)
    # Every period-th layer sees everything, as in llama.cpp's set_swa_pattern.
    return [i % period < period - 1 for i in range(n_layer)] if period else [False] * n_layer


def kv_elements(gguf: GGUF, n_ctx: int) -> int | None:
    """Elements of the attention cache of one sequence of ``n_ctx`` positions; None if the header does not say.

    Windowed layers keep their window only, layers that read others' caches nothing, recurrent layers nothing.
    """
    n_layer, n_embd = _number(gguf.arch_get("block_count")), _number(gguf.arch_get("embedding_length"))
    n_head = _counts(gguf.arch_get("attention.head_count"))
    n_head_kv = _counts(gguf.arch_get("attention.head_count_kv"))
    n_head_kv = n_head if n_head_kv is None else n_head_kv
    head_dim = n_embd // _largest(n_head) if n_embd is not None and _largest(n_head) else None
    k = _number(gguf.arch_get("attention.key_length"), head_dim)
    v = _number(gguf.arch_get("attention.value_length"), head_dim)
    if n_layer is None or not 0 <= n_layer <= MAX_LAYERS or n_head_kv is None or k is None or v is None:
        return None
    heads = list(n_head_kv) if isinstance(n_head_kv, Sequence) else [n_head_kv] * n_layer
    if len(heads) != n_layer:
        return None
    swa_k = _number(gguf.arch_get("attention.key_length_swa"), k) or 0
    swa_v = _number(gguf.arch_get("attention.value_length_swa"), v) or 0
    if gguf.arch_get("attention.key_length_mla") is not None:
        v = 0  # latent attention: V is a view of the cached K
    window = _number(gguf.arch_get("attention.sliding_window"))
    windowed = _windowed_layers(gguf, n_layer) if window else None
    # The last layers may read others' caches; of some families all but every interval-th keep a recurrent state.
    owners = n_layer - (_number(gguf.arch_get("attention.shared_kv_layers"), 0) or 0)
    interval = _number(gguf.arch_get("full_attention_interval"))
    elements = 0
    for layer, count in enumerate(heads[:owners]):
        if interval and (layer + 1) % interval:
            continue
        local = windowed is not None and windowed[layer]
        width = swa_k + swa_v if local else k + v
        elements += (min(n_ctx, window) if local and window else n_ctx) * count * width
    return elements if elements >= 0 else None


def _number(value: Any, default: int | None = None) -> int | None:
    """A whole number from whatever type the file uses for it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return default
    return int(value)


def _counts(value: Any) -> int | list[int] | None:
    """A whole number, or one per layer; None for anything else."""
    if not isinstance(value, MetadataArray):
        return _number(value)
    numbers = [_number(v) for v in value]
    return [n for n in numbers if n is not None] if None not in numbers else None


def _plain(value: Any) -> Any:
    return value.list() if isinstance(value, MetadataArray) else value


def _largest(value: int | Sequence[int] | None) -> int:
    return max(value, default=0) if isinstance(value, Sequence) else (value or 0)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None

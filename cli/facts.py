"""What ``ggfw show`` says of a model file: facts from its header, under the names that other programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggfw.gguf import GGUF
    from ggfw.graph.cache_layout import CacheLayout
    from ggfw.support import Support

__all__ = ["facts"]

#: Contexts for which the size of the attention cache is told, besides the one the model was trained for.
_CONTEXTS = (4096, 16384, 32768)


def facts(gguf: GGUF, support: Support) -> dict[str, Any]:
    """Return the facts about an open file as plain values; what the file does not say is None.

    Args:
        gguf: the file; no weight is read.
        support: whether it runs here.
    """
    from ggfw.footprint import largest_context
    from ggfw.free_memory import available_memory
    from ggfw.gguf import analyze

    found = analyze(gguf)
    rope = found.rope
    needs = {need.kind: need for need in support.needs}
    template = needs.get("template")
    budget = available_memory()
    layout = support.layout
    fits = None if budget is None else largest_context(gguf, budget, most=found.n_ctx_train, layout=layout)
    return {
        "architecture": found.architecture,
        "name": found.name,
        "paths": list(found.paths),
        "gguf_version": gguf.version,
        "supported": support.runs,
        "reason": "; ".join(need.detail for need in support.missing) or None,
        "makes": support.makes,
        "parameters": found.n_parameters,
        "file_bytes": found.n_bytes,
        "bits_per_weight": round(found.bits_per_weight, 3),
        "quantization": found.quantization,
        "layers": found.n_layer,
        "embedding": found.n_embd,
        "ffn": found.n_ff,
        "heads": found.n_head,
        "heads_kv": found.n_head_kv,
        "head_dim": found.head_dim_k,
        "head_dim_v": found.head_dim_v,
        "experts": found.n_experts,
        "experts_used": found.n_experts_used,
        "vocab": found.n_vocab,
        "context": found.n_ctx_train,
        "window": found.sliding_window,
        "window_layers": found.sliding_window_layers if layout is None else _window_layers(layout),
        "rope": {
            "base": rope.get("freq_base"),
            "scaling": rope.get("scaling.type"),
            "factor": rope.get("scaling.factor", rope.get("scale_linear")),
        },
        "tokenizer": {
            "model": found.tokenizer,
            "pre": found.pre_tokenizer,
            "bos": gguf.get("tokenizer.ggml.bos_token_id"),
            "eos": gguf.get("tokenizer.ggml.eos_token_id"),
            "add_bos": gguf.get("tokenizer.ggml.add_bos_token"),
        },
        "template": {
            "present": found.has_chat_template,
            "dialect": template.detail.removeprefix("dialect ")
            if template and template.detail.startswith("dialect ")
            else None,
        },
        "formats": [
            {
                "type": name,
                "tensors": share.n_tensors,
                "bytes": share.n_bytes,
                "parameters": share.n_elements,
            }
            for name, share in found.types.items()
        ],
        "largest": [
            {"name": t.name, "shape": list(t.shape), "type": t.type, "bytes": t.n_bytes}
            for t in found.biggest
        ],
        "tensors": found.n_tensors,
        "kv_bytes": _kv_bytes(gguf, found.n_ctx_train, layout),
        "fits_here": None if budget is None else (f"yes, up to {_short(fits)}" if fits else "no"),
        "fits_context": fits,
        "sampling": _sampling(gguf),
    }


def _window_layers(layout: CacheLayout) -> int | None:
    """How many layers see a window only; None where none does."""
    return sum(len(pool.layers) for pool in layout.pools if pool.window) or None


def _kv_bytes(
    gguf: GGUF, trained: int | None, layout: CacheLayout | None
) -> dict[str, dict[str, int]] | None:
    """Context -> cache type -> bytes of one sequence."""
    from ggfw.footprint import KV_BYTES, kv_bytes

    contexts = sorted(
        {n for n in _CONTEXTS if trained is None or n < trained} | ({trained} if trained else set())
    )
    table = {str(n): {kind: kv_bytes(gguf, n, kind, layout) for kind in KV_BYTES} for n in contexts}
    if any(size is None for row in table.values() for size in row.values()):
        return None
    return table  # type: ignore[return-value]  # no None is left


def _sampling(gguf: GGUF) -> dict[str, Any]:
    """What the file recommends for sampling."""
    prefix = "general.sampling."
    return {key.removeprefix(prefix): value for key, value in gguf.metadata.items() if key.startswith(prefix)}


def _short(n: int | None) -> str:
    """A number of positions for people: 16k."""
    return "any context" if n is None else f"{n // 1024}k" if n >= 1024 else str(n)

"""Whole models with lying metadata and damaged weights: loaded, run for a few tokens, closed."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import ggfw
from fuzz.choices import Choices, spoiled
from fuzz.target import Target
from ggfw.gguf import GGUF, write_gguf
from ggfw.gguf.values import F32, U32

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import tiny_models


def _numbers(c: Choices, value: Any) -> Any:
    """Another value for a key, near the right one or far from it."""
    kind = c.below(8)
    if kind == 0:
        return U32(c.edge() % 2**32)
    if kind == 1:
        return F32(c.pick((0.0, -1.0, float("nan"), float("inf"), 1e30, 1e-30)))
    if kind == 2:
        return c.text(10).encode("utf-8", "replace").decode()
    if kind == 3:
        return [c.edge() % 2**31 for _ in range(c.below(5) + 1)]
    if kind == 4:
        return c.chance(50)
    if isinstance(value, int) and not isinstance(value, bool):
        return max(0, value + c.between(-3, 3)) if kind < 7 else max(1, value * c.between(2, 9))
    return U32(c.below(70))


def target() -> Target:
    """See the module. Half of the inputs change metadata and shapes, half change bytes of a good file."""
    folder = Path(tempfile.mkdtemp(prefix="ggfw-fuzz-"))
    good = tiny_models.write_llama(folder / "good.gguf", n_layer=1, n_ctx=64)
    raw = good.read_bytes()
    with GGUF.open(good) as gguf:
        meta = {key: _plain(gguf.metadata[key]) for key in gguf.metadata}
        tensors = [
            (t.name, np.frombuffer(t.data, np.float32).reshape(t.shape).copy()) for t in gguf.tensors.values()
        ]
    header = raw.find(b"token_embd.weight")
    names = sorted(k for k in meta if k.startswith(("llama.", "tokenizer.ggml.")))

    def file(c: Choices) -> bytes:
        if c.chance(30):
            head = spoiled(c, raw[header - 8 : header + 1600], 4)
            return raw[: header - 8] + head + raw[header + 1600 :]
        changed, weights = dict(meta), list(tensors)
        if c.chance(30):
            changed["general.architecture"] = name = c.pick(architectures)
            changed |= {
                k.replace("llama.", f"{name}.", 1): v for k, v in meta.items() if k.startswith("llama.")
            }
        for _ in range(c.below(4)):
            key = c.pick(names)
            changed[key] = _numbers(c, meta[key])
        if c.chance(20):
            changed["llama." + c.pick(extra)] = _numbers(c, 4)
        for _ in range(c.below(3)):
            at = c.below(len(weights))
            name, array = weights[at]
            kind = c.below(5)
            if kind == 0:
                del weights[at]
            elif kind == 1:
                weights[at] = (name, array[..., : c.between(1, array.shape[-1])].copy())
            elif kind == 2:
                weights[at] = (name, array[: c.between(1, len(array))].copy())
            elif kind == 3:
                weights[at] = (name, np.full_like(array, c.pick((np.nan, np.inf, 0.0, 3e38))))
            else:
                weights[at] = (name, array.reshape(-1, 1) if c.chance(50) else array.reshape(1, *array.shape))
        path = folder / "bad.gguf"
        write_gguf(path, changed, weights)
        return path.read_bytes()

    from ggfw.registry import default_registry

    architectures = sorted({n for a in default_registry().architectures.values() for n in a.gguf_names})
    extra = (
        "rope.scaling.type", "rope.scaling.factor", "rope.freq_base", "attention.sliding_window", "expert_count",
        "expert_used_count", "attention.key_length", "attention.value_length", "vocab_size", "logit_scale",
        "attention.head_count_kv", "rope.scaling.original_context_length", "pooling_type", "attention.causal",
    )  # fmt: skip

    def run(data: bytes) -> None:
        c = Choices(data)
        backend = c.pick((None, None, "reference"))
        with ggfw.load(file(c), threads=1, ctx=c.pick((32, 16, 64)), backend=backend) as model:
            model.generate("hello", max_tokens=3, temperature=0)

    rng = random.Random(5)
    seeds = [bytes([0, 0, 255] + [0] * 60), *(rng.randbytes(80) for _ in range(20))]
    return Target(run, seeds, (ggfw.GgfwError,), seconds=10)


def _plain(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value.list() if hasattr(value, "list") else value

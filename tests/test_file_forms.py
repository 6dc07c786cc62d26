"""The same model written in another form gives the same logits: fused or single matrices, equal experts."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests_support import check_logits

import ggfw
from ggfw.gguf import GGUF, write_gguf

DATA = Path(__file__).parent / "data"

Arrays = dict[str, np.ndarray]


def rewritten(
    name: str, change: Callable[[Arrays, str], None], architecture: str | None = None, **keys: Any
) -> bytes:
    """A F32 model of tests/data whose tensors went through ``change(tensors, "blk.i.")`` for each layer.

    Args:
        architecture: another ``general.architecture``; the file's keys get its prefix.
        keys: metadata of the architecture to add.
    """
    with GGUF.open(DATA / "models" / f"{name}.gguf") as gguf:
        old, new = gguf.architecture, architecture or gguf.architecture
        prefix = f"{old}."
        meta = {new + k[len(old) :] if k.startswith(prefix) else k: v for k, v in gguf.metadata.items()}
        meta |= {"general.architecture": new} | {f"{new}.{k}": v for k, v in keys.items()}
        tensors = {n: t.data.view(np.float32).reshape(t.shape).copy() for n, t in gguf.tensors.items()}
        for i in range(int(gguf.metadata[f"{old}.block_count"])):
            change(tensors, f"blk.{i}.")
        out = io.BytesIO()
        write_gguf(out, meta, tensors.items())
        return out.getvalue()


def judge(name: str, data: bytes, executor: str) -> None:
    fx = check_logits().load(name, root=str(DATA))
    backend = None if executor == "native" else executor
    with ggfw.load(data, ctx=256, threads=2, backend=backend) as model:
        report = check_logits().compare(fx, {p: model.logits(ids, chunk=7) for p, ids in fx.prompts.items()})
    assert report["ok"], report


def fuse_qkv(tensors: Arrays, b: str) -> None:
    """attn_q, attn_k, attn_v -> attn_qkv; their biases, if any, stay apart."""
    if f"{b}attn_v.weight" in tensors:
        tensors[f"{b}attn_qkv.weight"] = np.concatenate([tensors.pop(f"{b}attn_{x}.weight") for x in "qkv"])


def fuse_qkv_with_biases(tensors: Arrays, b: str) -> None:
    fuse_qkv(tensors, b)
    tensors[f"{b}attn_qkv.bias"] = np.concatenate([tensors.pop(f"{b}attn_{x}.bias") for x in "qkv"])


def split_experts(tensors: Arrays, b: str) -> None:
    """ffn_gate_up_exps -> ffn_gate_exps, ffn_up_exps."""
    both = tensors.pop(f"{b}ffn_gate_up_exps.weight")
    half = both.shape[1] // 2
    tensors[f"{b}ffn_gate_exps.weight"], tensors[f"{b}ffn_up_exps.weight"] = both[:, :half], both[:, half:]


def fuse_experts(tensors: Arrays, b: str) -> None:
    parts = [tensors.pop(f"{b}ffn_{x}_exps.weight") for x in ("gate", "up")]
    tensors[f"{b}ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)


@pytest.mark.parametrize("executor", ["reference", "native"])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("qwen3", fuse_qkv),
        ("qwen2", fuse_qkv),
        ("qwen2", fuse_qkv_with_biases),
        ("gemma4-e2b", fuse_qkv),
        ("gemma4", fuse_qkv),
        ("gemma4-moe", split_experts),
        ("qwen3moe", fuse_experts),
        ("mixtral", fuse_experts),
    ],
)
def test_fused_and_single_matrices_are_the_same_model(
    name: str, change: Callable[..., None], executor: str
) -> None:
    judge(name, rewritten(name, change), executor)


@pytest.mark.parametrize("executor", ["reference", "native"])
@pytest.mark.parametrize("shared", [False, True])
def test_equal_experts_are_a_dense_granite(executor: str, shared: bool) -> None:
    """Four copies of the FFN whose weights add up to 1; with a shared expert both halve their results."""
    rng = np.random.default_rng(2)

    def change(tensors: Arrays, b: str) -> None:
        for part in ("gate", "up", "down"):
            matrix = tensors.pop(f"{b}ffn_{part}.weight")
            if shared:
                matrix = matrix / 2 if part == "down" else matrix
                tensors[f"{b}ffn_{part}_shexp.weight"] = matrix
            tensors[f"{b}ffn_{part}_exps.weight"] = np.stack([matrix] * 4)
        n_embd = tensors[f"{b}ffn_norm.weight"].size
        tensors[f"{b}ffn_gate_inp.weight"] = rng.standard_normal((4, n_embd)).astype(np.float32)

    data = rewritten("granite", change, "granitemoe", expert_count=4, expert_used_count=2)
    judge("granite", data, executor)


@pytest.mark.parametrize("executor", ["reference", "native"])
def test_windows_as_flags_or_as_a_period(executor: str) -> None:
    """gemma2 without the key alternates; the same as flags, and with all layers full it differs."""

    def nothing(tensors: Arrays, b: str) -> None:
        pass

    judge(
        "gemma2",
        rewritten("gemma2", nothing, **{"attention.sliding_window_pattern": [True, False] * 2}),
        executor,
    )
    judge("gemma2", rewritten("gemma2", nothing, **{"attention.sliding_window_pattern": 2}), executor)
    with pytest.raises(AssertionError):
        judge("gemma2", rewritten("gemma2", nothing, **{"attention.sliding_window_pattern": 1}), executor)

"""``verify`` and ``trace`` over every reference model: each native step is within its bound, a wrong one is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ggfw.errors import ContextLengthExceeded, InvalidRequest
from ggfw.execute import reference_ops
from ggfw.verify import trace, verify

DATA = Path(__file__).parent / "data"
MODELS = sorted([*(DATA / "models").glob("*.gguf"), *(DATA / "quants").glob("*.gguf")])


def prompt(path: Path) -> list[int]:
    ids: list[int] = json.loads(path.with_suffix(".json").read_text())["prompts"]["p12"]
    return ids


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_every_step_is_within_its_bound(path: Path) -> None:
    found = verify(path, prompt(path), threads=2)
    assert found.steps and found.first_bad is None, found.first_bad
    assert found.free_run is not None and np.isfinite(found.free_run.max_abs)
    assert (found.free_run.mean_kl is None) == (path.stem == "bert")


@pytest.mark.parametrize("kv_type", ["f16", "bf16"])
def test_rounded_caches_have_bounds_of_their_own(kv_type: str) -> None:
    for name in ("llama", "deepseek2", "gemma3", "bert"):
        path = DATA / "models" / f"{name}.gguf"
        assert verify(path, prompt(path), kv_type=kv_type, threads=2).ok


@pytest.mark.parametrize(
    ("name", "op", "step"),
    [("gemma3", "gelu", "elementwise"), ("bert", "pool", "pool"), ("deepseek2", "linear_heads", "attn_k_b"),
     ("mixtral", "moe_sum", "moe_sum"), ("nemotron_h", "short_conv", "short_conv")],
)  # fmt: skip
def test_the_first_wrong_step_is_named(
    name: str, op: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference of one op is made to say something a little else: what stands before it stays right."""
    path = DATA / "models" / f"{name}.gguf"
    right = reference_ops.REFERENCE[op]
    monkeypatch.setitem(reference_ops.REFERENCE, op, lambda *args: right(*args) * np.float32(1.001))
    found = verify(path, prompt(path), threads=1)
    assert not found.ok and found.first_bad is not None
    assert step in found.first_bad.step and 1e-4 < found.first_bad.error < 2e-3


def test_wrong_experts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Int8 experts are compared with the exact product of the same int8 rows, so small errors show."""
    path = DATA / "quants" / "q-mixtral-small-Q8_0.gguf"
    right = reference_ops.REFERENCE["moe_linear"]
    monkeypatch.setitem(reference_ops.REFERENCE, "moe_linear", lambda *args: right(*args) * np.float32(1.001))
    found = verify(path, prompt(path), threads=1)
    assert found.first_bad is not None and "exps" in found.first_bad.step


@pytest.mark.parametrize("backend", [None, "reference"])
def test_traces_of_embedding_models_have_one_pooled_row(backend: str | None) -> None:
    path = DATA / "models" / "bert.gguf"
    arrays = trace(path, prompt(path), backend=backend)
    pooled = [array for array in arrays.values() if len(array) == 1]
    assert len(pooled) == 1 and pooled[0].shape == (1, 64)
    reference = np.load(path.with_suffix(".npz"))["pooled_mean/p12"]
    np.testing.assert_allclose(pooled[0][0], reference, atol=1e-5)


def test_prompts_that_cannot_be_evaluated_are_refused() -> None:
    path = DATA / "models" / "bert.gguf"
    with pytest.raises(InvalidRequest, match="no token ids"):
        verify(path, [])
    with pytest.raises(ContextLengthExceeded):
        verify(path, [5] * 129)

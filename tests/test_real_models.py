"""Two real models: how far the quantised, native logits are from the float32 reference's, and its greedy answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggfw

REAL = Path(__file__).parent / "data" / "real"

#: A step whose two best logits are closer than this may go the other way.
SMALL_MARGIN = 0.05

pytestmark = pytest.mark.slow


@pytest.fixture(params=["smollm2", "gemma3"])
def real(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Any], dict[str, np.ndarray]]:
    path = request.getfixturevalue(f"{request.param}_path")
    said = json.loads((REAL / f"{request.param}.json").read_text(encoding="utf-8"))
    return path, said, dict(np.load(REAL / f"{request.param}.npz"))


def coarse_kl(logits: np.ndarray, ids: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """KL of the split (the reference's 64 best, and the rest), per position, nats."""
    x = logits.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    q = x - np.log(np.exp(x).sum(-1, keepdims=True))
    q64 = np.take_along_axis(q, ids, axis=1)
    p64 = reference.astype(np.float64)
    p_rest = np.maximum(1 - np.exp(p64).sum(-1), 1e-12)
    q_rest = np.maximum(1 - np.exp(q64).sum(-1), 1e-12)
    return (np.exp(p64) * (p64 - q64)).sum(-1) + p_rest * np.log(p_rest / q_rest)


def test_mean_coarse_kl_is_no_worse_than_llama_cpp(real: Any) -> None:
    path, said, arrays = real
    with ggfw.load(path, ctx=2048) as model:
        begin, found = 0, []
        for length in arrays["chunk_lengths"]:
            rows = slice(begin, begin + int(length))
            logits = model.logits([int(i) for i in arrays["tokens"][rows]])
            ids, reference = arrays["top64_ids"][rows], arrays["top64_logprobs"][rows]
            parts = [
                slice(i, i + 64) for i in range(0, len(logits), 64)
            ]  # float64 copies of 262k columns are large
            found.append(np.concatenate([coarse_kl(logits[p], ids[p], reference[p]) for p in parts])[:-1])
            begin = rows.stop
    mean = float(np.concatenate(found).mean())
    theirs = said["text"]["llama_cpp_on_quantised"]["default"]["mean_coarse_kl"]
    print(f"mean_coarse_kl {mean:.3g}, llama.cpp {theirs:.3g}, ratio {mean / theirs:.3g}")
    assert mean <= 2e-6  # measured: 5e-7; int8 activations give 1e-3, llama.cpp 2e-3 to 4e-3
    assert mean <= 1.05 * theirs


def test_int8_activations_are_no_worse_than_llama_cpp(real: Any) -> None:
    path, said, arrays = real
    length = int(arrays["chunk_lengths"][0])
    with ggfw.load(path, ctx=2048, activations="int8") as model:
        logits = model.logits([int(i) for i in arrays["tokens"][:length]])
    parts = [slice(i, i + 64) for i in range(0, length, 64)]
    kl = [coarse_kl(logits[p], arrays["top64_ids"][p], arrays["top64_logprobs"][p]) for p in parts]
    mean = float(np.concatenate(kl)[:-1].mean())
    assert 1e-4 < mean <= 1.05 * said["text"]["llama_cpp_on_quantised"]["default"]["mean_coarse_kl"]


def test_reference_backend_gives_the_greedy_answers(real: Any) -> None:
    path, said, _ = real
    with ggfw.load(path, ctx=256, backend="reference") as model:
        for prompt in said["prompts"]:
            got = model.greedy(prompt["ids"], 16)
            for ours, theirs, margin in zip(got, prompt["tokens"], prompt["margin"], strict=False):
                if ours != theirs:
                    assert margin < SMALL_MARGIN, (prompt["text"], ours, theirs)
                    break


def follows(got: list[int], prompt: dict[str, Any]) -> None:
    """Check a greedy answer against a recorded one, up to a step whose two best logits nearly tie."""
    assert got
    for step, (ours, theirs, margin) in enumerate(zip(got, prompt["tokens"], prompt["margin"], strict=False)):
        if ours != theirs:
            assert margin < SMALL_MARGIN, (prompt["text"], step, ours, theirs, margin)
            break


def test_chat_answers_begin_as_the_reference_says(smollm2_path: Path) -> None:
    """Twenty prompts through the chat template, `make run`'s own among them: 16 tokens each."""
    said = json.loads((REAL / "smollm2-chat.json").read_text(encoding="utf-8"))["prompts"]
    script = (Path(__file__).parents[1] / ".ci" / "verb.sh").read_text(encoding="utf-8")
    assert script.split("prompt=${MAKE_PROMPT:-", 1)[1].split("}", 1)[0] in [
        prompt["text"] for prompt in said
    ]
    with ggfw.load(smollm2_path, ctx=512) as model:
        for prompt in said:
            assert list(model.chat_request([ggfw.user(prompt["text"])]).prompt) == prompt["ids"]
            follows(list(model.greedy(prompt["ids"], 16)), prompt)


def test_chat_answers_are_the_references(smollm2_path: Path) -> None:
    """What is recorded is what the reference backend says."""
    said = json.loads((REAL / "smollm2-chat.json").read_text(encoding="utf-8"))["prompts"]
    with ggfw.load(smollm2_path, ctx=512, backend="reference") as model:
        for prompt in said[:3]:
            assert list(model.greedy(prompt["ids"], 16)) == prompt["tokens"]


def test_native_greedy_answers_follow_the_reference(smollm2_path: Path) -> None:
    """Recorded answers of the float32 reference: 16 tokens, up to a step with a small margin."""
    said = json.loads((REAL / "smollm2.json").read_text(encoding="utf-8"))
    with ggfw.load(smollm2_path, ctx=512) as model:
        for prompt in said["prompts"]:
            follows(list(model.greedy(prompt["ids"], 16)), prompt)

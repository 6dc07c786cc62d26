"""Figures of real models: what sampling and constraints cost, and speculation that changes nothing."""

from __future__ import annotations

import random
import runpy
from pathlib import Path
from typing import Any

import pytest

import ggfw

BENCH = Path(__file__).parent.parent / "bench"

pytestmark = pytest.mark.slow


def test_sampling_is_a_small_part_of_a_step(gemma3_path: Path) -> None:
    """262,144 logits, top-k 64, penalties: 0.05 ms a token, and a twentieth of a step of 16 sequences."""
    dice = random.Random(1)
    options: dict[str, Any] = {"top_k": 64, "penalty_repeat": 1.1, "penalty_freq": 0.1, "temperature": 0.8}
    with ggfw.load(gemma3_path, ctx=256, n_parallel=16, spec="off") as model:
        assert model.loaded.n_vocab == 262_144
        executor = model.loaded.executor
        each, shares = [], []
        for seed in range(6):
            executor.profile(True)
            prompts = [[2, *(dice.randrange(1000, 200_000) for _ in range(20))] for _ in range(16)]
            handles = [
                model.submit(model.request(p, max_tokens=24, ignore_eos=True, seed=seed, **options))
                for p in prompts
            ]
            n = sum(len(handle.result(600).token_ids) for handle in handles)
            times = executor.timings()
            sampling = sum(ns for name, ns in times if name.startswith("sample"))
            each.append(sampling * 1e-6 / n)
            shares.append(sampling / sum(ns for _, ns in times))
    print(f"sampling: {min(each):.4f} ms a token, {100 * min(shares):.2f} % of a step")
    assert 0 < min(each) < 0.05 and min(shares) < 0.05


@pytest.mark.parametrize("parallel, most", [(1, 1.15), (16, 1.05)])
def test_what_a_schema_costs(smollm2_path: Path, parallel: int, most: float) -> None:
    measure = runpy.run_path(str(BENCH / "constrained.py"))["measure"]
    with ggfw.load(smollm2_path, ctx=1024, n_parallel=parallel) as model:
        found = measure(model, parallel, 8)
    print(found)
    assert found["ratio"] <= most, found


@pytest.mark.parametrize("which", ["smollm2_path", "gemma3_path"])
def test_greedy_tokens_are_those_without_speculation(which: str, request: pytest.FixtureRequest) -> None:
    """With one arithmetic for all rows, on texts that invite guesses and on one that does not."""
    text = (Path(__file__).parent.parent / "core/engine.py").read_text()[1000:2200]
    asks = [
        f"Copy this text and put 'very' in front of the word 'request':\n{text}\nHere it is:\n{text[:300]}",
        "The three primary colours are red, yellow and blue. " * 8,
        "Write a story about a lighthouse.",
    ]
    path = request.getfixturevalue(which)
    answers, accepted = [], 0
    for spec in ("off", "ngram"):
        with ggfw.load(path, ctx=1024, n_parallel=3, deterministic=True, spec=spec) as model:
            handles = [
                model.submit(model.request(ask, temperature=0, max_tokens=120, ignore_eos=True))
                for ask in asks
            ]
            answers.append([handle.result(600).token_ids for handle in handles])
            answers[-1] += [model.generate(ask, temperature=0, max_tokens=120).token_ids for ask in asks]
            accepted = model.engine.metrics().drafts_accepted
    assert accepted > 20
    assert answers[0] == answers[1]

"""Drafts are verified in one step: what comes out, and what stays behind, is what single rows would have given."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggfw.execute.batch import Batch, Segment
from ggfw.model import LoadedModel
from ggfw.sampling import Params, SamplerSetup

DATA = Path(__file__).parent / "data/models"
#: With windows, shared layers, experts, latent attention.
NAMES = ("llama", "gemma3", "gemma4-e2b", "gpt-oss-f32", "deepseek2")
#: With recurrent states of each kind.
HYBRIDS = ("qwen35", "qwen3next", "nemotron_h", "mamba2", "falcon-h1", "granitehybrid")
PROMPT = [3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41]
MOST_DRAFTS = 8
N_NEW = 90  # across pages and windows


@pytest.fixture(scope="module", params=[*NAMES, *HYBRIDS])
def model(request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    loaded = LoadedModel.load(
        DATA / f"{request.param}.gguf", threads=1, ctx=256, n_parallel=2, n_state_ring=MOST_DRAFTS + 2
    )
    yield loaded
    loaded.close()


def alone(model: LoadedModel, params: Params) -> tuple[list[int], list[np.ndarray]]:
    """Tokens and logits rows, one row at a time."""
    sequence = model.cache.sequence()
    sampler = model.executor.new_sampler(SamplerSetup(params), PROMPT)
    segment = Segment(sequence, PROMPT, prompt=True, sampler=sampler)
    tokens, rows = [], []
    for _ in range(N_NEW):
        out = model.executor.step(Batch([segment]))
        assert out.logits is not None and out.sampled[0] is not None
        tokens.append(out.sampled[0])
        rows.append(out.logits[-1].copy())
        segment = Segment(sequence, [tokens[-1]], sampler=sampler)
    sequence.close()
    return tokens, rows


def guesses(wanted: list[int], n: int, dice: random.Random, n_vocab: int) -> list[int]:
    """``n`` drafts of which a random share is right."""
    share = dice.choice([0.0, 0.7, 1.0])
    return [t if dice.random() < share else dice.randrange(n_vocab) for t in wanted[:n]]


@pytest.mark.parametrize(
    "params",
    [Params(temperature=0), Params(temperature=1.3, top_k=0, seed=5, penalty_repeat=1.3, penalty_last_n=20)],
    ids=["greedy", "sampled"],
)
@pytest.mark.parametrize("host", [False, True], ids=["free", "host"])
def test_drafts_change_nothing(model: LoadedModel, params: Params, host: bool) -> None:
    tokens, rows = alone(model, params)
    dice = random.Random(1)
    sequence = model.cache.sequence()
    sampler: Any = None if host else model.executor.new_sampler(SamplerSetup(params), PROMPT)
    chain = SamplerSetup(params).sampler()
    chain.seed(PROMPT)
    # Another sequence in the same steps, so that rows do not stand where they stood alone.
    other = model.cache.sequence()
    model.executor.step(Batch([Segment(other, [9, 8, 7], prompt=True)]))
    segment = Segment(sequence, PROMPT, prompt=True, sampler=sampler)
    got: list[int] = []
    n_kept = 0
    while len(got) < N_NEW:
        company = [Segment(other, [len(got) % 50])] if dice.random() < 0.5 and other.n_positions < 200 else []
        out = model.executor.step(Batch([*company, segment]))
        assert out.logits is not None
        own = out.logits[len(company) :]
        if host:
            drawn: list[int] = []
            for i in range(segment.n_draft + 1):
                drawn.append(chain.pick(own[i]))
                chain.accept(drawn[-1])
                if i < segment.n_draft and drawn[-1] != segment.tokens[1 + i]:
                    break
        else:
            first = out.sampled[len(company)]
            assert first is not None
            drawn = [first, *out.followers.get(len(company), [])]
        if len(drawn) > 1:
            sequence.advance(len(drawn) - 1, len(drawn) - 1)
        for i in range(len(drawn)):
            assert (own[i] == rows[len(got) + i]).all(), (len(got), i)
        got += drawn
        n_kept += len(drawn) - 1
        assert sequence.n_positions == len(PROMPT) + len(got) - 1
        n = min(dice.randrange(0, MOST_DRAFTS + 1), N_NEW - len(got) - 1)
        drafts = guesses(tokens[len(got) :], n, dice, model.n_vocab) if n > 0 else []
        segment = Segment(
            sequence, [got[-1], *drafts], n_outputs=len(drafts) + 1, sampler=sampler, n_draft=len(drafts)
        )
    assert got == tokens
    assert n_kept > N_NEW / 4
    sequence.close()
    other.close()
    assert model.cache.n_pages_used() == 0

"""The profile ``gopherllm`` against a slow twin of what is known of it."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import pytest
from fake_model import FakeTokenizer

from ggfw.registry import default_registry
from ggfw.sampling import Params, Sampler, SamplerFactory
from ggfw.sampling.profiles import profile

f32 = np.float32
MASK = (1 << 64) - 1


class Twin:
    """penalty per occurrence -> greedy? -> top-k -> softmax with temperature -> min-p -> top-p -> draw"""

    def __init__(self, p: Params) -> None:
        self.p = p
        self.state = (p.seed & MASK) or 0xDEADBEEFCAFE1337
        self.window: list[int] = []

    def seed(self, ids) -> None:
        self.window = list(ids)

    def accept(self, token: int) -> None:
        self.window = [*self.window, token][-64:]

    def random(self) -> np.float32:
        self.state = (self.state ^ self.state << 13) & MASK
        self.state ^= self.state >> 7
        self.state = (self.state ^ self.state << 17) & MASK
        return f32(self.state >> 40) / f32(2**24)

    def pick(self, row) -> int:
        p, logits = self.p, [float(x) if x == x else -math.inf for x in row]
        repeat = f32(p.penalty_repeat)
        for token in self.window:
            x = f32(logits[token])
            logits[token] = float(x / repeat if x > 0 else x * repeat)
        best = sorted((i for i in range(len(logits)) if logits[i] > -math.inf), key=lambda i: (-logits[i], i))
        if p.temperature < 1e-6 or p.top_k == 1:
            return best[0]
        best = best[: p.top_k] if p.top_k > 0 else best
        scaled = [f32(logits[i]) / f32(p.temperature) for i in best]
        shares = [math.exp(float(x - scaled[0])) for x in scaled]
        if p.top_k == 0:
            shares = [s for s in shares if s >= 1e-5]
        q = [f32(s / sum(shares)) for s in shares]
        q = [x for i, x in enumerate(q) if i == 0 or x >= f32(p.min_p) * q[0]]
        n = next((i + 1 for i, c in enumerate(accumulate(q)) if c > f32(p.top_p)), len(q))
        if n == 1:
            return best[0]
        cumulated = list(accumulate(f32(s) for s in shares[:n]))
        r = self.random() * cumulated[-1]
        return next((best[i] for i, c in enumerate(cumulated) if r < c), best[n - 1])


def sampler(p: Params) -> Sampler:
    return SamplerFactory(FakeTokenizer(), lambda: default_registry().sampler_stages).setup(p).sampler()


@pytest.mark.parametrize("part", range(8))
def test_equals_its_twin(part: int) -> None:
    rng = np.random.default_rng(part)
    base = profile("gopherllm", default_registry().sampler_stages)
    n_drawn = 0
    for _ in range(30):
        n = int(rng.choice([5, 60, 300]))
        p = Params(
            samplers=base.samplers,
            temperature=float(rng.choice([0.0, 1e-7, 0.7, 1.0, 3.0])),
            top_k=int(rng.choice([0, 1, 5, 40])),
            top_p=float(rng.choice([0.3, 0.9, 1.0])),
            min_p=float(rng.choice([0.0, 0.05, 0.5])),
            penalty_repeat=float(rng.choice([1.0, 1.1, 2.0, 0.8])),
            seed=int(rng.choice([0, 1, 2**63, -5])),
        )
        ours, twin = sampler(p), Twin(p)
        prompt = rng.integers(n, size=int(rng.integers(0, 150))).tolist()
        ours.seed(prompt)
        twin.seed(prompt)
        for i in range(25):
            row = (rng.standard_normal(n) * rng.choice([0.5, 4])).astype(f32)
            if rng.random() < 0.1:
                row[rng.integers(n)] = math.nan
            state = twin.state
            token = ours.pick(row)
            assert token == twin.pick(row), p
            n_drawn += twin.state != state
            ours.accept(token)
            twin.accept(token)
            if i == 12:
                ours = ours.copy()
    assert n_drawn > 100


def test_its_random_numbers() -> None:
    from importlib import import_module

    made = import_module("ggfw.plugins.sampler_stages.gopherllm_stages").XorShift64(1)
    # 1 ^ 1<<13, then ^ >>7, then ^ <<17, by hand
    assert made.next_u64() == 0x40822041
    zero = type(made)(0)
    assert zero.state == 0xDEADBEEFCAFE1337 and 0 <= zero.float32() < 1


def test_the_penalty_compounds_and_its_window_shrinks() -> None:
    p = Params(samplers=("gopherllm_repeat", "gopherllm"), penalty_repeat=2.0, temperature=0)
    made = sampler(p)
    made.seed([0, 0, 0] + [1] * 70)
    row = np.asarray([8, 3, 0.9], f32)
    assert made._edited_row(row).tolist() == [1.0, float(f32(3 / 2**70)), f32(0.9)]
    assert made.pick(row) == 0
    made.accept(2)
    assert made._edited_row(row)[0] == 8  # only the last 64 count now

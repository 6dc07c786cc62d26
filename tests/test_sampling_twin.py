"""The sampler against a slow twin: no shortcut, a full sort, penalties over the whole vocabulary, plain loops."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import pytest

from ggfw.sampling import Params, Pcg, Sampler

f32 = np.float32


class Twin:
    """The chain as it is described, one step after the other."""

    def __init__(self, params: Params) -> None:
        self.p = params
        self.rng = Pcg.from_seed(params.seed)
        self.history: list[int] = []

    def edited(self, row):
        p, logits = self.p, np.array(row, dtype=f32)
        logits[np.isnan(logits)] = -np.inf
        for token, bias in p.logit_bias.items():
            if token < logits.size:
                logits[token] += f32(bias)
        window = self.history if p.penalty_last_n < 0 else self.history[-p.penalty_last_n :]
        if p.penalty_last_n != 0:
            n = np.bincount(window, minlength=logits.size).astype(f32)[: logits.size]
            repeat = f32(p.penalty_repeat)
            penalised = np.where(logits > 0, logits / repeat, logits * repeat)
            penalised = penalised - (n * f32(p.penalty_freq) + f32(p.penalty_present))
            logits = np.where(n > 0, penalised, logits)
        logits[np.isnan(logits)] = -np.inf
        return logits

    def softmax(self, logits):
        terms = [math.exp(float(x - logits[0])) for x in logits]
        total = 0.0
        for t in terms:
            total += t
        return [t / total for t in terms]

    def survivors(self, logits):
        values = logits.tolist()
        ids = sorted((i for i, x in enumerate(values) if x > -math.inf), key=lambda i: (-values[i], i))
        p = self.p
        if p.temperature <= 0:
            return ids[:1], None
        if p.top_k > 0:
            ids = ids[: p.top_k]
        if p.typical_p < 1 and len(ids) > 1:
            probs = self.softmax(logits[ids])
            surprise = [-math.log(q) if q > 0 else math.inf for q in probs]
            entropy = sum(q * s for q, s in zip(probs, surprise, strict=True) if q > 0)
            order = sorted(range(len(ids)), key=lambda i: (round(abs(surprise[i] - entropy), 9), i))
            kept, cumulated = [], f32(0)
            for i in order:
                kept.append(i)
                cumulated = cumulated + f32(probs[i])
                if cumulated > f32(p.typical_p):
                    break
            ids = [ids[i] for i in sorted(kept)]
        if p.top_p < 1 and len(ids) > 1:
            for i, cumulated in enumerate(accumulate(map(f32, self.softmax(logits[ids])))):
                if cumulated >= f32(p.top_p):
                    ids = ids[: i + 1]
                    break
        if p.min_p > 0:
            lowest = logits[ids[0]] + f32(math.log(f32(p.min_p)))
            ids = [i for i in ids if i == ids[0] or logits[i] >= lowest]
        if len(ids) == 1:
            return ids, None
        return ids, self.softmax(logits[ids] / f32(p.temperature))

    def draw(self, logits):
        ids, probs = self.survivors(logits)
        if probs is None:
            return ids[0]
        r = f32(self.rng.float64())
        for i, cumulated in zip(ids, accumulate(map(f32, probs)), strict=True):
            if r < cumulated:
                return i
        return ids[-1]

    def pick(self, row, allowed=None):
        logits = self.edited(row)
        token = self.draw(logits)
        if allowed is None or allowed[token] or not allowed.any():
            return token
        masked = np.where(allowed[: logits.size], logits, f32(-np.inf))
        return self.draw(masked) if masked.max() > -np.inf else token


class Mask:
    """A constraint by a table of allowed ids; counts what it is asked."""

    def __init__(self, allowed, lead) -> None:
        self.allowed, self.lead = allowed, lead
        self.n_asked, self.n_accepted = 0, 0

    def allows(self, token):
        self.n_asked += 1
        return bool(self.allowed[token])

    def accept(self, token):
        self.n_accepted += 1

    def first_bytes(self):
        table = [False] * 256
        for token in np.flatnonzero(self.allowed).tolist():
            table[self.lead[token]] = True
        table[0] = True
        return table

    def first_byte(self, token):
        return self.lead[token]


def random_row(rng: np.random.Generator, n: int):
    kind = rng.integers(8)
    row = rng.standard_normal(n).astype(f32) * f32(rng.choice([0.5, 3, 12]))
    if kind == 1:  # many ties
        row = np.round(row)
    elif kind == 2:  # ties at the borders, signed zeros
        row = np.round(row / 4) * f32(4)
    elif kind == 3:
        row[:] = f32(rng.choice([0.0, -2.5]))
    elif kind == 4:
        row[rng.random(n) < 0.4] = -np.inf
        row[rng.integers(n)] = 1
    elif kind == 5:
        row[rng.random(n) < 0.1] = np.nan
        row[rng.integers(n)] = 2
    elif kind == 6:  # one that towers above the rest: a single survivor
        row[rng.integers(n)] += 40
    return row


def random_params(rng: np.random.Generator, n: int) -> Params:
    def pick(*values):
        return values[rng.integers(len(values))]

    penalised = rng.random() < 0.6
    raising = rng.random() < 0.25  # then the shortcut may be invalid
    return Params(
        temperature=pick(0.0, 0.3, 0.8, 1.0, 1.0, 2.5, -1.0),
        top_k=pick(0, -1, 1, 2, 5, 40, 40, 1000),
        top_p=pick(1.0, 1.0, 0.95, 0.9, 0.5, 0.0),
        min_p=pick(0.0, 0.0, 0.05, 0.3, 1.0),
        typical_p=pick(1.0, 1.0, 1.0, 0.9, 0.3, 1e-6),
        seed=int(rng.integers(2**63)),
        penalty_last_n=pick(64, 64, 0, -1, 3, 8),
        penalty_repeat=pick(1.0, 1.1, 1.5, 2.0, *[0.7] * raising) if penalised else 1.0,
        penalty_freq=pick(0.0, 0.2, 1.5, *[-0.3] * raising) if penalised else 0.0,
        penalty_present=pick(0.0, 0.4, *[-0.5] * raising) if penalised else 0.0,
        logit_bias=pick({}, {}, {}, {}, {1: 2.0, 3: -1.5}, {0: -math.inf, 2: -0.5, n + 7: -3.0}),
    )


N_SETS, N_ROWS = 500, 40


@pytest.mark.parametrize("part", range(10))
def test_equals_slow_twin_on_20000_rows(part: int) -> None:
    rng = np.random.default_rng(1000 + part)
    seen = {"shortcut": 0, "copied": 0, "single": 0, "refused": 0}
    for _ in range(N_SETS // 10):
        n = int(rng.choice([5, 6, 17, 60, 130, 300]))
        params = random_params(rng, n)
        sampler, twin = Sampler(params), Twin(params)
        prompt = rng.integers(n, size=int(rng.integers(0, 90))).tolist()
        sampler.seed(prompt)
        twin.history.extend(prompt)
        seen["shortcut" if sampler._only_lowers else "copied"] += bool(sampler._edits)
        lead = rng.integers(0, 6, size=n).tolist()
        for _ in range(N_ROWS):
            row = random_row(rng, n)
            if params.logit_bias:
                row[4] = 0.5  # so that suppression never empties the row
            before = row.copy()
            allowed, mask = None, None
            if rng.random() < 0.25:
                allowed = rng.random(n) < rng.choice([0.0, 0.1, 0.5])
                mask = Mask(allowed, lead)
            sampler.constrain(mask)
            state = sampler.rng.state
            token = sampler.pick(row)
            assert token == twin.pick(row, allowed), (params, row)
            assert np.array_equal(row, before, equal_nan=True), "the row was written to"
            assert sampler.rng.state == twin.rng.state, "another number of random draws"
            seen["single"] += sampler.rng.state == state
            if mask is not None:
                seen["refused"] += mask.n_asked > 1
            kept = token if rng.random() < 0.7 else int(rng.integers(n))
            sampler.accept(kept)
            twin.history.append(kept)
    assert min(seen.values()) > 5, seen


def test_equals_slow_twin_on_large_rows() -> None:
    rng = np.random.default_rng(77)
    for i in range(60):
        n = int(rng.choice([4097, 50_000, 65_536]))
        params = random_params(rng, n)
        sampler, twin = Sampler(params), Twin(params)
        prompt = rng.integers(n, size=200).tolist()
        sampler.seed(prompt)
        twin.history.extend(prompt)
        row = random_row(rng, n)
        if i % 3 == 0:
            row[rng.integers(n, size=n // 2)] = f32(row[0]) if np.isfinite(row[0]) else 1  # a flood of ties
        row[4] = 0.5
        assert sampler.pick(row) == twin.pick(row), params
        assert sampler.rng.state == twin.rng.state

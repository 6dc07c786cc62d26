"""The native chain's further stages give what the Python ones give, bit for bit; log-probabilities; speed."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from test_sampling_native import isa, native, random_row  # noqa: F401  (fixtures)

from ggfw.errors import GgfwError, NonFiniteLogits, UnsupportedError
from ggfw.sampling import Breakers, Params, Sampler, SamplerVocab, host_reason, token_logprob
from ggfw.sampling.native import NativeSampler

f32 = np.float32
ORDERS = (
    None,
    None,
    None,
    "dry;penalties;top_n_sigma;min_p;top_k;temperature",
    "penalties;min_p;top_k;temperature",
    "temperature;xtc;top_p;top_k",
    "dry;min_p;temperature",
    "top_n_sigma;temperature",
    "top_k;top_n_sigma;typ_p;temperature;top_p",
    "top_p;top_k;min_p;top_k",
    "min_p",
    "top_k;penalties;dry;temperature",
    "",
)


def random_params(rng: np.random.Generator, n: int) -> Params:
    def pick(*values):
        return values[rng.integers(len(values))]

    penalised, raising = rng.random() < 0.5, rng.random() < 0.2
    return Params(
        temperature=pick(0.0, 0.3, 0.8, 1.0, 1.0, 2.5, 1e-38),
        top_k=pick(0, -1, 1, 5, 40, 300),
        top_p=pick(1.0, 0.95, 0.5, 0.0),
        min_p=pick(0.0, 0.05, 0.3, 1.0),
        typical_p=pick(1.0, 1.0, 0.9, 1e-6),
        seed=int(rng.integers(2**63)),
        penalty_last_n=pick(64, 0, -1, 3),
        penalty_repeat=pick(1.0, 1.1, *[0.7] * raising) if penalised else 1.0,
        penalty_freq=pick(0.0, 0.2, *[-0.3] * raising) if penalised else 0.0,
        penalty_present=pick(0.0, 0.4) if penalised else 0.0,
        logit_bias=pick({}, {}, {1: 2.0, 3: -1.5}, {0: -math.inf, 2: -0.5, n + 7: -3.0}),
        samplers=pick(*ORDERS),
        min_keep=pick(0, 0, 1, 3, 50),
        min_tokens=pick(0, 0, 4, 100),
        top_n_sigma=pick(-1.0, -1.0, 0.5, 2.0),
        dynatemp_range=pick(0.0, 0.0, 0.5, 3.0),
        dynatemp_exponent=pick(1.0, 0.5, 2.0),
        xtc_probability=pick(0.0, 0.0, 0.5, 1.0),
        xtc_threshold=pick(0.1, 0.02, 0.4, 0.6),
        dry_multiplier=pick(0.0, 0.0, 0.8, 3.0),
        dry_base=pick(1.75, 1.0, 1.1, 0.9, 30.0),
        dry_allowed_length=pick(2, 0, 1, 5),
        dry_penalty_last_n=pick(64, -1, 5, 0),
    )


def random_vocab(rng: np.random.Generator, n: int) -> SamplerVocab:
    kind = rng.integers(3)
    single = frozenset(rng.integers(n, size=2).tolist()) if kind else frozenset()
    longer = {int(t): ((1, 2), (3,)) for t in rng.integers(min(n, 6), size=2)} if kind == 2 else {}
    return SamplerVocab(tuple({0, 4} if n < 100 else {7, 2, 90}), Breakers(single, longer))


def compare(library, rng: np.random.Generator, sizes: list[int], n_sets: int, n_rows: int) -> dict[str, int]:
    seen = {"drawn": 0, "single": 0, "host": 0, "dry": 0, "refused": 0}
    for _ in range(n_sets):
        n = int(rng.choice(sizes))
        params, vocab = random_params(rng, n), random_vocab(rng, n)
        if host_reason(params) is not None:
            seen["host"] += 1
            with pytest.raises(UnsupportedError):
                NativeSampler(*library, params, vocab)
            continue
        ours, theirs = Sampler(params, vocab=vocab), NativeSampler(*library, params, vocab)
        prompt = rng.integers(min(n, 8), size=int(rng.integers(0, 90))).tolist()
        ours.seed(prompt)
        theirs.seed(prompt)
        for step in range(n_rows):
            row = random_row(rng, n)
            try:
                ids, probabilities = ours.distribution(row)
            except NonFiniteLogits:
                seen["refused"] += 1
                with pytest.raises(NonFiniteLogits):
                    theirs.pick(row)
                continue
            their_ids, their_probabilities = theirs.distribution(row)
            assert np.array_equal(ids, their_ids), params
            assert np.array_equal(probabilities.view(np.uint32), their_probabilities.view(np.uint32)), params
            token = ours.pick(row)
            assert theirs.pick(row) == token, params
            seen["drawn" if ids.size > 1 else "single"] += 1
            kept = token if rng.random() < 0.5 else int(rng.integers(min(n, 8)))
            ours.accept(kept)
            theirs.accept(kept)
            seen["dry"] += params.dries and any(e.name == "dry" and e.penalties() for e in ours._edits)
            if step == n_rows // 2:  # from here on the copies go on
                assert theirs.to_python().rng.state == ours.rng.state
                ours, theirs = theirs.to_python(), theirs.copy()
        assert theirs.to_python().rng.state == ours.rng.state
    return seen


@pytest.mark.parametrize("part", range(6))
def test_equals_python_on_small_rows(native, part: int) -> None:  # noqa: F811
    seen = compare(native, np.random.default_rng(100 + part), [6, 17, 60, 130, 300, 1000], 90, 16)
    assert min(seen["drawn"], seen["single"]) > 60 and seen["dry"] > 20 and seen["host"] > 0, seen


def test_equals_python_on_large_rows(native, isa) -> None:  # noqa: F811
    seen = compare(native, np.random.default_rng(150 + isa), [4100, 20_011, 50_000], 25, 3)
    assert seen["drawn"] > 5, seen


@pytest.mark.parametrize("order", ["min_p", "min_p;top_k", "top_n_sigma", "top_n_sigma;top_k;temperature"])
@pytest.mark.parametrize("edits", [{}, {"penalty_repeat": 1.3}, {"penalty_repeat": 0.8}])
def test_bounds_on_large_rows(native, isa, order: str, edits: dict) -> None:  # noqa: F811
    rng = np.random.default_rng(5)
    order = "penalties;" + order
    for top_k in (3, 4000):
        params = Params(samplers=order, min_p=0.02, top_n_sigma=2.0, top_k=top_k, seed=1, **edits)
        ours, theirs = Sampler(params), NativeSampler(*native, params)
        for _ in range(4):
            row = random_row(rng, 30_001)
            for sampler in (ours, theirs):
                sampler.accept(int(np.nanargmax(row)))
            (a, p), (b, q) = ours.distribution(row), theirs.distribution(row)
            assert np.array_equal(a, b) and np.array_equal(p, q)
            assert ours.pick(row) == theirs.pick(row)


# -- log-probabilities -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3, 15, 16, 17, 33, 1000, 40_003])
def test_logprobs(native, isa, n: int) -> None:  # noqa: F811
    rng = np.random.default_rng(n)
    for n_top in (0, 1, 5, 20):
        sampler = NativeSampler(*native, Params(seed=3, temperature=1.5, min_p=0.0), n_logprobs=n_top)
        for i in range(12):
            row = random_row(rng, n)
            if i == 11:
                row[rng.integers(n)] = np.inf
            token = sampler.pick(row)
            found, want = sampler.take_logprob(), token_logprob(row, token, n_top)
            assert found.id == token == want.id
            assert [t.id for t in found.top] == [t.id for t in want.top]
            pairs = [
                (found.logprob, want.logprob),
                *((a.logprob, b.logprob) for a, b in zip(found.top, want.top, strict=True)),
            ]
            assert all(a == b or abs(a - b) <= 1e-12 * max(1, abs(b)) for a, b in pairs)


def test_logprobs_are_of_the_model_not_of_the_chain(native) -> None:  # noqa: F811
    row = np.log(np.asarray([0.5, 0.3, 0.2], f32))
    sampler = NativeSampler(
        *native, Params(logit_bias={0: -math.inf}, temperature=0.1, top_k=1), n_logprobs=3
    )
    assert sampler.pick(row) == 1
    noted = sampler.take_logprob()
    assert [t.id for t in noted.top] == [0, 1, 2]
    assert [math.exp(t.logprob) for t in noted.top] == pytest.approx([0.5, 0.3, 0.2], rel=1e-6)
    assert math.exp(noted.logprob) == pytest.approx(0.3, rel=1e-6)


def test_notes_come_in_order_and_eight_are_kept(native) -> None:  # noqa: F811
    sampler = NativeSampler(*native, Params(temperature=0), n_logprobs=0)
    with pytest.raises(GgfwError):
        sampler.take_logprob()
    for best in range(10):
        row = np.zeros(12, f32)
        row[best] = 1
        sampler.pick(row)
    assert [sampler.take_logprob().id for _ in range(8)] == [2, 3, 4, 5, 6, 7, 8, 9]
    with pytest.raises(GgfwError):
        sampler.take_logprob()


def test_python_logprobs_against_their_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        row = (rng.standard_normal(300) * rng.choice([0.1, 5, 60])).astype(f32)
        values = [float(v) for v in row]
        total = math.log(math.fsum(math.exp(v - max(values)) for v in values)) + max(values)
        noted = token_logprob(row, 7, 4)
        assert noted.logprob == pytest.approx(values[7] - total, abs=1e-12)
        assert [t.id for t in noted.top] == np.argsort(-row, kind="stable")[:4].tolist()
        assert [t.logprob for t in noted.top] == pytest.approx(
            [values[t.id] - total for t in noted.top], abs=1e-12
        )
    assert token_logprob([0, math.nan, -math.inf, 0], 2, 9).logprob == -math.inf
    assert [t.logprob for t in token_logprob([0, math.inf, math.inf], 1, 3).top] == [
        -math.log(2), -math.log(2), -math.inf,
    ]  # fmt: skip


# -- speed -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_speed_at_262144_logits(native) -> None:  # noqa: F811
    """Sampling a token from 262,144 logits with top-k 64 and penalties in 50 microseconds, accepting it included."""
    ffi, lib = native
    if lib.ggfw_sampler_isa(-1) < 1:
        pytest.skip("plain C only")
    n = 262_144
    row = (np.random.default_rng(0).standard_normal(n) * 3).astype(f32)
    data = ffi.from_buffer("float[]", row)
    params = Params(top_k=64, penalty_repeat=1.1, penalty_freq=0.1, temperature=0.8, seed=1)
    sampler = NativeSampler(ffi, lib, params)
    sampler.seed(np.random.default_rng(1).integers(n, size=200).tolist())
    times = []
    for _ in range(2000):
        start = time.perf_counter()
        token = lib.ggfw_sampler_pick(sampler.pointer, data, n)
        lib.ggfw_sampler_accept(sampler.pointer, token)
        times.append(time.perf_counter() - start)
    assert np.percentile(times, 10) <= 50e-6, np.percentile(times, [0, 10, 50]) * 1e6

"""Sampling: fixed values, boundary cases, parameters, the generator, the constraint protocol."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggfw.errors import InvalidRequest, ModelFileError, NonFiniteLogits
from ggfw.sampling import Constraint, Params, Pcg, Sampler, defaults, greedy, softmax
from ggfw.sampling.arithmetic import best_first, exp_nonpositive, select_best

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
NAN, INF = math.nan, math.inf


def logs(*probabilities: float):
    return np.log(np.asarray(probabilities, dtype=np.float32))


def kept(probabilities, **knobs) -> set[int]:
    ids, _ = Sampler(Params(**{**OFF, **knobs})).distribution(logs(*probabilities))
    return set(ids.tolist())


# -- the generator ---------------------------------------------------------------------------------


def test_pcg_vectors() -> None:
    rng = Pcg(1, 2)
    assert [rng.next_u64() for _ in range(3)] == [0xC4F5A58656EEF510, 0x9DCEC3AD077DEC6C, 0xC8D04605312F8088]


def test_floats_of_seed_7() -> None:
    rng = Pcg.from_seed(7)
    assert [rng.float64() for _ in range(4)] == [
        0.03169415692418687,
        0.9679130744773496,
        0.37864592022592336,
        0.5226483840825321,
    ]


def test_copy_goes_on_alike_and_apart() -> None:
    sampler = Sampler(Params(seed=3, penalty_repeat=1.3))
    sampler.seed([1, 2, 3])
    row = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    twin = sampler.copy()
    first = []
    for _ in range(20):
        first.append(sampler.pick(row))
        sampler.accept(first[-1])
    second = []
    for _ in range(20):
        second.append(twin.pick(row))
        twin.accept(second[-1])
    assert first == second and len(set(first)) > 1


# -- arithmetic ------------------------------------------------------------------------------------


def test_exponential_is_within_one_ulp() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([-rng.random(20_000) * s for s in (1e-300, 1e-8, 1e-3, 1, 30, 708)])
    ours, exact = exp_nonpositive(x), np.array([math.exp(v) for v in x])
    assert np.max(np.abs(ours - exact) / np.spacing(exact)) <= 1
    assert exp_nonpositive([0.0, -0.0, -709, -INF]).tolist() == [1, 1, 0, 0]


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=60), st.integers(1, 70))
def test_selection_and_order(values: list[float], k: int) -> None:
    row = np.asarray(values, dtype=np.float32)
    wanted = sorted((i for i in range(len(values)) if row[i] > -np.inf), key=lambda i: (-row[i], i))
    ids = select_best(row, k)
    assert ids.tolist() == sorted(wanted[:k])
    assert ids[best_first(row[ids])].tolist() == wanted[:k]


@pytest.mark.parametrize("k", [1, 40, 1000, 5000, 20_000])
@pytest.mark.parametrize("flood", [False, True])
def test_selection_in_large_rows(k: int, flood: bool) -> None:
    row = np.random.default_rng(k).standard_normal(20_011).astype(np.float32)
    if flood:
        row = np.round(row)
    wanted = np.lexsort((np.arange(row.size), -row))[:k]
    assert select_best(row, k).tolist() == sorted(wanted.tolist())


def test_softmax_and_greedy() -> None:
    assert softmax([1, 2, 3, 4]) == pytest.approx([0.0320586, 0.0871443, 0.2368828, 0.6439143], abs=1e-6)
    assert softmax([1, 2, 3, 4]).dtype == np.float32
    assert softmax([0, NAN, -INF, 0]).tolist() == [0.5, 0, 0, 0.5]
    assert softmax([0, INF, INF]).tolist() == [0, 0.5, 0.5]
    assert softmax([]).size == 0
    assert greedy([3, 3, 1]) == 0
    assert greedy([-0.0, 0.0]) == 0
    assert greedy([NAN, 1, 2]) == 2
    assert greedy([]) == 0
    with pytest.raises(InvalidRequest):
        greedy([[1, 2]])


# -- what the filters keep -------------------------------------------------------------------------


@pytest.mark.parametrize("top_k", [0, -1, 4, 100])
def test_top_k_off(top_k: int) -> None:
    ids, probabilities = Sampler(Params(**{**OFF, "top_k": top_k})).distribution([1, 2, 3, 4])
    assert ids.tolist() == [3, 2, 1, 0]
    assert probabilities == pytest.approx([0.6439143, 0.2368828, 0.0871443, 0.0320586], abs=1e-6)


@pytest.mark.parametrize("temperature", [0, -1, 1e-60])
@pytest.mark.parametrize("seed", [0, 1, 99])
def test_no_temperature_is_greedy(temperature: float, seed: int) -> None:
    sampler = Sampler(Params(temperature=temperature, seed=seed))
    state = sampler.rng.state
    assert sampler.pick([3, 3, 1]) == 0
    if temperature <= 0:
        assert sampler.rng.state == state


@pytest.mark.parametrize(
    ("top_p", "want"), [(0.7, {0, 1}), (0.79, {0, 1}), (0.81, {0, 1, 2}), (0, {0}), (1, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_smallest_sufficient_set(top_p: float, want: set[int]) -> None:
    assert kept([0.5, 0.3, 0.15, 0.05], top_p=top_p) == want


def test_filters_renormalise_and_keep_one() -> None:
    assert kept([0.4, 0.3, 0.2, 0.1], top_k=2, top_p=0.5) == {0}
    assert kept([0.4, 0.4, 0.2], min_p=1.0) == {0, 1}
    assert len(kept([0.4, 0.4, 0.2], typical_p=1e-6)) == 1
    assert kept([0.5, 0.3, 0.15, 0.05], typical_p=1e-6) == {
        1
    }  # -ln .3 = 1.204 is nearest to the entropy 1.142


def test_min_p_comes_after_top_p_and_before_temperature() -> None:
    assert kept([0.5, 0.3, 0.15, 0.05], min_p=0.5, temperature=100.0) == {0, 1}
    assert kept([0.5, 0.3, 0.15, 0.05], top_p=0.9, min_p=0.2, temperature=0.01) == {0, 1, 2}


def test_one_survivor_draws_nothing() -> None:
    sampler = Sampler(Params(**{**OFF, "top_k": 1, "seed": 5}))
    state = sampler.rng.state
    assert sampler.pick([1, 9, 2]) == 1
    assert sampler.rng.state == state
    two = Sampler(Params(**{**OFF, "top_k": 2, "seed": 5}))
    two.pick([1, 9, 2])
    assert two.rng.state != state


def test_draw_follows_the_distribution() -> None:
    sampler = Sampler(Params(**OFF, seed=1))
    row, n = logs(0.5, 0.3, 0.15, 0.05), 4000
    counts = np.bincount([sampler.pick(row) for _ in range(n)], minlength=4) / n
    assert counts == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.03)


# -- penalties and bias ----------------------------------------------------------------------------


def test_penalty_arithmetic() -> None:
    sampler = Sampler(Params(**OFF, penalty_repeat=2.0, penalty_freq=0.25, penalty_present=0.5))
    sampler.seed([0, 0, 1])
    edited = sampler._edited_row(np.asarray([4, -4, 4], dtype=np.float32))
    assert edited.tolist() == [4 / 2 - (2 * 0.25 + 0.5), -4 * 2 - (0.25 + 0.5), 4]


def test_window_forgets() -> None:
    for last_n, penalised in ((2, {1, 2}), (0, set()), (-1, {0, 1, 2}), (3, {0, 1, 2})):
        sampler = Sampler(Params(temperature=0, penalty_repeat=4.0, penalty_last_n=last_n))
        sampler.seed([0])
        sampler.accept(1)
        sampler.accept(2)
        assert {i for i in range(3) if i in sampler.window.counts} == penalised


def test_greedy_obeys_penalties_and_bias() -> None:
    sampler = Sampler(Params(temperature=0, penalty_repeat=2.0))
    sampler.seed([0])
    assert sampler.pick([4, 3, 1]) == 1
    assert Sampler(Params(temperature=0, logit_bias={2: 5.0})).pick([4, 3, 1]) == 2
    assert Sampler(Params(temperature=0, logit_bias={0: -INF, 1: -INF})).pick([4, 3, 1]) == 2


# -- logits that are no numbers --------------------------------------------------------------------


def test_nan_is_never_chosen() -> None:
    assert greedy([NAN, 1, 2]) == 2
    sampler = Sampler(Params(**OFF, seed=0))
    assert {sampler.pick([NAN, 1, 2]) for _ in range(200)} == {1, 2}
    assert {sampler.pick([-INF, 1, 2, -INF]) for _ in range(200)} == {1, 2}


def test_infinity_is_certain() -> None:
    assert greedy([1, INF, 2]) == 1
    sampler = Sampler(Params(seed=0))
    state = sampler.rng.state
    assert sampler.pick([1, INF, 2]) == 1
    assert sampler.pick([1, INF, INF]) == 1
    assert sampler.rng.state == state


@pytest.mark.parametrize("row", [[NAN] * 3, [-INF] * 3, [NAN, -INF, NAN]])
@pytest.mark.parametrize("knobs", [{}, {"temperature": 0}, {"penalty_repeat": 1.1}, {"penalty_repeat": 0.5}])
def test_nothing_finite_is_an_error(row: list[float], knobs: dict) -> None:
    sampler = Sampler(Params(**knobs))
    sampler.seed([0, 1])
    with pytest.raises(NonFiniteLogits):
        sampler.pick(row)
    with pytest.raises(NonFiniteLogits):
        greedy(row)
    with pytest.raises(NonFiniteLogits):
        softmax(row)


def test_everything_suppressed_is_an_error() -> None:
    with pytest.raises(NonFiniteLogits):
        Sampler(Params(logit_bias={0: -INF, 1: -INF})).pick([1, 2])


def test_extreme_values_do_no_harm() -> None:
    row = np.asarray([3e38, -3e38, 1, 2], dtype=np.float32)
    assert Sampler(Params(seed=1)).pick(row) == 0
    assert Sampler(Params(**{**OFF, "temperature": 1e-38}, seed=1)).pick([20, 19, -20]) == 0
    assert Sampler(Params(**{**OFF, "temperature": 1e-38}, seed=1)).pick([-20, -19]) == 1
    assert Sampler(Params(**{**OFF, "typical_p": 0.5}, seed=1)).pick(row) == 0


# -- parameters ------------------------------------------------------------------------------------


def test_defaults_are_those_of_llama_cpp() -> None:
    p = defaults()
    assert (p.temperature, p.top_k, p.top_p, p.min_p) == (0.8, 40, 0.95, 0.05)
    assert (p.penalty_last_n, p.penalty_repeat, p.penalty_freq, p.penalty_present) == (64, 1.0, 0.0, 0.0)
    assert p == Params() and p.typical_p == 1 and p.seed is None and not p.penalises


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "0.5"),
        ("temperature", NAN),
        ("temperature", INF),
        ("temperature", True),
        ("temperature", None),
        ("top_k", 1.5),
        ("top_k", "40"),
        ("top_k", 2**40),
        ("top_p", -0.1),
        ("top_p", NAN),
        ("min_p", 1.5),
        ("typical_p", -1),
        ("seed", 1.0),
        ("seed", 2**64),
        ("penalty_last_n", "all"),
        ("penalty_repeat", -1),
        ("penalty_repeat", INF),
        ("penalty_freq", INF),
        ("penalty_present", [1]),
        ("logit_bias", [1]),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: NAN}),
        ("logit_bias", {1: INF}),
    ],
)
def test_wrong_values_are_named(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Params(**{name: value})
    assert caught.value.param == name and name in str(caught.value)


def test_accepted_values() -> None:
    p = Params(
        temperature=1,
        top_k=np.int32(5),
        top_p=np.float32(0.5),
        seed=-1,
        penalty_repeat=0,
        logit_bias={3: -INF},
    )
    assert (p.temperature, p.top_k, p.top_p, p.penalty_repeat, p.logit_bias[3]) == (1.0, 5, 0.5, 1.0, -INF)
    assert isinstance(p.top_k, int) and isinstance(p.top_p, float)
    with pytest.raises(TypeError):
        p.logit_bias[1] = 2  # type: ignore[index]
    assert hash(Params()) == hash(defaults())


def test_seeds() -> None:
    assert Sampler(Params(seed=0)).rng_seed == 0
    assert Sampler(Params(seed=2**64 - 1)).rng_seed == 2**64 - 1
    for fresh in (None, -1):
        assert len({Sampler(Params(seed=fresh)).rng_seed for _ in range(5)}) == 5
    choices = [Params(seed=7).for_choice(i) for i in range(4)]
    assert choices[0] == Params(seed=7) and len({c.seed for c in choices}) == 4
    assert Params(seed=2**64 - 1).for_choice(1).seed == 0


def test_from_metadata() -> None:
    metadata = {
        "general.architecture": "gemma4",
        "general.sampling.temp": 1.0,
        "general.sampling.top_k": np.int32(64),
        "general.sampling.top_p": np.float32(0.5),
        "general.sampling.penalty_repeat": 1.25,
        "general.sampling.mirostat_tau": 5.0,
        "general.sampling.something_new": "x",
    }
    p = Params.from_metadata(metadata)
    assert (p.temperature, p.top_k, p.top_p, p.min_p, p.penalty_repeat) == (1.0, 64, 0.5, 0.05, 1.25)
    assert Params.from_metadata({}, Params(seed=3)) == Params(seed=3)
    with pytest.raises(ModelFileError, match="top_k"):
        Params.from_metadata({"general.sampling.top_k": "many"})


# -- the constraint protocol -----------------------------------------------------------------------


class Only:
    """Allows a set of ids; all tokens begin with their own byte."""

    def __init__(self, *ids: int) -> None:
        self.ids, self.asked, self.accepted = set(ids), [], []

    def allows(self, token: int) -> bool:
        self.asked.append(token)
        return token in self.ids

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def first_bytes(self) -> list[bool]:
        return [b == 0 or b in {i % 256 for i in self.ids} for b in range(256)]

    def first_byte(self, token: int) -> int:
        return token % 256


def test_constraint_is_asked_once_when_it_agrees() -> None:
    only = Only(2)
    assert isinstance(only, Constraint)
    sampler = Sampler(Params(temperature=0))
    sampler.constrain(only)
    assert sampler.pick([1, 2, 3]) == 2
    assert only.asked == [2]
    sampler.accept(2)
    assert only.accepted == [2]
    sampler.seed([1])
    assert only.accepted == [2]


def test_constraint_widens_to_the_end_of_the_row() -> None:
    row = np.linspace(10, 0, 5000).astype(np.float32)
    for knobs in (
        {"temperature": 0},
        {"seed": 1},
        {"seed": 1, "top_k": 0},
        {"seed": 1, "penalty_repeat": 0.5},
    ):
        sampler = Sampler(Params(**knobs))
        sampler.constrain(Only(4990))
        assert sampler.pick(row) == 4990


def test_constraint_filters_by_lead_byte_first() -> None:
    only = Only(4990)
    sampler = Sampler(Params(temperature=0))
    sampler.constrain(only)
    sampler.pick(np.linspace(10, 0, 5000).astype(np.float32))
    assert len(set(only.asked)) <= 1 + 2 * (
        5000 // 256 + 1
    )  # the first pick, then only ids of two lead bytes


def test_constraint_that_allows_nothing_returns_the_plain_pick() -> None:
    sampler = Sampler(Params(temperature=0))
    sampler.constrain(Only())
    assert sampler.pick([1, 5, 3]) == 1
    sampler.constrain(None)
    assert sampler.pick([1, 5, 3]) == 1


@settings(max_examples=50)
@given(st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=40), st.integers(0, 2**32), st.data())
def test_constrained_pick_is_always_allowed(row: list[float], seed: int, data: st.DataObject) -> None:
    ids = data.draw(st.sets(st.integers(0, len(row) - 1), min_size=1))
    sampler = Sampler(Params(seed=seed))
    sampler.constrain(Only(*ids))
    assert sampler.pick(row) in ids

"""Each stage against a slow twin written from its description, values of llama.cpp's own tests, and orders."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggfw.errors import InvalidRequest, NonFiniteLogits
from ggfw.sampling import DEFAULT_SAMPLERS, Breakers, Params, Sampler, SamplerVocab
from ggfw.sampling.dry import Dry, common_prefixes
from ggfw.sampling.order import samplers

f32 = np.float32
INF = math.inf
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def sampler(vocab: SamplerVocab | None = None, **knobs) -> Sampler:
    return Sampler(Params(**{**OFF, "seed": 1, **knobs}), vocab=vocab)


def probabilities(row, **knobs) -> dict[int, float]:
    made = knobs.pop("made", None) or sampler(**knobs)
    ids, p = made.distribution(np.asarray(row, f32))
    return dict(zip(ids.tolist(), p.tolist(), strict=True))


def logs(*p: float):
    return np.log(np.asarray(p, f32))


def close(found: dict[int, float], want: dict[int, float]) -> bool:
    return found.keys() == want.keys() and all(abs(found[i] - want[i]) < 1e-5 for i in want)


# -- values that llama.cpp's tests expect ----------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "want"),
    [
        ({"xtc_probability": 1.0, "xtc_threshold": 0.09}, [0, 0, 0, 1]),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.19}, [0, 0, 2 / 3, 1 / 3]),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.29}, [0, 3 / 6, 2 / 6, 1 / 6]),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.39}, [0.4, 0.3, 0.2, 0.1]),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.51}, [0.4, 0.3, 0.2, 0.1]),
        ({"top_n_sigma": 1.0}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_n_sigma": 0.0}, [0.4, 0.3, 0.2, 0.1]),
        ({"top_n_sigma": 3.0}, [0.4, 0.3, 0.2, 0.1]),
        ({"dynatemp_range": 0.0, "temperature": 1.0}, [0.4, 0.3, 0.2, 0.1]),
        ({"dynatemp_range": 0.0, "temperature": 0.0}, [1, 0, 0, 0]),
        ({"min_p": 0.26}, [4 / 9, 3 / 9, 2 / 9, 0]),
        ({"min_p": 0.51}, [4 / 7, 3 / 7, 0, 0]),
        ({"min_p": 0.76}, [1, 0, 0, 0]),
    ],
)
def test_llama_cpp_values(knobs: dict, want: list[float]) -> None:
    assert close(probabilities(logs(0.4, 0.3, 0.2, 0.1), **knobs), {i: p for i, p in enumerate(want) if p})


def test_llama_cpp_typical_values() -> None:
    assert probabilities(logs(0.97, 0.01, 0.01, 0.01), typical_p=0.5).keys() == {0}
    assert probabilities(logs(0.4, 0.2, 0.2, 0.2), typical_p=0.5).keys() == {1, 2, 3}


@pytest.mark.parametrize(
    ("n", "history", "multiplier", "allowed", "last_n", "breakers", "want"),
    [
        (4, [0, 1], 1.0, 2, 4, (), [0.25] * 4),
        (4, [0, 1, 2, 0, 1], 1.0, 2, 5, (), [0.296923, 0.296923, 0.109232, 0.296923]),
        (5, [0, 1, 3, 4, 0, 1], 1.0, 2, 6, (3,), [0.2] * 5),
        (5, [0, 1, 2, 0, 1], 2.0, 2, 5, (), [0.241818, 0.241818, 0.032727, 0.241818, 0.241818]),
        (5, [0, 1, 2, 3, 4, 0, 1], 1.0, 4, 7, (), [0.2] * 5),
    ],
)
def test_llama_cpp_dry_values(n, history, multiplier, allowed, last_n, breakers, want) -> None:
    vocab = SamplerVocab(breakers=Breakers(frozenset(breakers)))
    made = sampler(
        vocab, dry_multiplier=multiplier, dry_base=1.1, dry_allowed_length=allowed, dry_penalty_last_n=last_n
    )
    made.seed(history)
    assert close(probabilities(logs(*[1 / n] * n), made=made), dict(enumerate(want)))


# -- DRY -------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2), max_size=40))
def test_common_prefixes_by_hand(sequence: list[int]) -> None:
    want = []
    for k in range(len(sequence)):
        n = 0
        while k and k + n < len(sequence) and sequence[n] == sequence[k + n]:
            n += 1
        want.append(n)
    assert common_prefixes(sequence) == want


def slow_dry(history, multiplier, base, allowed, last_n, single, longer) -> dict[int, float]:
    """From the definition: every token, every earlier place, every length."""
    h = history if last_n < 0 else history[-last_n:] if last_n else []
    if len(h) <= allowed:
        return {}
    limit = len(h)
    for i in range(len(h)):  # i tokens stand behind this one
        token, behind = h[-1 - i], h[len(h) - i :]
        fits = [len(t) for t in longer.get(token, ()) if list(t) == behind[: len(t)]]
        fits += [0] if token in single else []
        if fits:
            limit = i - max(fits)
            break
    if limit < allowed:
        return {}
    out: dict[int, float] = {}
    for at in range(1, len(h)):  # h[at] would be repeated by drawing it now
        if h[at] in single:
            continue
        length = 0
        while length < at and h[at - 1 - length] == h[len(h) - 1 - length]:
            length += 1
        length = min(length, limit)
        if length >= allowed:
            penalty = multiplier * base ** min(length - allowed, int(88.7228391 / math.log(base)))
            out[h[at]] = max(out.get(h[at], 0), penalty)
    return out


@settings(max_examples=400)
@given(
    st.lists(st.integers(0, 4), max_size=60),
    st.integers(0, 4),
    st.sampled_from([-1, 1, 7, 64]),
    st.sets(st.integers(0, 4), max_size=1),
    st.dictionaries(
        st.integers(0, 4), st.lists(st.tuples(st.integers(0, 4)), min_size=1, max_size=2), max_size=1
    ),
)
def test_dry_against_its_definition(history, allowed, last_n, single, longer) -> None:
    longer = {k: tuple(v) for k, v in longer.items()}
    dry = Dry(0.75, 1.5, allowed, last_n, Breakers(frozenset(single), longer))
    cut = len(history) // 2
    dry.seed(history[:cut])
    for token in history[cut:]:
        dry.accept(token)
    found = {t: float(p) for t, p in dry.penalties().items()}
    want = slow_dry(history, 0.75, 1.5, allowed, last_n, single, longer)
    assert found == pytest.approx(want, rel=1e-6)


def test_dry_grows_without_overflow() -> None:
    dry = Dry(1.0, 4.0, 2, -1, Breakers())
    dry.seed([7] * 500)
    assert dry.penalties()[7] == pytest.approx(4.0**63) and np.isfinite(dry.penalties()[7])


class Words:
    """A tokenizer of given pieces; texts are encoded by their letters."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces
        self.n_vocab = len(pieces)

    def piece(self, token: int) -> bytes:
        return self.pieces[token].encode()

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        return [self.pieces.index(letter) for letter in text]


def test_breakers_from_a_vocabulary() -> None:
    words = Words("a", "b", "c", "xa", "xab", "zabcz", "ca")
    found = Breakers.from_tokenizer(words, ["abc", "\n"])
    assert found.single == {5}
    assert found.longer == {0: ((1, 2),), 3: ((1, 2),), 4: ((2,),), 6: ((1, 2),)}
    assert found.limit([1, 0, 9, 9]) == 4  # "..ab" is not the breaker yet
    assert found.limit([2, 1, 0, 9, 9]) == 0  # "..abc"
    assert found.limit([9, 2, 1, 0, 9]) == 1
    assert found.limit([9, 5, 9]) == 1


# -- top-n-sigma, XTC, dynamic temperature ---------------------------------------------------------


def random_row(rng: np.random.Generator, n: int) -> np.ndarray:
    row = (rng.standard_normal(n) * rng.choice([0.5, 3, 12])).astype(f32)
    kind = rng.integers(4)
    if kind == 1:
        row[rng.random(n) < 0.4] = -INF
    elif kind == 2:
        row = np.round(row)
    row[rng.integers(n)] = 1
    return row


@pytest.mark.parametrize("seed", range(40))
def test_top_n_sigma_against_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    row = random_row(rng, int(rng.choice([2, 15, 16, 17, 300])))
    n = float(rng.choice([0.3, 1.0, 2.5]))
    values = [float(x) for x in row if x > -INF]
    mean = math.fsum(values) / len(values)
    sigma = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
    bound = max(values) - float(f32(n)) * sigma
    want = {i for i, v in enumerate(row.tolist()) if v >= bound - 1e-6}
    unsure = {i for i, v in enumerate(row.tolist()) if abs(v - bound) < 1e-5}
    found = probabilities(row, top_n_sigma=n).keys()
    assert found - unsure == want - unsure
    assert len(probabilities(row, top_n_sigma=n, top_k=3)) == min(3, len(found))
    behind = probabilities(row, top_n_sigma=n, samplers=["top_k", "top_n_sigma", "temperature"])
    assert behind.keys() - unsure == want - unsure


def test_xtc_follows_its_probability_and_leaves_the_generator() -> None:
    row = logs(0.5, 0.3, 0.15, 0.05)
    made = sampler(xtc_probability=0.3, xtc_threshold=0.1)
    n_cut = 0
    for _ in range(2000):
        state = made.rng.state
        shown = probabilities(row, made=made)
        assert made.rng.state == state
        token = made.pick(row)
        assert token in shown
        n_cut += 0 not in shown
    assert 0.25 < n_cut / 2000 < 0.35
    assert probabilities(row, xtc_probability=1.0, min_keep=3).keys() == {0, 1, 2, 3}
    assert probabilities(row, xtc_probability=1.0, min_keep=2).keys() == {2, 3}


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_dynamic_temperature_against_its_definition(exponent: float) -> None:
    p = [0.6, 0.25, 0.1, 0.05]
    entropy = -sum(x * math.log(x) for x in p)
    t = 0.4 + (1.2 - 0.4) * (entropy / math.log(4)) ** exponent
    scaled = [x ** (1 / t) for x in p]
    want = {i: x / sum(scaled) for i, x in enumerate(scaled)}
    assert close(
        probabilities(logs(*p), temperature=0.8, dynatemp_range=0.4, dynatemp_exponent=exponent), want
    )


def test_dynamic_temperature_at_its_ends() -> None:
    flat, certain = logs(0.25, 0.25, 0.25, 0.25), np.asarray([0, -200, -300], f32)
    assert len(probabilities(flat, temperature=0.0, dynatemp_range=1.0)) == 4
    assert probabilities(certain, temperature=0.5, dynatemp_range=1.0).keys() == {0}
    assert Params(temperature=0, dynatemp_range=0.5).is_greedy is False
    assert Params(temperature=0, dynatemp_range=-1).is_greedy is True


# -- mirostat and adaptive-p -----------------------------------------------------------------------


def softmax(row) -> np.ndarray:
    e = np.exp(np.asarray(row, np.float64) - np.max(row))
    return e / e.sum()


@pytest.mark.parametrize("seed", range(10))
def test_mirostat_2_against_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = sampler(
        mirostat=2, mirostat_tau=2.0, mirostat_eta=0.3, temperature=0.9, top_k=1, penalty_repeat=9.0
    )
    mu = 4.0
    for _ in range(30):
        row = (rng.standard_normal(50) * 3).astype(f32)
        p = softmax(row / f32(0.9))
        want = {i for i in range(50) if -math.log2(p[i]) <= mu} or {int(row.argmax())}
        shown = probabilities(row, made=made)
        unsure = {i for i in range(50) if abs(-math.log2(p[i]) - mu) < 1e-4}
        assert shown.keys() - unsure == want - unsure
        token = made.pick(row)
        made.accept(token)
        mu -= 0.3 * (-math.log2(shown[token]) - 2.0)
        assert made._stages[-1].mu == pytest.approx(mu, abs=1e-5)


@pytest.mark.parametrize("seed", range(10))
def test_mirostat_1_against_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = sampler(mirostat=1, mirostat_tau=3.0, mirostat_eta=0.2)
    mu, n = 6.0, 400
    for _ in range(30):
        row = (rng.standard_normal(n) * 2).astype(f32)
        p = np.sort(softmax(row))[::-1]
        top, bottom = 0.0, 0.0
        for i in range(99):
            t, b = math.log((i + 2) / (i + 1)), math.log(p[i] / p[i + 1])
            top += t * b
            bottom += t * t
        s = top / bottom
        k = (((s - 1) * 2**mu) / (1 - n ** -(s - 1))) ** (1 / s)
        shown = probabilities(row, made=made)
        assert len(shown) in {min(max(int(k + d), 1), n) for d in (-1e-3, 0, 1e-3)}
        token = made.pick(row)
        made.accept(token)
        mu -= 0.2 * (-math.log2(shown[token]) - 3.0)


def test_mirostat_holds_the_surprise() -> None:
    rng = np.random.default_rng(0)
    for version in (1, 2):
        made = sampler(mirostat=version, mirostat_tau=3.0, mirostat_eta=0.1)
        seen = []
        for _ in range(600):
            row = (rng.standard_normal(2000) * 2.5).astype(f32)
            shown = probabilities(row, made=made)
            token = made.pick(row)
            made.accept(token)
            seen.append(-math.log2(shown[token]))
        assert np.mean(seen[200:]) == pytest.approx(3.0, abs=0.35), version


@pytest.mark.parametrize("row", [[0.0] * 5, [3.0], [50.0, 0, 0], [INF, 1, 2], [1e-30, 0, 0]])
@pytest.mark.parametrize("mu", [-50.0, 0.0, 5000.0])
@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_at_its_ends(row, mu: float, version: int) -> None:
    made = sampler(mirostat=version)
    made._stages[-1].mu = mu
    assert 0 <= made.pick(np.asarray(row, f32)) < len(row)
    assert sampler(mirostat=version, temperature=0).pick([1, 3, 2]) == 1


def test_adaptive_p_against_its_definition() -> None:
    rng = np.random.default_rng(3)
    made = sampler(adaptive_target=0.4, adaptive_decay=0.8, top_k=12)
    weighted, total = 0.4 / 0.2, 1 / 0.2
    for _ in range(50):
        row = (rng.standard_normal(40) * 2).astype(f32)
        best = np.argsort(-row, kind="stable")[:12]
        p = softmax(row[best])
        target = min(max(2 * 0.4 - weighted / total, 0), 1)
        d = np.abs(p - target) / 0.3
        want = softmax(5 - 10 * d * d / (1 + d))
        shown = probabilities(row, made=made)
        assert close(shown, dict(zip(best.tolist(), want.tolist(), strict=True)))
        token = made.pick(row)
        made.accept(token)
        weighted = p[best.tolist().index(token)] + 0.8 * weighted
        total = 1 + 0.8 * total
    made.accept(39)
    made.accept(39)  # what was not offered teaches nothing
    assert made._stages[-1]._weight == pytest.approx(total)


# -- min_tokens, order, min_keep -------------------------------------------------------------------


def test_min_tokens_counts_drawn_tokens_only() -> None:
    made = Sampler(Params(temperature=0, min_tokens=2), vocab=SamplerVocab(end_ids=(0, 1)))
    made.seed([5, 6, 7])
    row, picked = [9, 8, 7, 1], []
    for _ in range(4):
        picked.append(made.pick(row))
        made.accept(picked[-1])
    assert picked == [2, 2, 0, 0]
    with pytest.raises(NonFiniteLogits):
        Sampler(Params(min_tokens=1), vocab=SamplerVocab(end_ids=(0, 1))).pick([1, 2])


def test_order_decides() -> None:
    row = logs(0.5, 0.3, 0.15, 0.05)
    hot = {"temperature": 10.0, "top_p": 0.6, "min_p": 0.0, "top_k": 0}
    assert probabilities(row, **hot).keys() == {0, 1}
    assert probabilities(row, **hot, samplers="temperature;top_p").keys() == {0, 1, 2}
    assert probabilities(row, **hot, samplers="top_p").keys() == {0, 1}
    assert close(probabilities(row, **hot, samplers=[]), dict(enumerate([0.5, 0.3, 0.15, 0.05])))


def test_edits_behind_filters() -> None:
    made = sampler(samplers="top_k;penalties;temperature", top_k=2, penalty_present=5.0)
    made.seed([0])
    row = np.asarray([3, 2, 1, 0], f32)
    ids, p = made.distribution(row)
    assert ids.tolist() == [1, 0]  # the penalty changes the order, but token 2 has gone before
    assert p == pytest.approx(softmax([2, 3 - 5]), abs=1e-6)
    dry = sampler(samplers="top_k;dry;temperature", top_k=2, dry_multiplier=4.0)
    dry.seed([7, 8, 0, 7, 8])
    assert dry.distribution(row)[0].tolist() == [1, 0]
    assert sampler(samplers="top_k;penalties;temperature", temperature=0, penalty_present=5.0).pick(row) == 0


def test_order_of_penalties_and_dry() -> None:
    history, row = [1, 2, 0, 1, 2], np.asarray([4, 0, 0], f32)
    knobs = {"penalty_repeat": 2.0, "dry_multiplier": 1.0, "penalty_last_n": 64}
    for order, want in (("penalties;dry", 4 / 2 - 1), ("dry;penalties", (4 - 1) / 2)):
        made = sampler(samplers=order, **knobs)
        made.seed(history)
        assert made._edited_row(row)[0] == want


@pytest.mark.parametrize("min_keep", [0, 1, 2, 3, 9])
def test_min_keep(min_keep: int) -> None:
    row = logs(0.5, 0.3, 0.15, 0.05)
    for knobs in ({"top_p": 0.1}, {"min_p": 0.9}, {"typical_p": 0.01}):
        assert len(probabilities(row, **knobs, min_keep=min_keep)) == min(max(min_keep, 1), 4)


def test_min_p_first_equals_min_p_later() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        row = random_row(rng, 200)
        first = probabilities(row, min_p=0.2)
        later = probabilities(row, min_p=0.2, samplers="top_k;min_p;temperature", top_k=200)
        assert first == later
        bias = {int(row.argmax()): -3.0}
        first = probabilities(row, min_p=0.2, logit_bias=bias)
        assert first == probabilities(
            row, min_p=0.2, samplers="top_k;min_p;temperature", top_k=200, logit_bias=bias
        )


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (None, DEFAULT_SAMPLERS),
        ("edskypmxt", DEFAULT_SAMPLERS),
        ("top_k;top-p;minp;temp", ("top_k", "top_p", "min_p", "temperature")),
        ("Top-K, nucleus", ("top_k", "top_p")),
        (["typical_p", "typ", "top-n-sigma"], ("typ_p", "typ_p", "top_n_sigma")),
        ("xtc", ("xtc",)),
        ("my_stage", ("my_stage",)),
        ("", ()),
        ([], ()),
    ],
)
def test_names_of_stages(text, want) -> None:
    assert samplers("samplers", text) == want


@pytest.mark.parametrize("wrong", [5, [5], ["a b"], [""], {"a": 1}.values()])
def test_names_that_cannot_be(wrong) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Params(samplers=wrong)
    assert caught.value.param == "samplers"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("xtc_probability", 1.1),
        ("xtc_threshold", -0.1),
        ("min_keep", -1),
        ("min_tokens", 1.5),
        ("mirostat", 3),
        ("adaptive_decay", 1.0),
        ("adaptive_target", 1.5),
        ("dry_multiplier", -1),
        ("dry_sequence_breakers", "x"),
        ("dry_sequence_breakers", [""]),
        ("dry_sequence_breakers", 5),
        ("top_n_sigma", math.nan),
        ("extra", 1),
    ],
)
def test_wrong_values_are_named(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Params(**{name: value})
    assert caught.value.param == name and name in str(caught.value)


def test_every_key_of_a_file() -> None:
    keys = {
        "sequence": "top_k;infill;temperature;min_p",
        "top_k": 5,
        "top_p": 0.5,
        "min_p": 0.25,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.25,
        "temp": 1.5,
        "penalty_last_n": 7,
        "penalty_repeat": 1.25,
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.5,
    }
    p = Params.from_metadata({f"general.sampling.{k}": v for k, v in keys.items()})
    assert p == Params(
        samplers=("top_k", "temperature", "min_p"), top_k=5, top_p=0.5, min_p=0.25, xtc_probability=0.5,
        xtc_threshold=0.25, temperature=1.5, penalty_last_n=7, penalty_repeat=1.25, mirostat=2, mirostat_tau=4.0,
        mirostat_eta=0.5,
    )  # fmt: skip
    assert Params.from_metadata({"general.sampling.sequence": "infill"}).samplers == DEFAULT_SAMPLERS


# -- copies and further stages ---------------------------------------------------------------------


def test_copies_of_samplers_with_memory() -> None:
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((40, 30)) * 2).astype(f32)
    for knobs in (
        {"mirostat": 1},
        {"mirostat": 2},
        {"adaptive_target": 0.3},
        {"dry_multiplier": 1.0, "dry_allowed_length": 1, "penalty_repeat": 1.2},
        {"xtc_probability": 0.5, "min_tokens": 30},
    ):
        made = sampler(SamplerVocab(end_ids=(1, 2)), **knobs)
        made.seed([1, 2, 3, 1, 2])
        for row in rows[:20]:
            made.accept(made.pick(row))
        twin, streams = made.copy(), []
        for one in (made, twin):
            streams.append([])
            for row in rows[20:]:
                streams[-1].append(one.pick(row))
                one.accept(streams[-1][-1])
        assert streams[0] == streams[1]


class Worst:
    """Draws the worst candidate; remembers what it saw."""

    name = "worst"
    order = 950
    limit = None

    def __init__(self) -> None:
        self.seen: list = []

    def seed(self, ids) -> None:
        self.seen.append(("seed", list(ids)))

    def accept(self, token) -> None:
        self.seen.append(("accept", token))

    def apply(self, c, context):
        self.seen.append(("row", context.row.tolist(), context.n_vocab))
        return c

    def select(self, c, context) -> int:
        return c.ids.size - 1


def test_further_stages_see_the_row_and_the_text() -> None:
    stage = Worst()
    made = Sampler(Params(**OFF, logit_bias={1: -0.5}, samplers="top_k;worst"), [stage])
    made.seed([1, 2])
    assert made.pick([1, 2, 3]) == 0
    made.accept(0)
    assert stage.seen == [("seed", [1, 2]), ("row", [1, 2, 3], 3), ("accept", 0)]


def test_places_of_further_stages() -> None:
    def names(samplers=None):
        made = Sampler(Params(min_p=0.1, xtc_probability=0.1, samplers=samplers), [Worst()])
        return [s.name for s in made._stages]

    assert names() == ["top_k", "top_p", "min_p", "xtc", "worst", "temperature"]
    assert names("temperature;worst;top_k") == ["temperature", "worst", "top_k"]
    assert names("top_k;temperature") == ["top_k", "worst", "temperature"]
    assert names("worst;top_k") == ["worst", "top_k"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_token_without_a_draw_teaches_mirostat_nothing(version: int) -> None:
    """A draw teaches once; tokens that follow without one (forced, or refused and drawn elsewhere) do not."""
    made = sampler(mirostat=version, mirostat_tau=2.0, mirostat_eta=0.3, temperature=1.0)
    steering = made._stages[-1]
    token = made.pick(logs(0.5, 0.3, 0.2))
    made.accept(token)
    learned = steering.mu
    assert learned != 4.0
    made.accept(token)
    assert steering.mu == learned

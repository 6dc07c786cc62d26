"""Speculation: guesses and their price, and that nothing but speed depends on them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from fake_model import FakeModel, wait_until
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import write_llama

import ggfw
from ggfw.cli.settings import SPEC_NAMES
from ggfw.engine import Engine
from ggfw.errors import InvalidRequest, UnsupportedError
from ggfw.execute.batch import Batch, Segment
from ggfw.graph import custom
from ggfw.library import Model
from ggfw.model import LoadedModel
from ggfw.request import Request
from ggfw.result import Result
from ggfw.sampling import Params, SamplerSetup
from ggfw.speculation import MODES, Speculator
from ggfw.speculation.costs import SURE, StepCosts
from ggfw.speculation.ngram import LONGEST, NgramIndex
from ggfw.speculation.odds import FORCED, PATIENCE, Odds, kind_of_match
from ggfw.speculation.speculator import GOOD_ROWS, MOST_ROWS, choices

DATA = Path(__file__).parent / "data/models"

# -- looking up -------------------------------------------------------------------------------------------------------


def test_look_up_finds_the_longest_match() -> None:
    index = NgramIndex([1, 2, 3, 4, 50, 51, 9, 2, 3, 4, 60, 61, 7, 1, 2, 3, 4])
    assert index.guess(2) == ([50, 51], 4)  # 1 2 3 4, not the later 2 3 4
    index.push(60)
    assert index.guess(3) == ([61, 7, 1], 4)


def test_of_equal_matches_the_latest_counts() -> None:
    assert NgramIndex([5, 6, 1, 5, 6, 2, 8, 5, 6]).guess(1) == ([2], 2)


def test_a_text_that_repeats_is_continued_over_its_end() -> None:
    assert NgramIndex([1, 2, 3, 1, 2, 3, 1]).guess(7)[0] == [2, 3, 1, 2, 3, 1, 2]


@pytest.mark.parametrize("ids", [[], [1], [1, 1], [1, 2, 3, 4, 5]])
def test_nothing_is_guessed_without_a_match(ids: list[int]) -> None:
    assert NgramIndex(ids).guess(4) == ([], 0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 6))
def test_look_up_against_its_definition(ids: list[int], most: int) -> None:
    """Token by token or at once: what follows the latest of the longest matches among the latest eight places."""
    whole, grown = NgramIndex(ids), NgramIndex()
    for token in ids:
        grown.push(token)
        grown.guess(1)
    guessed, length = whole.guess(most)
    assert (guessed, length) == grown.guess(most)
    n = len(ids)
    places: list[int] = []
    for key in (3, 2):
        places = [e for e in range(key, n) if n > key and ids[e - key : e] == ids[n - key :]][-8:]
        if places:
            break
    if not places:
        assert not guessed
        return

    def matching(end: int) -> int:
        k = 0
        while k < min(end, LONGEST) and ids[end - k - 1] == ids[n - k - 1]:
            k += 1
        return k

    assert length == max(map(matching, places))
    end = max(e for e in places if matching(e) == length)
    text = list(ids)
    for i in range(most):
        text.append(text[end + i])
    assert guessed == text[n:]


# -- prices -----------------------------------------------------------------------------------------------------------


def measured(costs: dict[int, float]) -> StepCosts:
    out = StepCosts(MOST_ROWS)
    for _ in range(SURE):
        for n, seconds in costs.items():
            out.note(n, seconds)
    return out


def test_costs_are_unknown_at_first_then_optimistic_then_measured() -> None:
    costs = StepCosts(8)
    assert costs.of(1) == costs.of(4) == 0.0
    costs = measured({1: 1.0})
    assert costs.of(1) == 1.0
    assert 1.0 < costs.of(4) < 1.5
    costs.note(4, 9.0)
    assert costs.of(4) < 1.5, "one measurement may be an accident"
    costs = measured({1: 1.0, 4: 3.0, 8: 3.1})
    assert costs.of(4) == pytest.approx(3.0)
    assert costs.of(6) <= 3.1
    assert costs.of(100) > 3.1


def test_costs_follow_the_machine() -> None:
    costs = measured({1: 1.0, 4: 2.0})
    for _ in range(300):
        costs.note(1, 2.0)
    assert costs.of(1) == pytest.approx(2.0, rel=0.05)
    costs.note(1, 1000.0)
    assert costs.of(1) < 2.5


def test_what_was_not_measured_for_long_is_tried_again() -> None:
    costs = measured({1: 1.0, 4: 9.0})
    for _ in range(400):
        costs.note(1, 1.0)
    assert costs.of(4) < 2.0
    costs.note(4, 9.0)
    assert costs.of(4) > 8.0


def test_odds_decide_how_many_are_worth_it() -> None:
    odds = Odds()
    cheap = lambda n: 0.05 * n  # noqa: E731
    dear = lambda n: 1.0 * n  # noqa: E731
    long, short = kind_of_match(30), kind_of_match(2)
    assert odds.worth(long, [1, 3, 7], cheap, 1.0) == 7
    assert odds.worth(long, [1, 3, 7], dear, 1.0) == 0
    for _ in range(6):
        odds.judge(short, 1, 0)
    assert odds.rate(short) < 0.15
    for _ in range(20):
        odds.judge(long, 7, 7)
    assert odds.rate(long) > 0.95
    assert odds.rate(short) < 0.15, "kinds are judged apart"


def test_what_does_not_pay_is_tried_again_ever_more_seldom() -> None:
    odds = Odds()
    tried = []
    for i in range(PATIENCE * 8):
        if odds.worth(0, [1, 3], lambda n: 10.0, 1.0):
            tried.append(i)
            odds.judge(0, 1, 0)
    assert len(tried) == 3
    assert tried[1] - tried[0] == 2 * PATIENCE


@pytest.mark.parametrize("n_rows", [1, 3, 16, 23])
@pytest.mark.parametrize("most", [0, 1, 2, 7, 15])
def test_choices_fill_tiles(n_rows: int, most: int) -> None:
    found = choices(n_rows, most)
    assert found == sorted(set(found))
    assert all(n == most or n_rows + n in GOOD_ROWS for n in found)
    assert max(found, default=0) == most


# -- in the engine ----------------------------------------------------------------------------------------------------


class Eager(Speculator):
    """Guesses wherever it can: costs are no argument, and some guesses are wrong on purpose.

    Attributes:
        wanted: what is known to come, by the id of the request.
    """

    dice = random.Random(0)
    wanted: ClassVar[dict[str, tuple[int, ...]]] = {}

    def note(self, n_rows: int, seconds: float) -> None:
        """Steps cost what ``propose`` says: whether guesses pay does not depend on how busy the machine is."""

    def propose(self, decoding: Any) -> list[list[int]]:
        for n in range(1, MOST_ROWS + 1):
            for _ in range(SURE):
                self.costs.note(n, 1.0)
        guesses = super().propose(decoding)
        for one, guess in zip(decoding, guesses, strict=True):
            room = min(self._room(one, MOST_ROWS // 2), 3)
            known = self.wanted.get(one.request.id, ())[len(one.tokens) :]
            if not guess and known and room > 0:
                guess += known[: self.dice.randrange(room + 1)]
            for i in range(len(guess)):
                if self.dice.random() < 0.1:
                    guess[i] = (guess[i] + 1) % 250
        return guesses


def eager(model: LoadedModel, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Engine:
    with monkeypatch.context() as patched:
        patched.setattr("ggfw.engine.Speculator", Eager)
        return Engine(model, spec="auto", **options)


@pytest.mark.parametrize("ubatch", [1, 3, 8])
def test_guesses_fit_a_small_batch(ubatch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside tokens that were taken without asking the model, which are rows of the next step, too."""
    options: dict[str, Any] = {
        "threads": 1,
        "ctx": 256,
        "n_parallel": 3,
        "ubatch": ubatch,
        "prefix_cache_mb": 0,
    }
    asked: list[dict[str, Any]] = [{}, {"regex": "(aaaaaaaaaaaaaaaaaaaa|bbbbbbbbbbbbbbbbbbbb)*"}] * 3
    with ggfw.load(DATA / "llama.gguf", spec="off", **options) as loaded, ExitStack() as stack:
        requests = [
            loaded.request([5, 6, 7] * 10, max_tokens=60, temperature=0, ignore_eos=True, **one)
            for one in asked
        ]
        want = [loaded.submit(request).result(60).token_ids for request in requests]
        engine = eager(loaded.loaded, monkeypatch)
        stack.callback(engine.close)
        handles = [engine.submit(request) for request in requests]
        assert [handle.result(60).token_ids for handle in handles] == want
        metrics = engine.metrics()
        assert metrics.drafts_proposed or ubatch == 1
        assert metrics.skipped or ubatch < 6


NAMES = ("llama", "gemma3", "qwen35", "nemotron_h", "mamba2")


@pytest.fixture(params=NAMES)
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    """Without speculation, and without a prefix tree: the engine beside it, on the same cache, has its own."""
    options: dict[str, Any] = {"threads": 1, "ctx": 256, "n_parallel": 4, "n_state_ring": 9}
    with ggfw.load(DATA / f"{request.param}.gguf", spec="off", prefix_cache_mb=0, **options) as loaded:
        yield loaded


def same(a: Result, b: Result) -> None:
    assert a.token_ids == b.token_ids
    assert (a.text, a.finish_reason, a.stop) == (b.text, b.finish_reason, b.stop)
    assert a.logprobs == b.logprobs


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.7, "seed": 1},
    {"temperature": 1.5, "seed": 2, "penalty_repeat": 1.2, "penalty_last_n": 16},
    {"temperature": 0, "logprobs": 3},
    {"temperature": 0.5, "seed": 3, "logprobs": 0, "ignore_eos": True},
    {"temperature": 0.9, "seed": 4, "mirostat": 2},  # a host row
]


def test_results_are_those_without_it(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = eager(model.loaded, monkeypatch)
    prompt = [5, 6, 7, 8, 9, 10, 5, 6, 7, 8, 9, 10, 5, 6, 7]
    jobs = [{"max_tokens": 30 + 3 * i, **options} for i, options in enumerate(OPTIONS)]
    plain = [model.submit(model.request(prompt, **job)).result(60) for job in jobs]
    Eager.wanted.update({f"job {i}": result.token_ids for i, result in enumerate(plain)})
    for _ in range(2):  # cold, and behind a prefix
        handles = [engine.submit(model.request(prompt, id=f"job {i}", **job)) for i, job in enumerate(jobs)]
        for handle, wanted in zip(handles, plain, strict=True):
            same(handle.result(60), wanted)
    metrics = engine.metrics()
    assert metrics.drafts_proposed > metrics.drafts_accepted > 0
    assert metrics.generated_tokens == 2 * sum(len(r.token_ids) for r in plain)
    assert metrics.steps < metrics.generated_tokens
    engine.close()
    assert model.loaded.cache.n_pages_used() == 0


def test_a_conversation_goes_on_behind_drafts(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays in the cache after an answer with drafts is what the next turn wants."""
    engine = eager(model.loaded, monkeypatch)
    prompt = [5, 6, 7, 8, 9, 10] * 4
    for _ in range(4):
        plain = model.submit(model.request(prompt, temperature=0, max_tokens=20, ignore_eos=True)).result(60)
        result = engine.submit(model.request(prompt, temperature=0, max_tokens=20, ignore_eos=True)).result(
            60
        )
        same(result, plain)
        prompt = [*prompt, *result.token_ids, 11, 12]
    assert engine.metrics().cached_tokens > 0
    engine.close()


def test_ends_inside_drafts_end_there(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = eager(model.loaded, monkeypatch)
    prompt = [5, 6, 7, 8, 9, 10, 5, 6, 7, 8, 9, 10, 5, 6, 7]
    whole = model.generate(prompt, temperature=0, max_tokens=40, ignore_eos=True)
    for n in (1, 2, 3, 5, 17):
        request = model.request(prompt, temperature=0, max_tokens=n, ignore_eos=True)
        assert engine.submit(request).result(60).token_ids == whole.token_ids[:n]
    middle = whole.text[len(whole.text) // 2 :][:3]
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "ignore_eos": True, "stop": middle}
    same(engine.submit(model.request(prompt, **options)).result(60), model.generate(prompt, **options))
    engine.close()
    assert model.loaded.cache.n_pages_used() == 0


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "kind": {"enum": ["alpha", "beta"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Model]:
    """A random llama that writes bytes."""
    path = write_llama(tmp_path / "tiny.gguf")
    with ggfw.load(path, threads=1, n_parallel=4, spec="off", prefix_cache_mb=0) as loaded:
        yield loaded


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_constraints_give_the_same_answers_in_fewer_steps(
    tiny: Model, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    engine = eager(tiny.loaded, monkeypatch)
    for seed in range(4):
        options: dict[str, Any] = {
            "temperature": temperature,
            "seed": seed,
            "max_tokens": 120,
            "schema": SCHEMA,
        }
        wanted = tiny.generate("Who?", **options)
        same(engine.submit(tiny.request("Who?", **options)).result(60), wanted)
    metrics = engine.metrics()
    assert metrics.steps < 0.7 * metrics.generated_tokens, "forced tokens cost steps of their own"
    engine.close()


def test_a_grammar_says_what_has_to_come(tiny: Model) -> None:
    constraint = tiny.request("x", schema=SCHEMA).constraint
    assert constraint is not None
    for token in tiny.tokenizer.encode('{"na', add_special=False):
        constraint.accept(token)
    forced = constraint.forced()  # type: ignore[attr-defined]
    assert tiny.tokenizer.detokenize(forced).startswith('me"')
    assert constraint.allowed_prefix([*forced, 3]) == len(forced)  # type: ignore[attr-defined]
    assert kind_of_match(LONGEST) < FORCED


# -- a draft model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1], ids=["itself", "a stranger"])
def test_a_draft_model_changes_nothing(
    tmp_path: Path, tiny: Model, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    small = LoadedModel.load(write_llama(tmp_path / "small.gguf", seed=seed), threads=1, n_parallel=4)
    engine = eager(tiny.loaded, monkeypatch, draft=small)
    jobs = [{"temperature": t, "seed": 5, "max_tokens": 60, "ignore_eos": True} for t in (0, 0.3, 1.0)]
    handles = [engine.submit(tiny.request(f"Word {i}", **job)) for i, job in enumerate(jobs)]
    results = [handle.result(60) for handle in handles]  # one engine after the other: they share an executor
    for i, (result, job) in enumerate(zip(results, jobs, strict=True)):
        same(result, tiny.generate(f"Word {i}", **job))
    metrics = engine.metrics()
    assert metrics.drafts_proposed > 0
    if not seed:
        assert metrics.steps < 0.8 * metrics.generated_tokens
    assert small.cache.n_pages_used() == 0
    engine.close()


def test_a_draft_model_with_windows_is_rewound(monkeypatch: pytest.MonkeyPatch) -> None:
    path = DATA / "gemma3.gguf"
    with ggfw.load(path, threads=1, ctx=256, spec="off", prefix_cache_mb=0) as model:
        engine = eager(model.loaded, monkeypatch, draft=LoadedModel.load(path, threads=1, ctx=256))
        job: dict[str, Any] = {"temperature": 1.0, "seed": 1, "max_tokens": 150, "ignore_eos": True}
        same(engine.submit(model.request([5, 6, 7], **job)).result(60), model.generate([5, 6, 7], **job))
        metrics = engine.metrics()
        assert metrics.drafts_proposed > metrics.drafts_accepted > 0
        engine.close()


def test_vocabularies_must_be_one() -> None:
    with pytest.raises(InvalidRequest, match="vocabular.*same family"):
        ggfw.load(DATA / "llama.gguf", ctx=64, draft=DATA / "gemma3.gguf")
    with pytest.raises(InvalidRequest, match="recurrent"):
        ggfw.load(DATA / "qwen35.gguf", ctx=64, draft=DATA / "qwen35.gguf")


def test_modes() -> None:
    assert SPEC_NAMES == MODES
    with pytest.raises(InvalidRequest, match="ngram"):
        ggfw.load(DATA / "llama.gguf", ctx=64, spec="medusa")
    with pytest.raises(InvalidRequest, match="draft model"):
        ggfw.load(DATA / "llama.gguf", ctx=64, spec="draft")
    with ggfw.load(DATA / "llama.gguf", ctx=64, spec="off") as model:
        assert "switched off" in model.info["speculation_off"]
    with ggfw.load(DATA / "qwen35.gguf", ctx=64) as model:
        assert model.info["speculation_off"] is None


def test_what_cannot_be_rewound_is_refused_by_name() -> None:
    with ggfw.load(DATA / "qwen35.gguf", ctx=64, n_state_ring=2) as model:
        assert "recurrent states" in model.info["speculation_off"]
        with pytest.raises(UnsupportedError, match="speculation is off for .*recurrent"):
            Speculator(model.loaded, "ngram")
    with ggfw.load(DATA / "llama.gguf", ctx=64, backend="reference") as model:
        assert "reference" in model.info["speculation_off"]
        result = model.generate([5, 6, 7, 5, 6, 7, 5, 6], temperature=0, max_tokens=8)
        assert len(result.token_ids) > 0


def test_states_of_foreign_ops_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with ggfw.load(DATA / "llama.gguf", ctx=64, spec="off") as model:
        node = model.loaded.graph.nodes[1]
        monkeypatch.setitem(node.attrs, "state", custom.StateSpec((4,)))
        assert f"recurrent state of {node.op} cannot be rewound" in str(Speculator(model.loaded).off)


# -- the distribution -------------------------------------------------------------------------------------------------


def draws(tiny: Model, n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(counts, expected counts) of the first and of the second token drawn behind drafts, ``n`` draws in all."""
    model = tiny.loaded
    executor, cache = model.executor, model.cache
    params = Params(temperature=1.0, top_k=20, top_p=0.95, min_p=0.0)
    prompt = [5, 6, 7, 8, 9, 10, 11]
    sequences = [cache.sequence() for _ in range(4)]
    for sequence in sequences:
        executor.step(Batch([Segment(sequence, prompt, prompt=True)]))

    def rewind() -> None:
        for sequence in sequences:
            sequence.n_positions = len(prompt)

    judge = executor.new_sampler(SamplerSetup(params), [])
    first = executor.step(Batch([Segment(sequences[0], [12])])).logits
    assert first is not None
    rewind()
    ids, probabilities = judge.distribution(first[0])
    draft = int(ids[2])  # neither the likeliest nor a rare one
    both = executor.step(Batch([Segment(sequences[0], [12, draft], n_outputs=2, n_draft=1)])).logits
    assert both is not None and (both[0] == first[0]).all()
    second_ids, second_probabilities = judge.distribution(both[1])
    rewind()
    counts = [np.zeros(model.n_vocab), np.zeros(model.n_vocab)]
    seed = 0
    while sum(c.sum() for c in counts) < n:
        segments = []
        for sequence in sequences:
            seed += 1
            sampler = executor.new_sampler(SamplerSetup(Params(**{**vars(params), "seed": seed})), [])
            segments.append(Segment(sequence, [12, draft, 3], n_outputs=3, n_draft=2, sampler=sampler))
        out = executor.step(Batch(segments))
        for i, token in enumerate(out.sampled):
            counts[0][token] += 1
            if out.followers[i]:
                assert token == draft
                counts[1][out.followers[i][0]] += 1
        rewind()
    for sequence in sequences:
        sequence.close()
    results = []
    for count, some, p in ((counts[0], ids, probabilities), (counts[1], second_ids, second_probabilities)):
        expected = np.zeros(model.n_vocab)
        expected[some] = p / p.sum() * count.sum()
        results.append((count, expected))
    return results


def passes_chi_square(count: np.ndarray, expected: np.ndarray) -> bool:
    """Whether counts are those of the distribution, at four standard deviations of the statistic."""
    assert count[expected == 0].sum() == 0
    seen = expected >= 5
    statistic = ((count[seen] - expected[seen]) ** 2 / expected[seen]).sum()
    freedom = seen.sum() - 1
    return bool(statistic < freedom + 4 * np.sqrt(2 * freedom))


def test_draws_behind_drafts_have_the_distribution_of_the_rows(tiny: Model) -> None:
    for count, expected in draws(tiny, 6000):
        assert passes_chi_square(count, expected)
        off = np.roll(count, 1)
        assert off[expected == 0].sum() or not passes_chi_square(off, expected), "the test can fail"


@pytest.mark.slow
def test_a_hundred_thousand_draws(tiny: Model) -> None:
    for count, expected in draws(tiny, 100_000):
        assert passes_chi_square(count, expected)


# -- real models ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_copying_is_faster_and_other_text_no_slower(smollm2_path: Path) -> None:
    import runpy

    measure = runpy.run_path(str(Path(__file__).parents[1] / "bench/speculation.py"))["measure"]
    rows = {row["case"]: row for row in measure(str(smollm2_path), None, 5)}
    print({name: round(row["ratio"], 3) for name, row in rows.items()})
    assert rows["copy and edit"]["ratio"] >= 1.5
    assert rows["random tokens"]["ratio"] >= 0.97


class Watcher:
    """In place of a speculator: guesses nothing, and notes whether prompts were being read when it was asked."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.beside_prompts: list[bool] = []

    def propose(self, decoding: list[Any]) -> list[list[int]]:
        self.beside_prompts.append(any(not one.decoding for one in self.engine.scheduler.running))
        return [[] for _ in decoding]

    def note(self, n_rows: int, seconds: float) -> None:
        """Nothing is learned."""


def test_nothing_is_guessed_while_prompts_are_read() -> None:
    """There, a row of a guess takes a row of a prompt's time, and the budget is full."""
    model = FakeModel(endless=True, n_ctx=1024, n_parallel=2, max_rows=16)
    model.executor.delay = 0.002  # the long request must not end before the other one has come
    engine = Engine(model)
    watcher = Watcher(engine)
    engine.scheduler.speculator = watcher  # type: ignore[assignment]
    long = engine.submit(Request([1, 2], Params(temperature=0), max_tokens=400))
    wait_until(lambda: len(watcher.beside_prompts) > 2)
    engine.submit(Request([3] * 600, Params(temperature=0), max_tokens=2)).result(20)
    together = [batch for batch in model.executor.batches if len(batch) == 2]
    assert len(together) > 20, "the prompt was read in chunks beside the other request"
    long.result(20)
    engine.close()
    assert not any(watcher.beside_prompts)

"""Prefix reuse: what a request finds evaluated already, it does not evaluate again, and nothing else changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_model import FakeModel, wait_until

import ggfw
from ggfw.cache import PAGE_SIZE
from ggfw.engine import Engine
from ggfw.errors import InvalidRequest, NonFiniteLogits
from ggfw.library import Model
from ggfw.request import Request
from ggfw.result import Result
from ggfw.sampling import Params

DATA = Path(__file__).parent / "data/models"
#: Plain, windows, windows with shared layers, attention sinks with windows, latent; then recurrent state.
PLAIN = ("llama", "gemma3", "gemma4-e2b", "gpt-oss-f32", "deepseek2")
RECURRENT = ("qwen35", "nemotron_h", "lfm2", "mamba2")


def load(name: str, **options: Any) -> Model:
    return ggfw.load(DATA / f"{name}.gguf", **{"threads": 1, "ctx": 1024, "n_parallel": 4, **options})


@pytest.fixture(scope="module", params=[*PLAIN, *RECURRENT])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    with load(request.param) as model:
        yield model


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    """Each test begins with an empty tree."""
    if "model" in request.fixturenames:
        request.getfixturevalue("model").engine.reuse.tree.clear()


def ids(n: int, seed: int, n_vocab: int = 250) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(5, n_vocab) for _ in range(n)]


def ask(model: Model, prompt: list[int], n: int = 12, **options: Any) -> Result:
    options = {"temperature": 0, "ignore_eos": True, **options}
    return model.generate(prompt, max_tokens=n, **options)


def cold(model: Model, prompt: list[int], n: int = 12, **options: Any) -> Result:
    """The answer of a request that takes nothing from anybody."""
    request = model.request(prompt, max_tokens=n, **{"temperature": 0, "ignore_eos": True, **options})
    request.cache_prompt = False
    return model.submit(request).result(60)


def evaluated(model: Model) -> int:
    return model.engine.metrics().prompt_tokens


def test_ten_turns_evaluate_what_is_new(model: Model) -> None:
    prompt = ids(200, 1)
    for turn in range(10):
        new, before = 10 + 7 * turn, evaluated(model)
        result = ask(model, prompt, 20)
        done = evaluated(model) - before
        if turn:
            assert done <= new + PAGE_SIZE
            assert result.usage.cached_tokens >= len(prompt) - new - PAGE_SIZE
        assert done + result.usage.cached_tokens == len(prompt)
        assert result.token_ids == cold(model, prompt, 20).token_ids
        prompt = [*prompt, *result.token_ids, *ids(new + 7, 100 + turn)]
        assert model.loaded.cache.n_pages_used() == 0
    assert model.loaded.cache.n_slots_used == 0


def test_three_branches_of_one_prompt(model: Model) -> None:
    """Regenerating: the prompt is there up to its last token, whatever the answers were, and however long."""
    prompt = ids(147, 2)
    first = ask(model, prompt, 70, temperature=1.0, seed=1)
    for seed in (2, 3, 4):
        before = evaluated(model)
        again = ask(model, prompt, 70, temperature=1.0, seed=seed)
        assert evaluated(model) - before == 1 and again.usage.cached_tokens == len(prompt) - 1
        assert again.token_ids != first.token_ids
        assert again.token_ids == cold(model, prompt, 70, temperature=1.0, seed=seed).token_ids
    # Each branch goes on where it ended.
    for answer in (first, again):
        before, new = evaluated(model), 9
        longer = [*prompt, *answer.token_ids, *ids(new, 3)]
        assert ask(model, longer).token_ids == cold(model, longer).token_ids
        assert evaluated(model) - before - len(longer) <= new + PAGE_SIZE


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 64, 65])
def test_a_full_hit_gives_the_same_logits_as_a_cold_run(model: Model, n: int) -> None:
    prompt = ids(n, n)
    first = ask(model, prompt, 8, logprobs=5)
    for _ in range(2):
        warm = ask(model, prompt, 8, logprobs=5)
        assert warm.token_ids == first.token_ids and warm.logprobs == first.logprobs
        assert warm.usage.cached_tokens <= n - 1
        assert warm.usage.prompt_tokens == first.usage.prompt_tokens == n
    extended = [*prompt, *ids(5, 99)]
    for other in (extended, prompt[: n - 1]):
        if other:
            assert ask(model, other, 8, logprobs=5).logprobs == cold(model, other, 8, logprobs=5).logprobs


def test_a_system_prompt_is_shared_by_different_questions(model: Model) -> None:
    system = ids(600, 5)
    ask(model, [*system, *ids(60, 6)])
    for seed in (7, 8):
        prompt = [*system, *ids(40, seed)]
        before = evaluated(model)
        assert ask(model, prompt).token_ids == cold(model, prompt).token_ids
        # Recurrent state can only be taken up where a snapshot stands: at 512.
        kept = 512 if model.engine.reuse.memory.state_bytes else 600
        assert evaluated(model) - before - len(prompt) <= len(prompt) - kept + PAGE_SIZE


def test_in_the_middle_of_a_page_nothing_leaks_to_the_other_branch(model: Model) -> None:
    common = ids(40, 10)
    one, two = [*common, *ids(30, 11)], [*common, *ids(30, 12)]
    want = {tuple(p): cold(model, p, 40).token_ids for p in (one, two)}
    for _ in range(2):
        handles = [
            model.submit(model.request(p, max_tokens=40, temperature=0, ignore_eos=True)) for p in (one, two)
        ]
        assert [h.result(60).token_ids for h in handles] == [want[tuple(p)] for p in (one, two)]
        assert ask(model, one, 40).token_ids == want[tuple(one)]


def test_choices_share_the_prompt(model: Model) -> None:
    prompt = ids(100, 20)

    def choices(n: int, seed: int) -> list[Result]:
        requests = [
            model.request(prompt, max_tokens=16, temperature=1.0, seed=seed + i, ignore_eos=True)
            for i in range(n)
        ]
        return [h.result(60) for h in model.engine.submit_choices(requests)]

    before = evaluated(model)
    four = choices(4, 7)
    # One whole prompt; each of the others reads the last token, which gives its first row of logits.
    assert evaluated(model) - before == len(prompt) + 3
    assert len({r.token_ids for r in four}) == 4
    assert four[0].token_ids == cold(model, prompt, 16, temperature=1.0, seed=7).token_ids
    assert [r.token_ids for r in choices(4, 7)] == [r.token_ids for r in four]
    assert [r.seed for r in four] == [7, 8, 9, 10]
    library = model.generate_choices(prompt, 4, max_tokens=16, temperature=1.0, seed=7, ignore_eos=True)
    assert [r.token_ids for r in library] == [r.token_ids for r in four]
    with pytest.raises(InvalidRequest):
        model.generate_choices(prompt, 0)
    options = {"max_tokens": 8, "temperature": 1.0, "seed": 7, "ignore_eos": True}
    talks = model.chat_choices([ggfw.user("hi")], 2, **options)
    assert talks[0].token_ids == model.chat([ggfw.user("hi")], **options).token_ids != talks[1].token_ids


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen35"])
def test_without_a_cache_choices_share_all_the_same(name: str) -> None:
    with load(name, prefix_cache_mb=0, n_parallel=2) as model:
        prompt = ids(70, 21)
        requests = [
            model.request(prompt, max_tokens=9, temperature=1.0, seed=i, ignore_eos=True) for i in range(5)
        ]
        got = [h.result(60).token_ids for h in model.engine.submit_choices(requests)]
        first = evaluated(model)
        assert len(prompt) < first < 5 * len(prompt)
        assert got == [ask(model, prompt, 9, temperature=1.0, seed=i).token_ids for i in range(5)]
        assert evaluated(model) - first == 5 * len(prompt)
        assert sum(pool.n_kept for pool in model.loaded.cache.pools) == 0 and not len(model.engine.reuse.tree)


def test_choices_have_one_prompt() -> None:
    model = FakeModel("x")
    engine = Engine(model)
    requests = [Request([5, n], Params(temperature=0)) for n in (6, 7)]
    for bad in (requests, []):
        with pytest.raises(InvalidRequest) as caught:
            engine.submit_choices(bad)
        assert caught.value.param == "n"


def test_seeds_do_not_depend_on_company_or_cache(model: Model) -> None:
    prompt = ids(50, 30)
    options: dict[str, Any] = {"temperature": 1.0, "seed": 7, "n": 16}
    alone = ask(model, prompt, **options).token_ids
    assert ask(model, prompt, **options).token_ids == alone, "after a hit"
    others = [model.submit(model.request(ids(33, s), max_tokens=30, temperature=1.0)) for s in range(3)]
    assert ask(model, prompt, **options).token_ids == alone, "beside others"
    for other in others:
        other.result(60)
    assert len({ask(model, prompt, 16, temperature=1.0, seed=None).token_ids for _ in range(5)}) > 1


def test_keys_keep_requests_apart(model: Model) -> None:
    prompt = ids(64, 40)

    def cached(key: str | None) -> int:
        request = model.request(prompt, max_tokens=2, ignore_eos=True)
        request.cache_key = key
        return model.submit(request).result(60).usage.cached_tokens

    assert [cached(k) for k in ("a", "b", None)] == [0, 0, 0]
    assert [cached(k) for k in ("a", "b", None)] == [63, 63, 63]


def test_a_request_can_stay_out_of_it(model: Model) -> None:
    prompt = ids(64, 41)
    assert cold(model, prompt).usage.cached_tokens == 0
    assert ask(model, prompt).usage.cached_tokens == 0, "it left nothing"
    assert cold(model, prompt).usage.cached_tokens == 0, "it took nothing"


@pytest.mark.parametrize("first_bad", [0, 3])
@pytest.mark.parametrize("native", [False, True])
def test_pages_of_non_finite_requests_do_not_enter_the_tree(native: bool, first_bad: int) -> None:
    bad_prompt, good_prompt = [66] * 70, [67] * 70

    def policy(tokens: list[int], n_prompt: int) -> np.ndarray:
        row = np.full(264, -1.0, np.float32)
        row[ord("g")] = 5
        if tokens[0] == 66 and len(tokens) - n_prompt >= first_bad:
            row[:] = np.nan
        return row

    model = FakeModel(policy=policy, native=native)
    engine = Engine(model)
    good = engine.submit(Request(good_prompt, Params(temperature=0), max_tokens=20))
    bad = engine.submit(Request(bad_prompt, Params(temperature=0), max_tokens=20))
    with pytest.raises(NonFiniteLogits):
        bad.result(5)
    assert good.result(5).text == "g" * 20
    wait_until(lambda: not engine.scheduler)
    assert {node.tokens[0] for node in engine.reuse.tree} == {67}
    assert model.cache.n_pages_used() == 0
    engine.close()


def test_a_budget_is_kept() -> None:
    model = FakeModel("abc", n_ctx=1024)
    engine = Engine(model)
    engine.reuse.tree.budget = 5 * model.executor.memory.page_bytes[0]
    for n in range(10):
        engine.submit(Request([n + 5] * 90, Params(temperature=0))).result(5)
        assert engine.metrics().prefix_bytes <= engine.reuse.tree.budget
    assert engine.metrics().prefix_evictions > 10
    # The latest is there, the first is not.
    assert engine.submit(Request([14] * 90, Params(temperature=0))).result(5).usage.cached_tokens == 89
    assert engine.submit(Request([5] * 90, Params(temperature=0))).result(5).usage.cached_tokens == 0
    engine.close()


@pytest.mark.parametrize("n", [127, 120, 97, 96])
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen35"])
def test_a_prompt_that_fills_the_pool_comes_again(name: str, n: int) -> None:
    """All pages hold the prompt itself: none is left for the copy of its last one."""
    prompt = ids(n, n)
    with load(name, ctx=128, n_parallel=1) as model:
        first = ask(model, prompt, 128 - n)
        for _ in range(2):
            handle = model.submit(model.request(prompt, max_tokens=128 - n, temperature=0, ignore_eos=True))
            again = handle.result(20)
            assert again.token_ids == first.token_ids
            if name != "qwen35":  # a snapshot may stand in the last page only
                assert again.usage.cached_tokens >= n - 2 * PAGE_SIZE
        assert model.loaded.cache.n_pages_used() == 0


@pytest.mark.parametrize("seed", [0, -2, -3, 2**63 - 1, 2**64 - 2, 2**64 - 1])
def test_seeds_of_choices_wrap_around(seed: int) -> None:
    """None of them is -1, which stands for a fresh one, or too large."""
    with load("llama", ctx=64) as model:
        twice = [
            [r.token_ids for r in model.generate_choices([5, 6], 4, seed=seed, max_tokens=12)]
            for _ in range(2)
        ]
        assert twice[0] == twice[1] and len(set(twice[0])) == 4
        assert twice[0][0] == model.generate([5, 6], seed=seed, max_tokens=12).token_ids

"""A token that is the only one allowed is taken without asking the model, where that changes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_model import FakeModel
from test_constraints_engine import SCHEMA, check
from test_engine_equality import Rows, back_to_zero

import ggfw
from ggfw.chat.dialect import Reasoning
from ggfw.constraints import Compiler, Grammar
from ggfw.constraints.budget import ReasoningBudget
from ggfw.engine import Engine
from ggfw.library import Model
from ggfw.request import Request
from ggfw.result import Result
from ggfw.sampling import Params
from ggfw.stepping import MOST_AHEAD, Stepper

DATA = Path(__file__).parent / "data/models"


@pytest.fixture(scope="module", params=["llama", "gemma3", "qwen35", "nemotron_h"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    with ggfw.load(DATA / f"{request.param}.gguf", threads=1, ctx=512, n_parallel=4, spec="off") as loaded:
        yield loaded


def prompts(n: int) -> list[list[int]]:
    dice = random.Random(7)
    return [[dice.randrange(5, 250) for _ in range(dice.randrange(1, 60))] for _ in range(n)]


def ask(model: Model, prompt: list[int], **options: Any) -> Result:
    options = {"temperature": 0, "schema": SCHEMA, "max_tokens": 200, "cache_prompt": False, **options}
    return model.generate(prompt, **options)


def skipped(model: Model) -> int:
    return model.engine.metrics().skipped


def test_the_tokens_are_the_same_and_steps_are_spared(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(model)
    with monkeypatch.context() as without:
        without.setattr(Stepper, "_skip", lambda *_: None)
        asked = [ask(model, prompt) for prompt in prompts(6)]
        whole = [rows.of(result) for result in asked]
        assert skipped(model) == 0
    for prompt, want, want_rows in zip(prompts(6), asked, whole, strict=True):
        before = model.engine.metrics()
        got = ask(model, prompt)
        after = model.engine.metrics()
        n = after.skipped - before.skipped
        assert (got.token_ids, got.text, got.finish_reason) == (
            want.token_ids,
            want.text,
            want.finish_reason,
        )
        assert n > 10 and after.steps - before.steps == len(got.token_ids) - n
        assert after.generated_tokens - before.generated_tokens == len(got.token_ids)
        # Every row that was computed has the bits that it had token by token.
        own = iter(want_rows)
        assert all(row in own for row in rows._found.pop(got.id))


def test_together_on_few_pages_with_preemptions(model: Model) -> None:
    alone = [ask(model, prompt).token_ids for prompt in prompts(12)]
    pools = [(pool, pool.n_pages) for pool in model.loaded.cache.pools]
    for pool, _ in pools:
        pool.n_pages = 9
    preemptions = model.engine.metrics().preemptions
    try:
        for _ in range(2):
            handles = [
                model.submit(model.request(prompt, temperature=0, schema=SCHEMA, max_tokens=200))
                for prompt in prompts(12)
            ]
            assert [handle.result(60).token_ids for handle in handles] == alone
        assert model.engine.metrics().preemptions > preemptions
        back_to_zero(model)
    finally:
        for pool, n_pages in pools:
            pool.n_pages = n_pages


def test_beside_drafts(model: Model) -> None:
    engine = Engine(model.loaded, spec="auto")
    for prompt in prompts(3):
        request = model.request(prompt, temperature=0, schema=SCHEMA, max_tokens=200, cache_prompt=False)
        assert engine.submit(request).result(60).token_ids == ask(model, prompt).token_ids
    assert engine.metrics().skipped > 10
    engine.close()


def test_rows_that_matter_are_computed(model: Model) -> None:
    """Log-probabilities are of rows, a draw moves its generator, and a biased token may be refused."""
    prompt = prompts(1)[0]
    before = skipped(model)
    noted = ask(model, prompt, logprobs=2)
    assert noted.logprobs is not None and len(noted.logprobs) == len(noted.token_ids)
    check(ask(model, prompt, temperature=1.0, seed=1).text)
    assert skipped(model) == before
    assert ask(model, prompt).token_ids == noted.token_ids and skipped(model) > before
    with pytest.raises(ggfw.GenerationError, match="suppressed"):
        ask(model, prompt, logit_bias={model.tokenizer.encode('"', add_special=False)[-1]: float("-inf")})


def test_ends_among_skipped_tokens() -> None:
    """Limits and stop strings hold there, too, and no more than some tokens go into one step."""
    word = "abcdefghijklmnopqrstuvwxyz"
    model = FakeModel(n_ctx=128)
    engine = Engine(model)
    compiler = Compiler(model.tokenizer)

    def ask(**options: Any) -> Result:
        constraint = compiler.compile(Grammar.regex(f"{word}!?"))
        request = Request([1, 2, 3], Params(temperature=0), constraint=constraint, **options)
        return engine.submit(request).result(5)

    for n in (1, 2, 5, MOST_AHEAD, MOST_AHEAD + 1, MOST_AHEAD + 2, 26):
        got = ask(max_tokens=n)
        assert (got.text, got.finish_reason, len(got.token_ids)) == (word[:n], "length", n)
    got = ask(stop=("hij",))
    assert (got.text, got.finish_reason, got.stop) == ("abcdefg", "stop", "hij")
    model.executor.batches.clear()
    assert ask(max_tokens=26).text == word
    assert [len(batch[0][0]) for batch in model.executor.batches] == [1, MOST_AHEAD + 1]
    assert model.cache.n_pages_used() == 0
    engine.close()


def test_the_words_that_close_a_reasoning_block() -> None:
    """They are one step, whatever the model would have said."""
    block = Reasoning("</think>", True, "<think>", forced="\nThat is enough.\n</think>\n\n")
    n_forced = len(block.forced)
    for limit in (0, 3):
        model = FakeModel(endless=True, n_ctx=128)
        engine = Engine(model)
        constraint = ReasoningBudget(None, model.tokenizer, block, limit)
        request = Request(
            [1, 2], Params(temperature=0), constraint=constraint, max_tokens=limit + n_forced + 4
        )
        result = engine.submit(request).result(5)
        assert result.text == "x" * limit + block.forced + "xxxx"
        metrics = engine.metrics()
        assert metrics.skipped == n_forced - -(-n_forced // (MOST_AHEAD + 1)) + (limit > 0)
        assert metrics.steps == len(result.token_ids) - metrics.skipped
        engine.close()

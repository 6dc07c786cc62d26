"""The engine on a scripted model: finish reasons, limits, stop strings, cancellation, deadlines, the queue."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest
from fake_model import SPECIALS, FakeModel, wait_until
from hypothesis import given, settings
from hypothesis import strategies as st

from ggfw.chat.deltas import TextDelta
from ggfw.engine import Engine
from ggfw.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    GenerationCanceled,
    GenerationError,
    InvalidRequest,
    NonFiniteLogits,
    QueueFull,
)
from ggfw.request import Request, resolve_params
from ggfw.result import Result
from ggfw.sampling import Params

GREEDY = Params(temperature=0)


def request(model: FakeModel, prompt: str = "hi", **more: Any) -> Request:
    return Request(model.tokenizer.encode(prompt), more.pop("params", GREEDY), **more)


def run(model: FakeModel, prompt: str = "hi", **more: Any) -> tuple[Result, str]:
    """Run one request; gives its result and the joined stream, which must be the same text."""
    engine = Engine(model)
    try:
        handle = engine.submit(request(model, prompt, **more))
        streamed = "".join(d.text for d in handle if isinstance(d, TextDelta))
        result = handle.result(5)
        assert streamed == result.text
        assert model.cache.n_pages_used() == 0
        return result, streamed
    finally:
        engine.close()


@pytest.mark.parametrize("native", [False, True])
def test_an_end_token_stops_and_is_counted_but_not_shown(native: bool) -> None:
    model = FakeModel("hello", native=native)
    result, _ = run(model)
    assert (result.text, result.finish_reason) == ("hello", "stop")
    assert result.token_ids == (*b"hello", model.tokenizer.eos_id)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (3, 6)
    assert result.timings.load == 1.5
    assert result.timings.total >= result.timings.ttft > 0


def test_one_executor_call_per_decode_step() -> None:
    model = FakeModel("hello", native=True)
    run(model)
    assert [len(b) for b in model.executor.batches] == [1] * 6  # the prompt gives the first of six tokens
    assert [b[0][2] for b in model.executor.batches] == [True] + [False] * 5


@pytest.mark.parametrize("marker", [s for s in SPECIALS if s not in ("<s>", "<|im_start|>")])
def test_every_end_of_turn_token_ends_generation(marker: str) -> None:
    model = FakeModel()
    script = [*b"ok", model.tokenizer.specials[marker], *b"junk"]
    model._script = script
    result, _ = run(model)
    assert (result.text, result.finish_reason) == ("ok", "stop")
    result, _ = run(model, ignore_eos=True, max_tokens=7)
    assert (result.text.replace("\0", ""), result.finish_reason) == ("okjunk", "length")
    assert not model.tokenizer.eog_ids & set(result.token_ids)  # suppressed: the next best one came instead
    assert result.usage.completion_tokens == 7


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_max_tokens_is_exact(limit: int) -> None:
    model = FakeModel(endless=True)
    result, _ = run(model, max_tokens=limit)
    assert (result.text, result.finish_reason) == ("x" * limit, "length")
    assert len(model.executor.batches) == limit


@pytest.mark.parametrize("limit", [None, -1, 10_000])
def test_without_max_tokens_the_context_is_the_end(limit: int | None) -> None:
    model = FakeModel(endless=True, n_ctx=64)
    result, _ = run(model, "a" * 59, max_tokens=limit)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (60, 4)
    assert result.finish_reason == "length"


@pytest.mark.parametrize("n", [64, 100])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(n: int) -> None:
    model = FakeModel(n_ctx=64)
    with pytest.raises(ContextLengthExceeded) as caught:
        Engine(model).submit(Request([65] * n, GREEDY))
    assert (caught.value.n_prompt_tokens, caught.value.n_ctx) == (n, 64)


@pytest.mark.parametrize("value", [0, -2, "5", 1.0, True])
def test_bad_max_tokens(value: object) -> None:
    model = FakeModel("x")
    with pytest.raises(InvalidRequest) as caught:
        Engine(model).submit(request(model, max_tokens=value))
    assert caught.value.param == "max_tokens"


def test_bad_prompts() -> None:
    engine = Engine(FakeModel("x"))
    with pytest.raises(InvalidRequest, match="no tokens"):
        engine.submit(Request([], GREEDY))
    with pytest.raises(InvalidRequest, match="9999"):
        engine.submit(Request([1, 9999], GREEDY))
    with pytest.raises(InvalidRequest, match="embeddings"):
        Engine(FakeModel("x", cacheable=False)).submit(Request([1], GREEDY))


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "reason"),
    [
        (["MN", "O", "PQ", "R", "S"], ["MNOPQR"], "", "stop"),
        (["\nHum", "ble"], ["\nHuman:"], "\nHumble", "stop"),
        (["gard", "en"], ["enX"], "garden", "stop"),
        (["go ", "halt!"], ["halt"], "go ", "stop"),
        (["ab", "cd"], ["abc", "ab"], "", "stop"),
    ],
)
def test_stop_strings_over_token_borders(pieces: list[str], stop: list[str], text: str, reason: str) -> None:
    model = FakeModel(pieces=pieces)
    model._script = [model.tokenizer.id_of(p) for p in pieces]
    result, _ = run(model, stop=stop)
    assert (result.text, result.finish_reason) == (text, reason)
    assert result.stop in (None, *stop)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=8),
    st.text("abc", min_size=1, max_size=3),
)
def test_the_cut_of_the_text_does_not_matter(pieces: list[str], stop: str) -> None:
    model = FakeModel(pieces=pieces)
    model._script = [model.tokenizer.id_of(p) for p in pieces]
    result, _ = run(model, stop=[stop])
    whole = "".join(pieces)
    assert result.text == whole.split(stop, 1)[0]
    assert result.stop == (stop if stop in whole else None)


def test_characters_arrive_whole() -> None:
    model = FakeModel("😀!")
    engine = Engine(model)
    texts = [d.text for d in engine.submit(request(model)) if isinstance(d, TextDelta)]
    assert "".join(texts) == "😀!" and not any("\ufffd" in t for t in texts)
    assert run(model, max_tokens=2)[0].text in ("", "\ufffd")
    model._script = [0xFF, *b"ok"]
    assert run(model)[0].text == "\ufffdok"


def test_many_requests_share_steps_and_do_not_mix() -> None:
    scripts = {f"q{n};": f"answer {n} " * (n + 1) for n in range(12)}
    model = FakeModel(scripts=scripts, n_parallel=4, max_rows=16)
    engine = Engine(model)
    handles = {key: engine.submit(request(model, "x" * (3 * n) + key)) for n, key in enumerate(scripts)}
    for key, handle in handles.items():
        assert handle.result(10).text == scripts[key]
    widths = [len(b) for b in model.executor.batches]
    assert max(widths) == 4
    assert any({p for _, _, p in b} == {True, False} for b in model.executor.batches), (
        "prompts and decode rows mix"
    )
    wait_until(lambda: not engine.scheduler)
    assert model.cache.n_pages_used() == 0


def test_announced_requests_start_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggfw.engine._GATHER", 30.0)
    model = FakeModel("ab", n_parallel=4)
    engine = Engine(model)
    with engine.announce(), engine.announce():
        first = engine.submit(request(model))
        time.sleep(0.05)  # idle, and yet it does not begin
        assert not model.executor.batches
        second = engine.submit(request(model))
    assert first.result(5).text == second.result(5).text == "ab"
    assert len(model.executor.batches[0]) == 2
    engine.close()


def test_an_announced_request_that_never_comes_holds_nobody_up() -> None:
    model = FakeModel("ab")
    engine = Engine(model)
    with engine.announce():
        assert engine.submit(request(model)).result(5).text == "ab"
    engine.close()


def test_long_prompts_are_cut_and_only_the_last_row_is_an_output() -> None:
    model = FakeModel("y", max_rows=16)
    run(model, "p" * 40)
    prompts = [b[0] for b in model.executor.batches if b[0][2]]
    assert [len(t) for t, _, _ in prompts] == [16, 16, 9]
    assert [n for _, n, _ in prompts] == [0, 0, 1]


def test_a_model_that_cannot_be_cut_gets_its_prompt_whole() -> None:
    model = FakeModel("y", max_rows=64, chunkable=False)
    run(model, "p" * 60)
    assert len(model.executor.batches[0][0][0]) == 61
    with pytest.raises(ContextLengthExceeded):
        Engine(model).submit(request(model, "p" * 70))


def test_cancel_while_running_frees_everything_and_keeps_the_partial_result() -> None:
    model = FakeModel(endless=True, n_ctx=4096)
    model.executor.delay = 0.002
    engine = Engine(model)
    handle = engine.submit(request(model))
    for _ in handle:
        break
    handle.cancel()
    with pytest.raises(GenerationCanceled) as caught:
        handle.result(2)
    assert caught.value.partial.finish_reason == "canceled"
    assert set(caught.value.partial.text) == {"x"}
    assert model.cache.n_pages_used() == 0 and engine.n_running == 0
    assert engine.submit(request(model, max_tokens=2)).result(2).text == "xx"


def test_cancel_aborts_a_long_step() -> None:
    model = FakeModel(endless=True)
    model.executor.delay = 30
    engine = Engine(model)
    handle = engine.submit(request(model))
    wait_until(lambda: bool(model.executor.batches))
    start = time.monotonic()
    handle.cancel()
    with pytest.raises(GenerationCanceled):
        handle.result(5)
    assert time.monotonic() - start < 1


def test_a_canceled_request_in_the_queue_never_starts() -> None:
    model = FakeModel("abc", n_parallel=1)
    model.executor.gate = threading.Event()
    engine = Engine(model)
    first, second = engine.submit(request(model)), engine.submit(request(model, "second"))
    second.cancel()
    model.executor.gate.set()
    assert first.result(5).text == "abc"
    with pytest.raises(GenerationCanceled):
        second.result(5)
    assert not any(len(t) > 3 for b in model.executor.batches for t, _, _ in b)


def test_deadline() -> None:
    model = FakeModel(endless=True, n_ctx=4096)
    model.executor.delay = 0.005
    engine = Engine(model)
    handle = engine.submit(request(model, timeout=0.05))
    with pytest.raises(DeadlineExceeded) as caught:
        handle.result(5)
    assert caught.value.partial.finish_reason == "deadline" and caught.value.partial.text
    assert model.cache.n_pages_used() == 0


def test_the_queue_is_bounded() -> None:
    model = FakeModel("a", n_parallel=1)
    model.executor.gate = threading.Event()
    engine = Engine(model, max_queue=2)
    handles = [engine.submit(request(model)) for _ in range(3)]
    with pytest.raises(QueueFull) as caught:
        engine.submit(request(model))
    assert caught.value.retry_after >= 1
    model.executor.gate.set()
    assert [h.result(5).text for h in handles] == ["a"] * 3
    assert engine.submit(request(model)).result(5).text == "a"


def test_waiting_for_pages_is_not_an_error() -> None:
    model = FakeModel("abc", n_ctx=64, n_parallel=4)
    model.cache.pools[0].take(6)  # leaves room for two requests of a page each
    engine = Engine(model)
    handles = [engine.submit(request(model)) for _ in range(3)]
    assert [h.result(5).text for h in handles] == ["abc"] * 3
    assert all(len(b) <= 2 for b in model.executor.batches)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_non_finite_logits_fail_that_request_only(native: bool, bad: float) -> None:
    def policy(tokens: list[int], n_prompt: int) -> np.ndarray:
        row = np.full(264, bad if b"bad" in bytes(t for t in tokens if t < 256) else -1.0, np.float32)
        if np.isfinite(row[0]):
            row[ord("g")] = 5
        return row

    model = FakeModel(policy=policy, native=native)
    engine = Engine(model)
    good = engine.submit(request(model, "good", max_tokens=20))
    broken = engine.submit(request(model, "bad", max_tokens=20))
    with pytest.raises(NonFiniteLogits) as caught:
        broken.result(5)
    assert caught.value.partial.token_ids == ()
    assert good.result(5).text == "g" * 20
    assert model.cache.n_pages_used() == 0


def test_a_failing_step_fails_its_requests_and_the_engine_lives_on() -> None:
    model = FakeModel("abc")
    model.executor.fail = RuntimeError("boom")
    engine = Engine(model)
    with pytest.raises(GenerationError, match="boom") as caught:
        engine.submit(request(model)).result(5)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert engine.submit(request(model)).result(5).text == "abc"


def test_close_ends_everybody() -> None:
    model = FakeModel(endless=True, n_parallel=1)
    model.executor.delay = 30
    engine = Engine(model)
    handles = [engine.submit(request(model)) for _ in range(2)]
    wait_until(lambda: bool(model.executor.batches))
    engine.close()
    engine.close()
    for handle in handles:
        with pytest.raises(GenerationCanceled):
            handle.result(1)
    with pytest.raises(GenerationError, match="closed"):
        engine.submit(request(model))


def test_a_slow_reader_gets_joined_pieces() -> None:
    model = FakeModel("z" * 100)
    engine = Engine(model)
    handle = engine.submit(request(model))
    handle.result(5)
    assert [d for d in handle] == [TextDelta("z" * 100)]


def test_result_timeout_leaves_the_request_alone() -> None:
    model = FakeModel("abc")
    model.executor.gate = threading.Event()
    handle = Engine(model).submit(request(model))
    with pytest.raises(TimeoutError):
        handle.result(0.01)
    model.executor.gate.set()
    assert handle.result(5).text == "abc"


def test_async_reading_and_waiting() -> None:
    model = FakeModel("hello")
    engine = Engine(model)

    async def main() -> tuple[str, Result, list[Result]]:
        handle = engine.submit(request(model))
        text = "".join([d.text async for d in handle if isinstance(d, TextDelta)])
        many = [engine.submit(request(model)) for _ in range(8)]
        return text, await handle, list(await asyncio.gather(*many))

    text, result, many = asyncio.run(main())
    assert text == result.text == "hello"
    assert [r.text for r in many] == ["hello"] * 8


def test_async_errors_reach_the_reader() -> None:
    model = FakeModel(endless=True, n_ctx=4096)
    model.executor.delay = 0.002
    engine = Engine(model)

    async def main() -> None:
        handle = engine.submit(request(model))
        async for _ in handle:
            handle.cancel()

    with pytest.raises(GenerationCanceled):
        asyncio.run(main())


def test_seeds() -> None:
    model = FakeModel(policy=lambda tokens, n: np.zeros(264, np.float32))
    engine = Engine(model)

    def draw(seed: int | None) -> tuple[tuple[int, ...], int]:
        params = Params(temperature=1, top_k=0, top_p=1, min_p=0, seed=seed)
        result = engine.submit(request(model, params=params, max_tokens=16, ignore_eos=True)).result(5)
        return result.token_ids, result.seed

    assert draw(7) == draw(7)
    assert draw(0) == draw(0)
    for open_seed in (None, -1):
        drawn = [draw(open_seed) for _ in range(5)]
        assert len(set(drawn)) > 1
        assert draw(drawn[0][1])[0] == drawn[0][0], "the reported seed repeats the answer"


def test_constraint_makes_a_host_row() -> None:
    class Only:
        def allows(self, token: int) -> bool:
            return token == ord("k")

        def accept(self, token: int) -> None: ...

        def first_bytes(self) -> list[bool]:
            return [True] * 256

        def first_byte(self, token: int) -> int:
            return 0

    model = FakeModel("abc", native=True)
    result, _ = run(model, constraint=Only(), max_tokens=3)
    assert result.text == "kkk"


def test_resolve_params() -> None:
    base = Params(temperature=0.5, top_k=7)
    assert resolve_params(base, {"temperature": None, "top_k": 3}) == Params(temperature=0.5, top_k=3)
    assert resolve_params(base, {"repeat_penalty": 1.5}).penalty_repeat == 1.5
    with pytest.raises(InvalidRequest) as caught:
        resolve_params(base, {"temprature": 1})
    assert caught.value.param == "temprature"


def test_jobs_run_between_steps() -> None:
    model = FakeModel(endless=True, n_ctx=2048)
    engine = Engine(model)
    handle = engine.submit(request(model))

    def job() -> Any:
        seen = []
        for _ in range(3):
            seen.append(engine.n_steps)
            yield
        return seen

    seen = engine.run(job()).result(5)
    assert seen[0] < seen[1] < seen[2]
    handle.cancel()

    def broken() -> Any:
        yield
        raise ValueError("no")

    with pytest.raises(ValueError):
        engine.run(broken()).result(5)

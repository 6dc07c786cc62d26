"""The library face on a scripted model: streams, callbacks, chat, embeddings, evaluation, async twins."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from fake_model import FakeModel, wait_until

import ggfw
from ggfw.library import Model
from ggfw.loading import as_log
from ggfw.sampling import Params
from ggfw.stream import Stream


def wrap(fake: FakeModel) -> Model:
    return Model(fake)  # type: ignore[arg-type]


@pytest.fixture
def model() -> Iterator[Model]:
    with wrap(FakeModel("hello", native=True)) as model:
        yield model


def test_generate_and_stream(model: Model) -> None:
    result = model.generate("hi")
    assert (result.text, str(result), result.finish_reason) == ("hello", "hello", "stop")
    stream = model.stream("hi")
    assert isinstance(stream, Stream)
    assert "".join(stream) == "hello" and stream.result().text == "hello"
    pieces: list[str] = []
    final = model.stream("hi", pieces.append)
    assert isinstance(final, ggfw.Result) and "".join(pieces) == final.text == "hello"
    assert result.to_dict()["usage"]["completion_tokens"] == 6


def test_an_exception_in_the_callback_stops_and_reaches_the_caller() -> None:
    fake = FakeModel(endless=True, n_ctx=4096)
    fake.executor.delay = 0.002
    with wrap(fake) as model:

        def callback(piece: str) -> None:
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            model.stream("hi", callback)
        wait_until(lambda: not model.engine.scheduler)
        assert fake.cache.n_pages_used() == 0


@pytest.mark.parametrize("how", ["break", "close", "drop", "with"])
def test_leaving_a_stream_cancels_it(how: str) -> None:
    fake = FakeModel(endless=True, n_ctx=4096)
    fake.executor.delay = 0.002
    with wrap(fake) as model:
        stream = model.stream("hi")
        assert isinstance(stream, Stream)
        if how == "break":
            for _ in stream:
                break
        elif how == "close":
            stream.close()
        elif how == "with":
            with stream:
                next(iter(stream))
        del stream
        gc.collect()
        wait_until(lambda: not model.engine.scheduler)


def test_raw_prompts_are_text_unless_asked(model: Model) -> None:
    prompt = "<|im_end|>"
    assert model.request(prompt).prompt == [256, *prompt.encode()]
    assert model.request(prompt, parse_special=True).prompt == [256, model.tokenizer.find(prompt)]
    assert model.request([1, 2]).prompt == [1, 2]
    assert model.tokenize("a", add_special=False) == [97]
    assert model.detokenize([97, 98]) == "ab"


def test_parameters_are_resolved_request_first_then_the_file() -> None:
    fake = FakeModel("x", metadata={"general.sampling.temp": 0.5, "general.sampling.top_k": 7})
    with wrap(fake) as model:
        params = model.request("a", temperature=0.1, seed=3).params
        assert (params.temperature, params.top_k, params.min_p) == (pytest.approx(0.1), 7, Params().min_p)
        assert model.request("a", temperature=None).params.temperature == 0.5
        with pytest.raises(ggfw.InvalidRequest):
            model.generate("a", temprature=1)


def test_chat_uses_template_and_dialect() -> None:
    source = "{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endfor %}<think>\n"
    fake = FakeModel("plan</think>\n\n42", template=source)
    with wrap(fake) as model:
        result = model.chat([ggfw.user("q")])
        assert (result.reasoning, result.text) == ("plan", "42")
        assert 0 < result.usage.reasoning_tokens < result.usage.completion_tokens == 17
        stream = model.chat_stream([ggfw.user("q")])
        assert isinstance(stream, Stream)
        deltas = list(stream.deltas())
        assert "".join(d.text for d in deltas if isinstance(d, ggfw.ReasoningDelta)) == "plan"
        tokens = fake.tokenizer
        expected = [tokens.bos_id, tokens.find("<|im_start|>"), *b"q", tokens.find("<|im_end|>"), *b"<think>"]
        assert model.chat_request([ggfw.user("q")]).prompt == expected


@pytest.mark.parametrize(
    ("add_bos", "template", "n"),
    [
        (True, "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", 1),
        (True, "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", 1),
        (False, "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", 0),
    ],
)
def test_a_prompt_starts_with_one_bos(add_bos: bool, template: str, n: int) -> None:
    with wrap(FakeModel("x", add_bos=add_bos, template=template)) as model:
        ids = model.chat_request([ggfw.user("q")]).prompt
        assert ids[:2].count(256) == n
        assert model.chat([ggfw.user("q")]).usage.prompt_tokens == len(ids)
        assert model.request("hi").prompt.count(256) == int(add_bos)


def test_a_file_without_template_gets_a_built_in_one() -> None:
    with wrap(FakeModel("x")) as model:
        assert model.template.name == "chatml"  # by the vocabulary of the fake
        assert model.info["chat_template"] == "chatml"
        assert model.chat([ggfw.user("q")]).text == "x"


def rows(tokens: list[int], n_prompt: int) -> np.ndarray:
    """Logits that depend on all tokens before."""
    return np.random.default_rng(tokens).standard_normal(264).astype(np.float32)


def test_logits_are_the_same_whole_in_chunks_and_together() -> None:
    fake = FakeModel(policy=rows, max_rows=16)
    with wrap(fake) as model:
        prompts = [list(range(3, 30)), [5], list(range(9, 40))]
        whole = [np.stack([rows(p[: i + 1], 0) for i in range(len(p))]) for p in prompts]
        for chunk in (None, 1, 3, 7, 64):
            for together in (True, False):
                got = model.logits_many(prompts, chunk=chunk, together=together)
                assert all(np.array_equal(a, b) for a, b in zip(got, whole, strict=True))
        assert np.array_equal(model.logits(prompts[0], 3), whole[0])
        assert model.logits([7]).dtype == np.float32
        assert fake.cache.n_pages_used() == 0
        assert any(len(b) == 3 for b in fake.executor.batches), "one ragged batch"
        assert max(len(t) for b in fake.executor.batches for t, _, _ in b) <= 16


def test_greedy_is_plain_argmax() -> None:
    fake = FakeModel(policy=rows, max_rows=4)
    with wrap(fake) as model:
        ids = [1, 2, 3, 4, 5, 6]
        want = []
        for _ in range(5):
            want.append(int(np.argmax(rows(ids + want, 0))))
        assert model.greedy(ids, 5) == want


def test_evaluation_errors(model: Model) -> None:
    with pytest.raises(ggfw.InvalidRequest, match="at least one"):
        model.logits([])
    with pytest.raises(ggfw.InvalidRequest, match="4096"):
        model.logits([4096])
    for ids in ([1.7], ["5"], [True], "12", b"12"):
        with pytest.raises(ggfw.InvalidRequest, match="sequence of token ids"):
            model.logits(ids)  # type: ignore[arg-type]
    with pytest.raises(ggfw.InvalidRequest, match="chunk"):
        model.logits([1], chunk=0)
    with pytest.raises(ggfw.ContextLengthExceeded):
        model.logits([1] * 257)
    assert len(model.logits([1] * 256)) == 256


def test_truth_values_are_no_token_ids(model: Model) -> None:
    with pytest.raises(ggfw.InvalidRequest, match=r"not \[1, True\]"):
        model.generate([1, True])


def test_a_model_without_logits_does_not_generate(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.loaded, "n_vocab", 0)
    with pytest.raises(ggfw.InvalidRequest, match="has no logits and cannot generate"):
        model.generate("hi")


def test_a_job_waits_for_pages_and_fails_when_they_never_come() -> None:
    fake = FakeModel(endless=True, n_ctx=64, n_parallel=1)
    fake.n_ctx = 128  # a context that the pool cannot hold
    fake.executor.delay = 0.001
    with wrap(fake) as model:
        stream = model.stream("hi", max_tokens=20)
        assert len(model.logits([1] * 64)) == 64
        assert isinstance(stream, Stream) and stream.result().finish_reason == "length"
        with pytest.raises(ggfw.GgfwError, match="cache"):
            model.logits_many([[1] * 64, [1] * 65, [2] * 64])
        assert [len(rows) for rows in model.logits_many([[1] * 64, [1] * 64, [2] * 64])] == [64, 64, 64]
        assert model.generate("hi", max_tokens=2).text == "xx"


def test_embeddings_are_pooled_and_normalised() -> None:
    fake = FakeModel(policy=rows)
    with wrap(fake) as model:
        one = model.embed("ab")
        ids = model.tokenize("ab")
        hidden = np.stack([rows(ids[: i + 1], 0)[:8] for i in range(len(ids))])
        mean = hidden.mean(axis=0, dtype=np.float64)
        assert np.allclose(one, mean / np.linalg.norm(mean), atol=1e-6)
        assert one.shape == (8,) and np.linalg.norm(one) == pytest.approx(1, abs=1e-6)
        both = model.embed(["ab", "c"])
        assert both.shape == (2, 8) and np.array_equal(both[0], one)
        assert np.array_equal(model.hidden(ids), hidden)
        with pytest.raises(ggfw.InvalidRequest):
            model.embed([])
    fake = FakeModel(policy=rows, metadata={"fake.pooling_type": 2}, causal=False, cacheable=False)
    with wrap(fake) as model:
        first = rows(ids[:1], 0)[:8]
        assert np.allclose(model.embed("ab"), first / np.linalg.norm(first), atol=1e-6)
        with pytest.raises(ggfw.InvalidRequest, match="embeddings"):
            model.generate("x")


def test_async_twins(model: Model) -> None:
    async def main() -> None:
        assert (await model.agenerate("hi")).text == "hello"
        assert (await model.achat([ggfw.user("hi")])).text == "hello"
        assert "".join([p async for p in model.astream("hi")]) == "hello"
        assert "".join([p async for p in model.achat_stream([ggfw.user("hi")])]) == "hello"
        assert (await model.aembed("hi")).shape == (8,)

    asyncio.run(main())


def test_a_canceled_task_cancels_its_request() -> None:
    fake = FakeModel(endless=True, n_ctx=4096)
    fake.executor.delay = 0.002
    with wrap(fake) as model:

        async def main() -> None:
            task = asyncio.create_task(model.agenerate("hi"))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        wait_until(lambda: not model.engine.scheduler)


def test_close_is_idempotent_and_closes_the_model() -> None:
    fake = FakeModel("x")
    model = wrap(fake)
    model.generate("a")
    model.close()
    model.close()
    assert fake.closed
    with pytest.raises(ggfw.GenerationError, match="closed"):
        model.generate("a")


def test_loggers() -> None:
    seen: list[tuple[str, dict[str, int]]] = []
    log = as_log(lambda event, fields: seen.append((event, fields)))
    assert log is not None
    log("a", {"n": 1})

    class Struct:
        def info(self, event: str, **fields: int) -> None:
            seen.append((event, fields))

    log = as_log(Struct())
    assert log is not None
    log("b", {"n": 2})
    assert seen == [("a", {"n": 1}), ("b", {"n": 2})]
    standard = as_log(logging.getLogger("ggfw-test"))
    assert standard is not None
    standard("c", {})
    assert as_log(None) is None


def test_importing_is_cheap_and_the_face_is_complete() -> None:
    code = (
        "import sys, ggfw\n"
        "heavy = {'numpy', 'jinja2', 'sanic', 'pydantic', 'cffi', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "for name in ggfw.__all__: getattr(ggfw, name)\n"
        "assert set(ggfw.__all__) <= set(dir(ggfw)) and ggfw.__version__\n"
        "assert not {'sanic', 'click', 'rich'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError):
        ggfw.nothing  # noqa: B018


def test_a_forgotten_model_does_not_hang_the_interpreter() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from fake_model import FakeModel\nfrom ggfw.library import Model\n"
        "fake = FakeModel(endless=True, n_ctx=1 << 20)\nmodel = Model(fake)\nstream = model.stream('hi')\n"
        "print(next(iter(stream)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=30, capture_output=True, text=True
    )
    assert done.stdout.startswith("x")


def test_a_dropped_model_is_closed() -> None:
    fake = FakeModel("x")
    model = wrap(fake)
    model.generate("a")
    thread = model.engine._thread
    assert thread is not None
    del model
    gc.collect()
    wait_until(lambda: fake.closed and not thread.is_alive())

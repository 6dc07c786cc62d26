"""The engine, the library and the server on small real model files, alone and in company."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from live_server import LiveServer

import ggfw
from ggfw.handle import Handle
from ggfw.library import Model
from ggfw.server import create_app
from ggfw.stream import Stream

DATA = Path(__file__).parent / "data/models"
NAMES = ("llama", "gemma3")


@pytest.fixture(scope="module", params=NAMES)
def loaded(request: pytest.FixtureRequest) -> Iterator[tuple[Model, dict[str, Any]]]:
    facts = json.loads((DATA / f"{request.param}.json").read_text())
    with ggfw.load(DATA / f"{request.param}.gguf", threads=1, ctx=256, n_parallel=4) as model:
        yield model, facts


def tokens(handle: Handle) -> tuple[int, ...]:
    return handle.result(60).token_ids


def test_greedy_equals_the_reference(loaded: tuple[Model, dict[str, Any]]) -> None:
    model, facts = loaded
    for name, want in facts["greedy"].items():
        ids = facts["prompts"][name]
        assert model.greedy(ids, len(want)) == want
        end = next((i + 1 for i, token in enumerate(want) if model.tokenizer.is_eog(token)), len(want))
        result = model.generate(ids, temperature=0, max_tokens=len(want))
        assert list(result.token_ids) == want[:end]


def test_company_changes_nothing(loaded: tuple[Model, dict[str, Any]]) -> None:
    model, facts = loaded
    prompts = [*facts["prompts"].values(), *facts["two_sequence_batch"].values()]
    options: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.0, "seed": 7, "penalty_repeat": 1.2},
    ]
    jobs = [(ids, o) for ids in prompts for o in options]

    def submit(ids: list[int], options: dict[str, Any]) -> Handle:
        return model.submit(model.request(ids, max_tokens=20, ignore_eos=True, **options))

    alone = [tokens(submit(*job)) for job in jobs]
    for _ in range(3):
        handles = [submit(*job) for job in jobs]
        assert [tokens(h) for h in handles] == alone
    assert model.loaded.cache.n_pages_used() == 0


def test_a_host_row_draws_what_a_free_row_draws(loaded: tuple[Model, dict[str, Any]]) -> None:
    model, facts = loaded

    class Anything:
        def allows(self, token: int) -> bool:
            return True

        def accept(self, token: int) -> None: ...

        def first_bytes(self) -> list[bool]:
            return [True] * 256

        def first_byte(self, token: int) -> int:
            return 0

    ids = facts["prompts"]["p12"]
    for seed in range(5):
        options = {
            "seed": seed,
            "temperature": 1.3,
            "max_tokens": 30,
            "ignore_eos": True,
            "penalty_repeat": 1.3,
        }
        free = model.generate(ids, **options)
        host = model.generate(ids, constraint=Anything(), **options)
        assert free.token_ids == host.token_ids


def test_streamed_and_whole_text_are_the_same(loaded: tuple[Model, dict[str, Any]]) -> None:
    model, _ = loaded
    for seed in range(5):
        options = {"seed": seed, "max_tokens": 40, "temperature": 1.5, "top_k": 0, "stop": ["e", "th"]}
        whole = model.chat([ggfw.user("Hello there")], **options)
        stream = model.chat_stream([ggfw.user("Hello there")], **options)
        assert isinstance(stream, Stream)
        assert "".join(stream) == whole.text == stream.result().text
        assert "e" not in whole.text and "th" not in whole.text


def test_logits_and_embeddings(loaded: tuple[Model, dict[str, Any]]) -> None:
    model, facts = loaded
    with np.load(DATA / facts["files"]["npz"]) as reference:
        for name, ids in facts["prompts"].items():
            assert np.abs(model.logits(ids) - reference[f"logits/{name}"]).max() < 2e-3
        mean = reference["pooled_mean/p12"]
        assert np.abs(model.hidden(facts["prompts"]["p12"]).mean(axis=0) - mean).max() < 2e-3
    assert np.linalg.norm(model.embed("Hello")) == pytest.approx(1, abs=1e-5)


def test_load_by_name_bytes_and_open_file() -> None:
    with ggfw.load("LLAMA", folders=DATA, ctx=64) as model:
        ids, want = [283, 23, 271], model.greedy([283, 23, 271], 4)
    with ggfw.load((DATA / "llama.gguf").read_bytes(), ctx=64) as model:
        assert model.greedy(ids, 4) == want
    with ggfw.GGUF.open(DATA / "llama.gguf") as gguf, ggfw.load(gguf, ctx=64, backend="reference") as model:
        assert model.greedy(ids, 4) == want
        assert model.generate(ids, temperature=0, max_tokens=4, ignore_eos=True).token_ids == tuple(want)


def test_cancel_during_native_steps(loaded: tuple[Model, dict[str, Any]]) -> None:
    model, facts = loaded
    handle = model.submit(model.request(facts["prompts"]["p12"], ignore_eos=True))
    next(iter(handle))
    handle.cancel()
    with pytest.raises(ggfw.GenerationCanceled):
        handle.result(5)
    assert model.loaded.cache.n_pages_used() == 0
    assert len(tokens(model.submit(model.request("x", max_tokens=3, ignore_eos=True)))) == 3


def test_threads_share_a_model(loaded: tuple[Model, dict[str, Any]]) -> None:
    model, facts = loaded
    ids = facts["prompts"]["p12"]
    want = model.generate(ids, temperature=0, max_tokens=16, ignore_eos=True).token_ids
    got: list[tuple[int, ...]] = []

    def work() -> None:
        for _ in range(3):
            got.append(model.generate(ids, temperature=0, max_tokens=16, ignore_eos=True).token_ids)
            model.logits(ids)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [want] * 12


def test_over_http(loaded: tuple[Model, dict[str, Any]]) -> None:
    model, _ = loaded
    messages = [ggfw.user("Hello")]
    want = model.chat(messages, temperature=0, max_tokens=12)
    with LiveServer(create_app(model)) as live, httpx.Client(base_url=live.url, timeout=60) as http:
        body = {"messages": messages, "temperature": 0, "max_tokens": 12}
        answer = http.post("/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"] == want.text
        assert answer["usage"]["prompt_tokens"] == want.usage.prompt_tokens
        assert http.get("/v1/models").json()["data"][0]["id"] == model.loaded.gguf.path.stem

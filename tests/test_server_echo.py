"""Prompts that come back with the log-probabilities of their tokens, as programs that measure models ask for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from live_server import LiveServer

import ggfw
from ggfw.evaluate import evaluate
from ggfw.server import create_app

FILE = Path(__file__).parent / "data" / "models" / "llama.gguf"
TEXT = "Hello wörld, " * 5


@pytest.fixture(scope="module")
def model() -> Iterator[ggfw.Model]:
    with ggfw.load(FILE, ctx=128, n_parallel=2, threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def http(model: ggfw.Model) -> Iterator[httpx.Client]:
    with LiveServer(create_app(model)) as live, httpx.Client(base_url=live.url, timeout=30) as client:
        yield client


def wanted(model: ggfw.Model, ids: list[int]) -> list[float]:
    """The log-probability of each token but the first, from the logits of the whole."""
    (rows,) = model.engine.run(evaluate(model.loaded, [ids])).result()
    rows = rows.astype(np.float64)
    rows -= rows.max(-1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
    return [float(row[token]) for row, token in zip(rows, ids[1:], strict=False)]


def ask(http: httpx.Client, **body: Any) -> Any:
    response = http.post("/v1/completions", json={"temperature": 0, "echo": True, "logprobs": 2, **body})
    assert response.status_code == 200, response.text
    if not body.get("stream"):
        return response.json()
    parts = [p for p in response.text.split("\n\n") if p and not p.startswith(":")]
    assert parts.pop() == "data: [DONE]"
    return [json.loads(p.removeprefix("data: ")) for p in parts]


@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("as_ids", [False, True])
def test_the_tokens_of_the_prompt(
    model: ggfw.Model, http: httpx.Client, max_tokens: int, as_ids: bool
) -> None:
    ids = model.tokenize(TEXT)
    bos = ids[0] == model.tokenizer.bos_id
    answer = ask(http, prompt=ids if as_ids else TEXT, max_tokens=max_tokens)
    (choice,) = answer["choices"]
    noted = choice["logprobs"]
    assert len({len(values) for values in noted.values()}) == 1
    scores = [None, *wanted(model, ids)]
    if bos and not as_ids:
        scores = scores[1:]
    n = len(scores)
    assert len(noted["tokens"]) == n + max_tokens
    assert noted["token_logprobs"][:n] == pytest.approx(scores, abs=1e-4)
    assert (noted["top_logprobs"][0] is None) == (scores[0] is None)
    assert all(1 <= len(top) <= 2 for top in noted["top_logprobs"][1:])
    assert noted["text_offset"] == sorted(noted["text_offset"]) and noted["text_offset"][0] == 0
    assert answer["usage"] == {
        **answer["usage"], "prompt_tokens": len(ids), "completion_tokens": max_tokens
    }  # fmt: skip
    assert choice["finish_reason"] == "length"
    if not as_ids:
        assert choice["text"].startswith(TEXT)
        joined = "".join(noted["tokens"][:n]).replace("\ufffd", "")
        assert joined == TEXT.replace("ö", ""), "a character of several tokens is in none of them whole"
    if max_tokens and not as_ids:
        assert noted["text_offset"][n] == len(TEXT)


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_several_prompts_and_streams(http: httpx.Client, max_tokens: int) -> None:
    body = {"prompt": ["one", "another"], "n": 2, "max_tokens": max_tokens, "seed": 1}
    whole = ask(http, **body)
    pieces = ask(http, **body, stream=True, stream_options={"include_usage": True})
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2, 3]
    usage = pieces.pop()["usage"]
    for name in ("prompt_tokens", "completion_tokens"):
        assert usage[name] == whole["usage"][name]
    for choice in whole["choices"]:
        own = [p["choices"][0] for p in pieces if p["choices"][0]["index"] == choice["index"]]
        assert "".join(p["text"] for p in own) == choice["text"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        for name, values in choice["logprobs"].items():
            joined = [v for p in own if p["logprobs"] for v in p["logprobs"][name]]
            if name == "token_logprobs":
                assert [v is None for v in joined] == [v is None for v in values]
            elif name != "top_logprobs":
                assert joined == values, name


def test_mistakes(http: httpx.Client) -> None:
    for body, status in (
        ({"prompt": "x" * 500}, 400),
        ({"prompt": [5] * 129}, 400),
        ({"prompt": ""}, 200),
        ({"prompt": [10**6]}, 400),
        ({"prompt": [], "stream": True}, 400),
        ({"prompt": "x", "max_tokens": -5}, 400),
    ):
        given = {"echo": True, "logprobs": 1, "max_tokens": 0, **body}
        response = http.post("/v1/completions", json=given)
        assert response.status_code == status, (body, response.text)


def test_no_logprobs_and_no_tokens(http: httpx.Client) -> None:
    body = {"prompt": "just this", "echo": True, "max_tokens": 0}
    (choice,) = http.post("/v1/completions", json=body).json()["choices"]
    assert choice == {"index": 0, "text": "just this", "logprobs": None, "finish_reason": "length"}


def test_a_control_token_that_the_prompt_begins_with_is_listed() -> None:
    """Also where it is the vocabulary's BOS, which this model does not want in front of texts."""
    file = FILE.with_name("smollm3.gguf")
    with ggfw.load(file, ctx=64, threads=1) as model, LiveServer(create_app(model)) as live:
        with httpx.Client(base_url=live.url, timeout=30) as http:
            (choice,) = ask(http, prompt="<s>hi", max_tokens=0)["choices"]
    assert choice["text"] == "<s>hi"
    assert choice["logprobs"]["tokens"][0] == "<s>" and choice["logprobs"]["text_offset"][:2] == [0, 3]

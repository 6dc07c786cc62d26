"""``/v1/completions`` and ``/v1/embeddings`` over real sockets."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from fake_model import wait_until
from served import Served

import ggfw.server.embedding


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    scripts = {"one": "ONE", "two": "TWO", "<PRE>": "gap"}
    with Served(script="text", scripts=scripts, pieces=["<PRE>", "<SUF>", "<MID>"], n_ctx=128) as server:
        yield server


def post(served: Served, **body: Any) -> Any:
    return served.http.post("/v1/completions", json={"temperature": 0, **body})


def frames(served: Served, **body: Any) -> list[Any]:
    response = post(served, stream=True, **body)
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    parts = response.text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(p.removeprefix("data: ")) for p in parts[:-2] if not p.startswith(":")]


def prompts_seen(served: Served) -> list[list[int]]:
    seen = [request.prompt for request in served.seen]
    served.seen.clear()
    return seen


def test_the_prompt_is_never_templated(served: Served) -> None:
    prompts_seen(served)
    body = post(served, prompt="plain").json()
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-")
    assert body["choices"] == [{"index": 0, "text": "text", "logprobs": None, "finish_reason": "stop"}]
    assert prompts_seen(served) == [[served.fake.tokenizer.bos_id, *b"plain"]]


def test_control_tokens_of_a_raw_prompt_are_recognised(served: Served) -> None:
    prompts_seen(served)
    post(served, prompt="<|im_start|>x")
    assert prompts_seen(served)[0][1] == served.fake.tokenizer.specials["<|im_start|>"]


def test_several_prompts_and_choices(served: Served) -> None:
    body = post(served, prompt=["one", "two"], n=2).json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [
        (0, "ONE"),
        (1, "ONE"),
        (2, "TWO"),
        (3, "TWO"),
    ]
    # BOS and three letters each, counted once per prompt; three letters and the end for each answer.
    assert body["usage"]["prompt_tokens"] == 8 and body["usage"]["completion_tokens"] == 16
    got = frames(served, prompt=["one", "two"], stream_options={"include_usage": True})
    assert [f["choices"][0]["index"] for f in got[:2]] == [0, 1]
    texts = [
        "".join(f["choices"][0]["text"] for f in got if f["choices"] and f["choices"][0]["index"] == n)
        for n in (0, 1)
    ]
    assert texts == ["ONE", "TWO"]
    assert got[-1]["choices"] == [] and got[-1]["usage"]["prompt_tokens"] == 8


def test_token_ids(served: Served) -> None:
    prompts_seen(served)
    assert post(served, prompt=[*b"one"]).json()["choices"][0]["text"] == "ONE"
    assert prompts_seen(served) == [[*b"one"]]
    body = post(served, prompt=[[*b"one"], [*b"two"]]).json()
    assert [c["text"] for c in body["choices"]] == ["ONE", "TWO"]


def test_echo_and_suffix(served: Served) -> None:
    assert post(served, prompt="one", echo=True).json()["choices"][0]["text"] == "oneONE"
    assert "".join(f["choices"][0]["text"] for f in frames(served, prompt="one", echo=True)) == "oneONE"
    prompts_seen(served)
    assert post(served, prompt="a", suffix="b").json()["choices"][0]["text"] == "gap"
    t = served.fake.tokenizer
    marks = [t.find(m) for m in ("<PRE>", "<SUF>", "<MID>")]
    assert prompts_seen(served) == [[t.bos_id, marks[0], *b"a", marks[1], *b"b", marks[2]]]


def test_logprobs_are_parallel_lists(served: Served) -> None:
    noted = post(served, prompt="one", logprobs=2).json()["choices"][0]["logprobs"]
    assert noted["tokens"] == ["O", "N", "E"] and noted["text_offset"] == [0, 1, 2]
    assert all(abs(x) < 1e-6 for x in noted["token_logprobs"]) and all(
        len(t) == 2 for t in noted["top_logprobs"]
    )
    streamed = [f["choices"][0]["logprobs"] for f in frames(served, prompt="one", logprobs=2)]
    assert [t for n in streamed if n for t in n["tokens"]] == ["O", "N", "E"]
    assert [o for n in streamed if n for o in n["text_offset"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt"),
        ({"prompt": ["x"] * 200}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "logprobs": 30}, "logprobs"),
        ({"prompt": "x", "echo": True, "logprobs": 1, "suffix": "y"}, "suffix"),
        ({"prompt": [], "echo": True, "logprobs": 1, "max_tokens": 0}, "prompt"),
        ({"prompt": [10**9], "echo": True, "logprobs": 1, "max_tokens": 0}, "prompt"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": [5], "suffix": "x"}, "suffix"),
        ({"prompt": "x", "n": 0}, "n"),
        ({"prompt": "x", "temperature": "hot"}, "temperature"),
    ],
)
def test_mistakes(served: Served, body: dict[str, Any], param: str) -> None:
    response = post(served, **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param and error["type"] == "invalid_request_error"


def test_a_model_without_marks_refuses_a_suffix() -> None:
    with Served(script="x") as plain:
        response = post(plain, prompt="a", suffix="b")
        assert response.status_code == 400 and response.json()["error"]["param"] == "suffix"


def test_the_openai_client_completes(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.live.url}/v1", api_key="x", max_retries=0)
    assert client.completions.create(model="fake", prompt="one").choices[0].text == "ONE"
    stream = client.completions.create(model="fake", prompt="two", stream=True)
    assert "".join(c.choices[0].text for c in stream) == "TWO"


# -- embeddings ------------------------------------------------------------------------------------


@pytest.fixture
def vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    def fixed(model: Any, prompts: Any, **_: Any) -> Any:
        yield None
        return [np.array([1.5, -2.0, 0.125], np.float32) for _ in prompts]

    monkeypatch.setattr(ggfw.server.embedding, "pooled", fixed)
    monkeypatch.setattr(ggfw.server.embedding, "normalised", lambda v: v)


def embed(served: Served, **body: Any) -> Any:
    return served.http.post("/v1/embeddings", json=body)


def test_base64_is_little_endian_float32(served: Served, vectors: None) -> None:
    for form in (None, "float"):
        more = {} if form is None else {"encoding_format": form}
        assert embed(served, input="x", **more).json()["data"][0]["embedding"] == [1.5, -2.0, 0.125]
    assert (
        embed(served, input="x", encoding_format="base64").json()["data"][0]["embedding"]
        == "AADAPwAAAMAAAAA+"
    )
    response = embed(served, input="x", encoding_format="hex")
    assert response.status_code == 400 and response.json()["error"]["param"] == "encoding_format"
    client = openai.OpenAI(base_url=f"{served.live.url}/v1", api_key="x", max_retries=0)
    assert client.embeddings.create(model="fake", input="x").data[0].embedding == [1.5, -2.0, 0.125]


def test_real_vectors_have_length_one(served: Served) -> None:
    body = embed(served, input=["one", [*b"two"]]).json()
    assert [row["index"] for row in body["data"]] == [0, 1]
    assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    for row in body["data"]:
        assert math.hypot(*row["embedding"]) == pytest.approx(1, abs=1e-5)
    short = embed(served, input="one", dimensions=2).json()["data"][0]["embedding"]
    assert len(short) == 2 and math.hypot(*short) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("given", [None, "", [], [[]], {}, 5, [None], ["x", 5], "y" * 500, [10**9]])
def test_embedding_mistakes(served: Served, given: Any) -> None:
    response = embed(served, input=given)
    # An empty text is BOS alone here, which can be embedded.
    assert response.status_code == (200 if given == "" else 400), response.text
    if response.status_code == 400:
        assert set(response.json()["error"]) >= {"message", "type", "param", "code"}
    assert embed(served, input="x", dimensions=0).status_code == 400
    assert embed(served, input="x", dimensions=10**6).status_code == 400


def test_leaving_early_stops_embedding() -> None:
    with Served(script="x") as server:
        server.fake.executor.gate = threading.Event()
        sock = server.raw("/v1/embeddings", {"input": ["a"] * 50})
        wait_until(lambda: bool(server.fake.executor.batches))
        sock.close()
        server.fake.executor.gate.set()
        server.idle()
        assert len(server.fake.executor.batches) < 5
        wait_until(lambda: [event for event, _ in server.lines] == ["inference_abandoned"])
        figures = server.http.get("/metrics").text
        assert 'route="/v1/embeddings",status="499"' in figures and 'status="500"' not in figures
        assert 'ggfw_request_errors_total{code="disconnected"} 1.0' in figures


def test_embeddings_are_counted_and_logged_under_the_model_s_id() -> None:
    with Served(script="x") as server:
        server.fake.name = "A Longer Name of the File"
        n_tokens = embed(server, input=["one", [*b"two"]]).json()["usage"]["prompt_tokens"]
        figures = server.http.get("/metrics").text
        assert f'ggfw_prompt_tokens_total{{model="fake"}} {float(n_tokens)}' in figures
        ((event, line),) = server.lines
        assert event == "embedding" and line["model"] == "fake" and line["prompt_tokens"] == n_tokens

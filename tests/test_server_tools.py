"""Tools in chat completions: streamed and whole, and what the choice of tools forces or forbids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from served import ONE_CALL, TOOLS_CHATML, TWO_CALLS, Served, function

TOOLS = [function("f"), function("g")]


def of_type(kind: Any) -> dict[str, Any]:
    """A tool whose arguments are no object."""
    return {"type": "function", "function": {"name": "f", "parameters": {"type": kind}}}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    scripts = {"two calls": TWO_CALLS, "one call": ONE_CALL}
    with Served(script="hello", scripts=scripts, template=TOOLS_CHATML, n_ctx=2048) as server:
        yield server


def say(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def choice(served: Served, content: str, **body: Any) -> dict[str, Any]:
    """The choice of an answer, asked for whole and streamed; both must be the same."""
    whole = served.post(messages=say(content), **body).json()["choices"][0]
    frames = served.frames(messages=say(content), **body)
    text, calls = "", {}
    for frame in frames:
        delta = frame["choices"][0]["delta"]
        text += delta.get("content") or ""
        assert delta.get("tool_calls") != []
        for piece in delta.get("tool_calls", []):
            call = calls.setdefault(piece["index"], {"name": "", "arguments": ""})
            call["name"] += piece["function"].get("name", "")
            call["arguments"] += piece["function"]["arguments"]
    assert frames[-1]["choices"][0]["delta"] == {}
    assert frames[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    message = whole["message"]
    assert text == (message["content"] or "")
    functions = [c["function"] for c in message.get("tool_calls", [])]
    assert [calls[n] for n in sorted(calls)] == functions
    return whole


def test_streamed_calls_have_their_own_index_and_id(served: Served) -> None:
    frames = served.frames(messages=say("two calls"), tools=TOOLS)
    pieces = [p for f in frames for p in f["choices"][0]["delta"].get("tool_calls", [])]
    first = [p for p in pieces if "id" in p]
    assert [(p["index"], p["function"]["name"]) for p in first] == [(0, "f"), (1, "g")]
    assert {p["type"] for p in first} == {"function"}
    assert len({p["id"] for p in first}) == 2 and all(p["id"] for p in first)
    assert not any("name" in p["function"] or "type" in p for p in pieces if "id" not in p)
    arguments = ["".join(p["function"]["arguments"] for p in pieces if p["index"] == n) for n in (0, 1)]
    assert [json.loads(a) for a in arguments] == [{"a": 1}, {"b": 2}]
    assert frames[-1]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "tool_calls"}


def test_the_openai_client_rebuilds_the_calls(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.live.url}/v1", api_key="x", max_retries=0)
    more: Any = {"model": "fake", "messages": say("two calls"), "tools": TOOLS, "temperature": 0}
    with client.chat.completions.stream(**more) as stream:
        for _ in stream:
            pass
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert calls is not None
    assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == [
        ("f", {"a": 1}),
        ("g", {"b": 2}),
    ]


@pytest.mark.parametrize("given", [None, "auto"])
def test_auto(served: Served, given: str | None) -> None:
    more = {} if given is None else {"tool_choice": given}
    found = choice(served, "one call", tools=TOOLS, **more)
    assert found["finish_reason"] == "tool_calls" and len(found["message"]["tool_calls"]) == 1
    found = choice(served, "hi", tools=TOOLS, **more)
    assert found["finish_reason"] == "stop" and "tool_calls" not in found["message"]
    assert found["message"]["content"] == "hello"


def test_required_and_named_force_a_call(served: Served) -> None:
    # The model would rather say hello.
    found = choice(served, "hi", tools=TOOLS, tool_choice="required", max_tokens=1500)
    assert found["finish_reason"] in ("tool_calls", "length")
    assert found["message"]["tool_calls"][0]["function"]["name"] in ("f", "g")
    named = {"type": "function", "function": {"name": "g"}}
    found = choice(served, "two calls", tools=TOOLS, tool_choice=named)
    assert [c["function"]["name"] for c in found["message"]["tool_calls"]] == ["g"]
    assert found["finish_reason"] == "tool_calls"


def test_none_leaves_the_text_as_it_is(served: Served) -> None:
    found = choice(served, "one call", tools=TOOLS, tool_choice="none")
    assert found["finish_reason"] == "stop" and "tool_calls" not in found["message"]
    assert found["message"]["content"] == ONE_CALL
    assert '"name"' not in served.prompt()


def test_one_call_at_a_time(served: Served) -> None:
    found = choice(served, "two calls", tools=TOOLS, parallel_tool_calls=False)
    assert [c["function"]["name"] for c in found["message"]["tool_calls"]] == ["f"]


@pytest.mark.parametrize(
    "body",
    [
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "h"}}},
        {"tools": TOOLS, "tool_choice": "sometimes"},
        {"tools": TOOLS, "tool_choice": {"type": "function"}},
        {"tool_choice": "required"},
        {"tools": [*TOOLS, function("f")]},
        {"tools": "f"},
        {"tools": [5]},
        {"tools": [of_type("array")]},
        {"tools": [of_type("array")], "tool_choice": "required"},
        {"tools": [of_type(["string", "null"])]},
        {"tools": [function("f") | {"type": "retrieval"}]},
        {"functions": [{"name": "f"}]},
        {"tools": TOOLS, "tool_choice": "required", "guided_choice": ["a", "b"]},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_mistakes(served: Served, body: dict[str, Any], stream: bool) -> None:
    response = served.post(messages=say("hi"), stream=stream, **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json_object", "schema": SCHEMA},
    ],
)
def test_the_form_of_the_answer_is_enforced(served: Served, form: dict[str, Any], stream: bool) -> None:
    more = {"response_format": form, "max_tokens": 1500}
    if stream:
        frames = served.frames(messages=say("hi"), **more)
        text = "".join(f["choices"][0]["delta"].get("content", "") for f in frames)
        reason = frames[-1]["choices"][0]["finish_reason"]
    else:
        found = served.post(messages=say("hi"), **more).json()["choices"][0]
        text, reason = found["message"]["content"], found["finish_reason"]
    assert list(json.loads(text)) == ["ok"] and reason == "stop"


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_schema", "json_schema": {"schema": {"type": "nope"}}},
        {"type": "json_schema", "json_schema": {"schema": {"not": {"type": "string"}}}},
        {"type": "xml"},
        {},
    ],
)
def test_what_cannot_be_enforced_is_refused(served: Served, form: dict[str, Any]) -> None:
    for stream in (False, True):
        response = served.post(messages=say("hi"), response_format=form, stream=stream)
        assert response.status_code == 400 and response.json()["error"]["param"] == "response_format"


def test_choices_share_the_prompt_and_have_their_own_seeds(served: Served) -> None:
    body = served.post(messages=say("one call"), n=3, tools=TOOLS, seed=7).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    assert [r.params.seed for r in served.seen[-3:]] == [7, 8, 9]
    ids = {c["message"]["tool_calls"][0]["id"] for c in body["choices"]}
    assert len(ids) == 3
    alone = served.post(messages=say("one call"), tools=TOOLS, seed=7).json()["usage"]
    assert body["usage"]["prompt_tokens"] == alone["prompt_tokens"]
    assert body["usage"]["completion_tokens"] == 3 * alone["completion_tokens"]
    frames = served.frames(messages=say("hi"), n=2)
    assert [f["choices"][0]["index"] for f in frames[:2]] == [0, 1]
    assert all(f["choices"][0]["delta"]["role"] == "assistant" for f in frames[:2])
    texts = {0: "", 1: ""}
    for frame in frames[2:]:
        texts[frame["choices"][0]["index"]] += frame["choices"][0]["delta"].get("content", "")
    assert texts == {0: "hello", 1: "hello"}

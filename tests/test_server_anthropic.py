"""Anthropic's messages over real sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from served import HI, ONE_CALL, TOOLS_CHATML, Served

TOOL = {
    "name": "f",
    "description": "d",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    scripts = {
        "call": ONE_CALL,
        "think": "<think>\nhm\n</think>\n\n42",
        "long": "x" * 300,
        "stop": "one STOP two",
    }
    with Served(script="hello", scripts=scripts, template=TOOLS_CHATML, n_ctx=1024) as server:
        yield server


def say(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def post(served: Served, path: str = "/v1/messages", **body: Any) -> Any:
    body = {"max_tokens": 200, "messages": HI, "temperature": 0, **body}
    return served.http.post(path, json=body)


def events(served: Served, **body: Any) -> list[tuple[str, dict[str, Any]]]:
    response = post(served, stream=True, **body)
    assert response.status_code == 200, response.text
    out = []
    for part in response.text.split("\n\n")[:-1]:
        first, second = part.split("\n")
        name, data = first.removeprefix("event: "), json.loads(second.removeprefix("data: "))
        assert data["type"] == name
        out.append((name, data))
    return out


def total(usage: dict[str, int]) -> int:
    """Prompt tokens: what came from the cache is counted on its own."""
    return usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_plain(served: Served) -> None:
    response = post(served)
    body = response.json()
    assert (body["type"], body["role"], body["model"]) == ("message", "assistant", "fake")
    assert body["id"].startswith("msg")
    assert body["content"] == [{"type": "text", "text": "hello"}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)
    assert body["usage"]["output_tokens"] == 6 and total(body["usage"]) > 5
    assert response.headers["request-id"] == response.headers["x-request-id"]


def test_event_order(served: Served) -> None:
    got = events(served)
    names = [name for name, _ in got]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[3:-3]) == {"content_block_delta"}
    start = got[0][1]["message"]
    assert start["content"] == [] and total(start["usage"]) == total(post(served).json()["usage"])
    assert "".join(d["delta"]["text"] for n, d in got if n == "content_block_delta") == "hello"
    assert got[-2][1]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert got[-2][1]["usage"]["output_tokens"] == 6


def test_tool_use(served: Served) -> None:
    body = post(served, messages=say("call"), tools=[TOOL]).json()
    text, call = body["content"]
    assert text["text"].strip() == "Let me see." and body["stop_reason"] == "tool_use"
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "f", {"city": "Paris"})
    got = events(served, messages=say("call"), tools=[TOOL])
    starts = [d["content_block"] for n, d in got if n == "content_block_start"]
    assert [b["type"] for b in starts] == ["text", "tool_use"]
    assert (starts[1]["name"], starts[1]["input"]) == ("f", {}) and starts[1]["id"]
    pieces = [d["delta"]["partial_json"] for n, d in got if n == "content_block_delta" and d["index"] == 1]
    assert json.loads("".join(pieces)) == {"city": "Paris"}
    indexes = [d["index"] for n, d in got if n == "content_block_start"]
    assert indexes == [0, 1] == [d["index"] for n, d in got if n == "content_block_stop"]
    assert got[-2][1]["delta"]["stop_reason"] == "tool_use"


def test_thinking(served: Served) -> None:
    body = post(served, messages=say("think"), thinking={"type": "enabled", "budget_tokens": 1024}).json()
    assert [b["type"] for b in body["content"]] == ["thinking", "text"]
    assert (body["content"][0]["thinking"], body["content"][1]["text"]) == ("hm", "42")
    got = events(served, messages=say("think"))
    kinds = [d["delta"]["type"] for n, d in got if n == "content_block_delta"]
    assert kinds.index("signature_delta") < kinds.index("text_delta")
    assert kinds[0] == "thinking_delta"


def test_stop_reasons(served: Served) -> None:
    body = post(served, messages=say("long"), max_tokens=3).json()
    assert body["stop_reason"] == "max_tokens" and body["usage"]["output_tokens"] == 3
    body = post(served, messages=say("stop"), stop_sequences=["STOP"]).json()
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "STOP")
    assert body["content"] == [{"type": "text", "text": "one "}]


def test_history_is_rendered_as_the_template_wants_it(served: Served) -> None:
    history = [
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "plan", "signature": ""},
                {"type": "text", "text": "t"},
                {"type": "tool_use", "id": "abc", "name": "f", "input": {"city": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "abc", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "and now?"},
            ],
        },
    ]
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: 1"},
        {"type": "text", "text": "be brief"},
    ]
    assert post(served, messages=history, system=system, tools=[TOOL]).status_code == 200
    text = served.prompt()
    assert "billing" not in text and "<|im_start|>system\nbe brief" in text
    assert '<think>plan</think>t<tool_call>{"name": "f", "arguments": {"city": "Paris"}}</tool_call>' in text
    assert "<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>user\nand now?<|im_end|>" in text


def test_count_tokens(served: Served) -> None:
    counted = served.http.post(
        "/v1/messages/count_tokens", json={"model": "fake", "messages": HI, "system": "s"}
    )
    n = post(served, system="s").json()["usage"]
    assert counted.json() == {"input_tokens": total(n)}


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"messages": []}, 400, "invalid_request_error"),
        ({"messages": "x"}, 400, "invalid_request_error"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "invalid_request_error"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            400,
            "invalid_request_error",
        ),
        ({"max_tokens": 0}, 400, "invalid_request_error"),
        ({"max_tokens": "5"}, 400, "invalid_request_error"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400, "invalid_request_error"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "nope"}}, 400, "invalid_request_error"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, 400, "invalid_request_error"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error"),
        ({"thinking": {"type": "maybe"}}, 400, "invalid_request_error"),
        ({"output_config": {"format": {"type": "xml"}}}, 400, "invalid_request_error"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]},
            400,
            "invalid_request_error",
        ),
        ({"model": "nope"}, 404, "not_found_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_mistakes(served: Served, body: dict[str, Any], status: int, kind: str, stream: bool) -> None:
    response = post(served, stream=stream, **body)
    assert response.status_code == status, response.text
    error = response.json()
    assert error["type"] == "error" and error["error"]["type"] == kind and error["error"]["message"]
    assert error["request_id"] == response.headers["request-id"]


def test_errors_of_the_path(served: Served) -> None:
    assert served.http.get("/v1/messages").json()["type"] == "error"
    assert served.http.post("/v1/messages", content=b"{").json()["error"]["type"] == "invalid_request_error"


def test_an_error_on_the_way_is_an_event(served: Served) -> None:
    served.fake.executor.fail = RuntimeError("boom")
    name, data = events(served)[-1]
    assert name == "error" and data["error"]["type"] == "api_error" and "boom" in data["error"]["message"]

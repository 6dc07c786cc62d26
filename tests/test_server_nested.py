"""Mistakes inside of messages, items, blocks and tools: a 4xx that names the place, for every family."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from served import TOOLS_CHATML, Served, function


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(template=TOOLS_CHATML, n_ctx=4096, max_rows=512) as made:
        yield made


HI = {"role": "user", "content": "hi"}
WRONG: list[Any] = [True, 5, 1.5, ["x"], {"a": 1}]


def say(*items: Any) -> dict[str, Any]:
    return {"input": [HI, *items, HI]}


def reasoning(**members: Any) -> dict[str, Any]:
    return say({"type": "reasoning", "id": "r", **members})


def item_call(**members: Any) -> dict[str, Any]:
    return say({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **members})


def chat(*messages: Any) -> dict[str, Any]:
    return {"messages": [HI, *messages, HI]}


def chat_call(function: Any = None, **members: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}", **(function or {})}}
    return chat({"role": "assistant", "content": "", "tool_calls": [{**call, **members}]})


def blocks(role: str, *content: Any) -> dict[str, Any]:
    return {"max_tokens": 9, "messages": [HI, {"role": role, "content": list(content)}, HI]}


def use(**members: Any) -> dict[str, Any]:
    return blocks("assistant", {"type": "tool_use", "id": "c", "name": "f", "input": {}, **members})


def result(*behind: Any, **members: Any) -> dict[str, Any]:
    return blocks("user", {"type": "tool_result", "tool_use_id": "c", "content": "ok", **members}, *behind)


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
TEXT = {"type": "text", "text": "a"}

CASES: list[tuple[str, Any, str]] = [
    *(("/v1/responses", reasoning(summary=v), "input[1].summary") for v in WRONG if v != ["x"]),
    *(("/v1/responses", reasoning(summary=[], content=v), "input[1].content") for v in WRONG if v != ["x"]),
    *(("/v1/responses", reasoning(summary=[{"text": v}]), "input[1].summary[0].text") for v in WRONG),
    *(("/v1/responses", item_call(name=v), "input[1].name") for v in [None, "", *WRONG]),
    *(("/v1/responses", item_call(arguments=v), "input[1].arguments") for v in WRONG[:4]),
    *(("/v1/responses", item_call(call_id=v), "input[1].call_id") for v in WRONG),
    *(
        (
            "/v1/responses",
            say({"type": "function_call_output", "call_id": v, "output": ""}),
            "input[1].call_id",
        )
        for v in WRONG
    ),
    *(
        ("/v1/responses", {**say(), "tools": [{"type": "function", "name": "f", **more}]}, "tools[0]")
        for more in ({"strict": "x"}, {"parameters": []}, {"description": []})
    ),
    *(("/v1/chat/completions", chat_call(id=v), "messages[1].tool_calls[0].id") for v in WRONG),
    *(
        ("/v1/chat/completions", chat_call({"arguments": v}), "messages[1].tool_calls[0].function.arguments")
        for v in WRONG[:4]
    ),
    *(
        (
            "/v1/chat/completions",
            chat({"role": "tool", "tool_call_id": v, "content": ""}),
            "messages[1].tool_call_id",
        )
        for v in WRONG
    ),
    *(("/v1/chat/completions", chat({**HI, "name": v}), "messages[1].name") for v in WRONG),
    (
        "/v1/chat/completions",
        {**chat(), "tools": [{**function("f"), "function": {"name": "f", "strict": 5}}]},
        "strict",
    ),
    *(("/v1/messages", use(input=v), "messages[1].content[0].input") for v in ["x", *WRONG[:4]]),
    *(("/v1/messages", use(id=v), "messages[1].content[0].id") for v in WRONG),
    *(("/v1/messages", result(tool_use_id=v), "messages[1].content[0].tool_use_id") for v in WRONG),
    ("/v1/messages", result(content=[TEXT, IMAGE]), "messages[1].content[0].content[1]"),
    ("/v1/messages", result(IMAGE), "messages[1].content[1]"),
    ("/v1/messages", result(TEXT, {"type": "text", "text": 5}), "messages[1].content[2]"),
    *(
        (
            "/v1/messages",
            blocks("assistant", {"type": "thinking", "thinking": v}),
            "messages[1].content[0].thinking",
        )
        for v in WRONG
    ),
    (
        "/v1/messages",
        blocks("assistant", {"type": "thinking", "thinking": "t"}, IMAGE),
        "messages[1].content[1]",
    ),
]


@pytest.mark.parametrize(("path", "body", "place"), CASES)
def test_wrong_values_are_refused_with_their_place(
    served: Served, path: str, body: dict[str, Any], place: str
) -> None:
    answer = served.http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert place in f"{error.get('param')} {error['message']}"
    if "param" in error and place != "strict":
        assert error["param"].startswith(place)


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        (
            "/v1/chat/completions",
            chat({"role": "assistant", "content": None, "refusal": "not that"}),
            "not that",
        ),
        (
            "/v1/chat/completions",
            chat({"role": "assistant", "content": [{"type": "refusal", "refusal": "not that"}]}),
            "not that",
        ),
        (
            "/v1/responses",
            say({"role": "assistant", "content": [{"type": "refusal", "refusal": "no!"}]}),
            "no!",
        ),
        (
            "/v1/messages",
            result(content=[{"type": "document", "source": {"type": "text", "data": "of the tool"}}]),
            "of the tool",
        ),
        ("/v1/messages", use(input=None), '"arguments": {}'),
        ("/v1/chat/completions", chat_call({"arguments": None}), '"arguments": {}'),
        ("/v1/responses", item_call(arguments=None), '"arguments": {}'),
        ("/v1/responses", item_call(call_id=None, arguments={"k": 1}), '"arguments": {"k": 1}'),
        ("/v1/responses", say({"type": "function_call_output", "call_id": None, "output": "res"}), "res"),
        ("/v1/responses", say({"type": None, "role": "user", "content": "untyped"}), "untyped"),
        ("/v1/responses", reasoning(summary=[{"type": "summary_text", "text": "so"}]), "<think>so</think>"),
    ],
)
def test_what_clients_send_back_reaches_the_prompt(
    served: Served, path: str, body: dict[str, Any], text: str
) -> None:
    answer = served.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert text in served.prompt()


def test_references_to_what_would_be_stored_are_told_the_way_out(served: Served) -> None:
    answer = served.http.post("/v1/responses", json=say({"type": "item_reference", "id": "msg_1"}))
    assert answer.status_code == 400 and "send the item itself" in answer.json()["error"]["message"]


def test_infill_names_its_own_field(served: Served) -> None:
    answer = served.http.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "input_suffix"


@pytest.mark.parametrize("given", ["٥m", "٥", "५", "5m٥s", "1_0", "infinity"])
def test_durations_have_digits_of_ascii(served: Served, given: str) -> None:
    body = {"model": served.state.pool.default.id, "messages": [HI], "stream": False, "keep_alive": given}
    answer = served.http.post("/api/chat", json=body)
    assert answer.status_code == 400 and "keep_alive" in answer.json()["error"]

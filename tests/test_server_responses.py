"""OpenAI's responses over real sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from served import ONE_CALL, TOOLS_CHATML, TWO_CALLS, Served

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


BEHIND = f"{ONE_CALL} So far."


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    scripts = {
        "two calls": TWO_CALLS, "one call": ONE_CALL, "think": "<think>\nhm\n</think>\n\n42", "forever": "x" * 300,
        "behind": BEHIND,
    }  # fmt: skip
    with Served(script="hello", scripts=scripts, template=TOOLS_CHATML, n_ctx=1024) as server:
        yield server


def post(served: Served, **body: Any) -> Any:
    return served.http.post("/v1/responses", json={"input": "hi", "temperature": 0, **body})


def events(served: Served, **body: Any) -> list[dict[str, Any]]:
    response = post(served, stream=True, **body)
    assert response.status_code == 200, response.text
    out = []
    for part in response.text.split("\n\n")[:-1]:
        first, second = part.split("\n")
        out.append(json.loads(second.removeprefix("data: ")))
        assert first == f"event: {out[-1]['type']}"
    assert [e["sequence_number"] for e in out] == list(range(len(out)))
    return out


def test_plain(served: Served) -> None:
    body = post(served, instructions="be brief").json()
    assert (body["object"], body["status"], body["store"]) == ("response", "completed", False)
    (item,) = body["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [{"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}]
    assert body["usage"]["output_tokens"] == 6
    assert served.prompt().startswith("<s><|im_start|>system\nbe brief")


def test_event_order(served: Served) -> None:
    got = events(served)
    kinds = [e["type"].removeprefix("response.") for e in got]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert "".join(e["delta"] for e in got[4:-4]) == "hello" == got[-4]["text"]
    ids = {e["item_id"] for e in got if "item_id" in e} | {got[2]["item"]["id"], got[-2]["item"]["id"]}
    assert ids == {got[-1]["response"]["output"][0]["id"]}
    assert got[2]["item"]["content"] == [] and got[-1]["response"]["output"][0] == got[-2]["item"]
    assert got[0]["response"]["id"] == got[-1]["response"]["id"]


def test_calls(served: Served) -> None:
    tools = [TOOL, {**TOOL, "name": "g"}, {"type": "web_search"}]
    body = post(served, input="two calls", tools=tools).json()
    calls = [i for i in body["output"] if i["type"] == "function_call"]
    assert [(c["name"], json.loads(c["arguments"])) for c in calls] == [("f", {"a": 1}), ("g", {"b": 2})]
    assert all(c["id"].startswith("fc_") and c["call_id"] and c["status"] == "completed" for c in calls)
    got = events(served, input="one call", tools=tools)
    kinds = [e["type"].removeprefix("response.") for e in got]
    start = kinds.index("function_call_arguments.delta") - 1
    assert kinds[start] == "output_item.added" and got[start]["item"]["arguments"] == ""
    assert kinds[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    assert json.loads(got[-3]["arguments"]) == {"city": "Paris"}
    assert [i["type"] for i in got[-1]["response"]["output"]] == ["message", "function_call"]


def test_reasoning_comes_first(served: Served) -> None:
    body = post(served, input="think").json()
    assert [i["type"] for i in body["output"]] == ["reasoning", "message"]
    assert body["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    kinds = [e["type"].removeprefix("response.") for e in events(served, input="think")]
    assert kinds.index("reasoning_text.done") < kinds.index("output_text.delta")


def test_incomplete_and_failed(served: Served) -> None:
    body = post(served, input="forever", max_output_tokens=3).json()
    assert body["status"] == "incomplete" and body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events(served, input="forever", max_output_tokens=3)[-1]["type"] == "response.incomplete"
    served.fake.executor.fail = RuntimeError("boom")
    last = events(served)[-1]
    assert last["type"] == "response.failed" and "boom" in last["response"]["error"]["message"]


@pytest.mark.parametrize("limit", range(len(TWO_CALLS) // 2, len(TWO_CALLS), 7))
def test_the_item_that_was_cut_is_the_incomplete_one(served: Served, limit: int) -> None:
    """Its first call is whole; the second one is cut, and so is text."""
    tools = [TOOL, {**TOOL, "name": "g"}]
    body = {"input": "two calls", "tools": tools, "max_output_tokens": limit}
    whole, streamed = post(served, **body).json(), events(served, **body)[-1]["response"]
    for response in (whole, streamed):
        assert response["status"] == "incomplete"
        found = {item["type"]: item["status"] for item in response["output"]}
        assert found.pop("function_call") == "completed"
        assert found in ({}, {"message": "incomplete"})
    assert outline(whole) == outline(streamed)


def outline(response: dict[str, Any]) -> list[tuple[str, ...]]:
    """What the items are and say, without their ids."""
    return [
        (i["type"], i["status"], i.get("arguments") or i["content"][0]["text"]) for i in response["output"]
    ]


@pytest.mark.parametrize("question", ["one call", "behind"])
def test_items_are_the_same_whole_and_streamed(served: Served, question: str) -> None:
    """Wherever it is cut: text in front of a call is whole, text behind one is an item of its own."""
    for limit in range(8, len(BEHIND) + 9, 9):
        body = {"input": question, "tools": [TOOL], "max_output_tokens": limit}
        whole, streamed = post(served, **body).json(), events(served, **body)[-1]["response"]
        assert outline(whole) == outline(streamed)
        assert whole["status"] == streamed["status"]


def test_history(served: Served) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "plan"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "t"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"role": "developer", "content": "hurry"},
    ]
    assert post(served, input=items, tools=[TOOL]).status_code == 200
    prompt = served.prompt()
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    assert f"<|im_start|>assistant\n<think>plan</think>t{call}<|im_end|>\n<|im_start|>tool\nsunny" in prompt
    counted = served.http.post("/v1/responses/input_tokens", json={"input": items, "tools": [TOOL]}).json()
    assert counted["input_tokens"] == len(served.seen[-1].prompt)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"text": {"format": {"type": "xml"}}}, "text"),
        ({"text": {"format": {"type": "json_schema"}}}, "text"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "nope"}}, "tool_choice"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ],
)
def test_mistakes(served: Served, body: dict[str, Any], param: str) -> None:
    response = post(served, **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_the_openai_client(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.live.url}/v1", api_key="x", max_retries=0)
    assert client.responses.create(model="fake", input="hi").output_text == "hello"
    with client.responses.stream(model="fake", input="one call", tools=[TOOL]) as stream:  # type: ignore[list-item]
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["message", "function_call"]

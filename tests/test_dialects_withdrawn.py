"""A call that breaks after it was given out: it is text in every family of endpoints, and in none a call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from live_server import LiveServer

import ggfw
from ggfw.chat.deltas import TextDelta, ToolCallDelta
from ggfw.result import Result
from ggfw.server import create_app
from ggfw.testing import ScriptedModel

LONG = "x" * 400
#: It breaks 400 characters into its arguments; a second one breaks behind complete arguments; a third one is cut.
BROKEN = f'<tool_call>{{"name": "f", "arguments": {{"a": "{LONG}" oops}}}}</tool_call>'
BEHIND = f'<tool_call>{{"name": "f", "arguments": {{"a": "{LONG}"}} oops</tool_call>'
CUT = f'<tool_call>{{"name": "f", "arguments": {{"a": "{LONG}'
GOOD = f'<tool_call>{{"name": "g", "arguments": {{"b": "{LONG}"}}}}</tool_call>'
ANSWERS = {
    "say broken": BROKEN,
    "say behind": BEHIND,
    "say cut": CUT,
    "say both": f"{BROKEN} {GOOD}",
    "say good": GOOD,
}
TOOLS = [{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in "fg"]


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel.load(None, ANSWERS) as model:
        yield model


@pytest.mark.parametrize(
    ("word", "text"), [("broken", BROKEN), ("behind", BEHIND), ("cut", CUT), ("both", BROKEN)]
)
def test_in_the_library(model: ScriptedModel, word: str, text: str) -> None:
    ask = [ggfw.user(f"say {word}")]
    whole = model.chat(ask, tools=TOOLS)
    stream = model.chat_stream(ask, tools=TOOLS)
    deltas = list(stream.deltas())
    streamed = stream.result()
    assert isinstance(streamed, Result)
    names = ["g"] if word == "both" else []
    for result in (whole, streamed):
        assert (result.text, [c.name for c in result.tool_calls]) == (text, names)
        assert result.finish_reason == ("tool_calls" if names else "stop")
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == text
    calls = [d for d in deltas if isinstance(d, ToolCallDelta)]
    assert calls[0].name == "f" and [d.index for d in calls if d.withdrawn] == [0]
    assert [d.index for d in calls if d.name == "g"] == ([1] if names else [])
    begun = "".join(d.arguments for d in calls if d.index == 0)
    assert len(begun) > 256
    with pytest.raises(ValueError):
        json.loads(begun)


def test_cut_by_max_tokens_it_is_text(model: ScriptedModel) -> None:
    for limit in (20, 350):  # before and after it was given out; a token is a byte here
        result = model.chat([ggfw.user("say good")], tools=TOOLS, max_tokens=limit)
        assert (result.text, result.tool_calls, result.finish_reason) == (GOOD[:limit], (), "length")


def test_arguments_of_good_calls_come_while_they_are_written(model: ScriptedModel) -> None:
    parser = model.chat_request([ggfw.user("say good")], tools=TOOLS).parser
    assert parser is not None
    pieces = [[d for d in parser.push(c) if isinstance(d, ToolCallDelta)] for c in GOOD]
    begun = next(n for n, piece in enumerate(pieces) if piece)
    assert begun < len(GOOD) - 100 and sum(map(bool, pieces)) > 100


# -- over HTTP -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url(model: ScriptedModel) -> Iterator[str]:
    with LiveServer(create_app(model)) as live:
        yield live.url


def frames(url: str, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    import httpx

    lines = httpx.post(url + path, json={**body, "stream": True}, timeout=30).text.splitlines()
    lines = [line.removeprefix("data:").strip() for line in lines]
    return [json.loads(line) for line in lines if line.startswith("{")]


def whole(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    import httpx

    response = httpx.post(url + path, json={**body, "stream": False}, timeout=30)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def say(word: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"say {word}"}]


def test_openai_chat(url: str) -> None:
    path, body = "/v1/chat/completions", {"messages": say("both"), "tools": TOOLS}
    choice = whole(url, path, body)["choices"][0]
    assert choice["message"]["content"] == BROKEN
    assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["g"]
    deltas = [f["choices"][0]["delta"] for f in frames(url, path, body)]
    assert "".join(d.get("content") or "" for d in deltas) == BROKEN
    assert [d["withdrawn_tool_calls"] for d in deltas if "withdrawn_tool_calls" in d] == [[0]]
    alone = {"messages": say("broken"), "tools": TOOLS}
    choice = whole(url, path, alone)["choices"][0]
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"
    assert frames(url, path, alone)[-1]["choices"][0]["finish_reason"] == "stop"


def test_anthropic(url: str, model: ScriptedModel) -> None:
    tools = [{"name": n, "input_schema": {"type": "object"}} for n in "fg"]
    body = {"model": model.name, "max_tokens": 2000, "messages": say("broken"), "tools": tools}
    answer = whole(url, "/v1/messages", body)
    assert [(b["type"], b.get("text")) for b in answer["content"]] == [("text", BROKEN)]
    events = frames(url, "/v1/messages", body)
    kinds = [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"]
    assert kinds == ["tool_use", "text"], "a block that has begun cannot be taken back"
    assert [e["index"] for e in events if e["type"] == "content_block_stop"] == [0, 1]
    texts = [e["delta"]["text"] for e in events if e.get("delta", {}).get("type") == "text_delta"]
    assert "".join(texts) == BROKEN
    stops = [e["delta"]["stop_reason"] for e in events if e["type"] == "message_delta"]
    assert stops == [answer["stop_reason"]] == ["end_turn"]


def test_openai_responses(url: str) -> None:
    tools = [{"type": "function", "name": n, "parameters": {"type": "object"}} for n in "fg"]
    body = {"input": "say both", "tools": tools}
    events = frames(url, "/v1/responses", body)
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert [(i["type"], i["status"]) for i in done] == [
        ("function_call", "incomplete"),
        ("message", "completed"),
        ("function_call", "completed"),
    ]
    for answer in (events[-1]["response"], whole(url, "/v1/responses", body)):
        assert [i["type"] for i in answer["output"]] == ["message", "function_call"]
        assert answer["output"][0]["content"][0]["text"] == BROKEN and answer["output"][1]["name"] == "g"


def test_ollama(url: str, model: ScriptedModel) -> None:
    body = {"model": model.name, "messages": say("both"), "tools": TOOLS}
    answer = whole(url, "/api/chat", body)["message"]
    lines = [line["message"] for line in frames(url, "/api/chat", body)]
    streamed = [c for line in lines for c in line.get("tool_calls", ())]
    for calls in (answer["tool_calls"], streamed):
        assert [(c["function"]["name"], c["function"]["index"]) for c in calls] == [("g", 0)]
    assert answer["content"] == "".join(line["content"] for line in lines) == BROKEN


def test_native(url: str) -> None:
    body = {"messages": say("both"), "tools": TOOLS}
    assert whole(url, "/generate", body)["text"] == BROKEN
    seen = frames(url, "/generate", body)
    assert "".join(f["text"] for f in seen if not f["done"] and "text" in f) == BROKEN
    assert [f["withdrawn_tool_calls"] for f in seen if "withdrawn_tool_calls" in f] == [[0]]
    assert [c["function"]["name"] for c in seen[-1]["tool_calls"]] == ["g"]


# -- skills ----------------------------------------------------------------------------------------------------------

LOAD = '<tool_call>{"name": "load_skill", "arguments": {"name": "pirate"}}</tool_call>'


@pytest.mark.parametrize("first", [f"{BROKEN} {LOAD}", f"{LOAD}{BROKEN}"], ids=["before", "behind"])
def test_beside_a_call_that_is_answered_inside(first: str) -> None:
    """The broken call is none, so the turn is answered inside; what was shown of its calls is withdrawn."""
    from ggfw.descriptors import Skill

    pirate = Skill(name="pirate", description="How to be one", load=lambda: "SAY ARRR")
    with ScriptedModel.load(None, [first, "Arrr", first, GOOD]) as model:
        stream = model.chat_stream([ggfw.user("q")], tools=TOOLS, skills=[pirate])
        deltas = list(stream.deltas())
        result = stream.result()
        assert isinstance(result, Result)
        assert result.tool_calls == () and result.text.endswith("Arrr") and LONG in result.text
        assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == result.text
        calls = [d for d in deltas if isinstance(d, ToolCallDelta)]
        assert {d.index for d in calls if d.name} == {d.index for d in calls if d.withdrawn}
        stream = model.chat_stream([ggfw.user("q")], tools=TOOLS, skills=[pirate])
        calls = [d for d in stream.deltas() if isinstance(d, ToolCallDelta)]
        result = stream.result()
        assert isinstance(result, Result) and [c.name for c in result.tool_calls] == ["g"]
        (good,) = {d.index for d in calls if d.name} - {d.index for d in calls if d.withdrawn}
        assert [d.id for d in calls if d.index == good and d.id] == [result.tool_calls[0].id], (
            "its number is its own"
        )

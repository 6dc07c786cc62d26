"""The package anthropic: against the stand-in and against SmolLM2."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from conftest import PARAMETERS, Server

TOOL: Any = {"name": "get_weather", "description": "The weather of a city.", "input_schema": PARAMETERS}


def client(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def create(server: Server, content: Any = "Hello?", **more: Any) -> Any:
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    # The stand-in's tokens are bytes. Temperature is no argument of this package any more.
    more = {"max_tokens": 600 if server.scripted else 60, "extra_body": {"temperature": 0}, **more}
    return client(server).messages.create(model=server.model, messages=messages, **more)


def test_create(server: Server) -> None:
    message = create(server, system="Be brief.")
    assert message.content[0].type == "text" and message.content[0].text
    assert message.stop_reason in ("end_turn", "max_tokens") and message.usage.output_tokens > 0


def test_stream_helper(server: Server) -> None:
    whole = create(server).content[0].text
    arguments: Any = {"model": server.model, "max_tokens": 60, "extra_body": {"temperature": 0}}
    with client(server).messages.stream(
        messages=[{"role": "user", "content": "Hello?"}], **arguments
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole == final.content[0].text
    assert final.usage.output_tokens > 0 and final.stop_reason in ("end_turn", "max_tokens")


def test_raw_events(server: Server) -> None:
    kinds = [event.type for event in create(server, stream=True)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]


def test_tool_use(scripted: Server) -> None:
    question = "What is the weather in Paris?"
    message = create(scripted, question, tools=[TOOL])
    assert message.stop_reason == "tool_use"
    call = message.content[-1]
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "22 degrees"}
    history = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    assert "22 degrees" in create(scripted, history, tools=[TOOL]).content[0].text


def test_tool_use_streamed(server: Server) -> None:
    messages: Any = [{"role": "user", "content": "two cities, what weather?"}]
    more: Any = {} if server.scripted else {"tool_choice": {"type": "any"}, "extra_body": {"temperature": 0}}
    with client(server).messages.stream(
        model=server.model, max_tokens=500, messages=messages, tools=[TOOL], **more
    ) as stream:
        final = stream.get_final_message()
    calls = [block for block in final.content if block.type == "tool_use"]
    assert calls and all(call.name == "get_weather" for call in calls)
    if server.scripted:
        assert [call.input["city"] for call in calls] == ["Paris", "Oslo"]


def test_tool_choice(server: Server) -> None:
    message = create(
        server, "Tell me about Paris.", tools=[TOOL], tool_choice={"type": "any"}, max_tokens=400
    )
    assert any(block.type == "tool_use" and block.name == "get_weather" for block in message.content)


def test_thinking(scripted: Server) -> None:
    message = create(scripted, "think", thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking == "Six by seven."


def test_count_tokens(server: Server) -> None:
    messages: Any = [{"role": "user", "content": "Hello?"}]
    counted = client(server).messages.count_tokens(model=server.model, messages=messages)
    used = create(server).usage
    assert counted.input_tokens == used.input_tokens + used.cache_read_input_tokens


def test_mistakes_are_exceptions(server: Server) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        create(server, max_tokens=0)
    assert caught.value.body["error"]["type"] == "invalid_request_error" and caught.value.request_id
    with pytest.raises(anthropic.NotFoundError):
        client(server).messages.create(
            model="nope", max_tokens=5, messages=[{"role": "user", "content": "x"}]
        )

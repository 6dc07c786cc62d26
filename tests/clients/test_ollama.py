"""The package ollama: against the stand-in and against SmolLM2."""

from __future__ import annotations

import json
from typing import Any

import ollama
import pytest
from conftest import PERSON, TOOL, Server

HI = [{"role": "user", "content": "Hello?"}]


def client(server: Server) -> ollama.Client:
    return ollama.Client(host=server.url)


def chat(server: Server, messages: Any = HI, **more: Any) -> Any:
    options = {"temperature": 0, "num_predict": more.pop("limit", 40)}
    return client(server).chat(server.model, messages=messages, options=options, **more)


def test_chat(server: Server) -> None:
    answer = chat(server)
    assert answer.message.content and answer.done and answer.eval_count > 0 and answer.total_duration > 0
    assert answer.message.role == "assistant" and answer.done_reason in ("stop", "length")


def test_chat_streamed(server: Server) -> None:
    whole = chat(server).message.content
    parts = list(chat(server, stream=True))
    assert "".join(p.message.content for p in parts) == whole
    assert [p.done for p in parts] == [False] * (len(parts) - 1) + [True]


def test_generate(server: Server) -> None:
    answer = client(server).generate(
        server.model, prompt="Hello?", options={"num_predict": 10, "temperature": 0}
    )
    assert answer.response and answer.context
    parts = client(server).generate(server.model, prompt="Hello?", options={"num_predict": 10}, stream=True)
    assert "".join(p.response for p in parts)


def test_tools(scripted: Server) -> None:
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = chat(scripted, question, tools=[TOOL], limit=100)
    (call,) = answer.message.tool_calls
    assert call.function.name == "get_weather" and call.function.arguments == {"city": "Paris"}
    result = {"role": "tool", "tool_name": "get_weather", "content": "22 degrees"}
    assert "22 degrees" in chat(scripted, [*question, answer.message, result], tools=[TOOL]).message.content
    streamed = list(chat(scripted, question, tools=[TOOL], limit=100, stream=True))
    assert [c.function.name for p in streamed for c in p.message.tool_calls or []] == ["get_weather"]


def test_tools_are_accepted_by_a_small_model(smollm2: Server) -> None:
    """This API cannot force a call, and SmolLM2 seldom makes one; what comes is a call of the tool, or text."""
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    message = chat(smollm2, question, tools=[TOOL]).message
    assert message.content or [call.function.name for call in message.tool_calls] == ["get_weather"]


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name.
    """
    return f"22 degrees in {city}"


def test_a_python_function_as_a_tool(scripted: Server) -> None:
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = chat(scripted, question, tools=[get_weather], limit=100)
    assert answer.message.tool_calls[0].function.arguments == {"city": "Paris"}


def test_thinking(scripted: Server) -> None:
    answer = chat(scripted, [{"role": "user", "content": "think"}])
    assert (answer.message.thinking, answer.message.content) == ("Six by seven.", "42")


def test_format(server: Server) -> None:
    answer = chat(server, [{"role": "user", "content": "Describe a person."}], format=PERSON, limit=200)
    assert set(json.loads(answer.message.content)) == {"name", "age"}


def test_embed(server: Server) -> None:
    answer = client(server).embed(server.model, ["one", "two"])
    assert len(answer.embeddings) == 2 and answer.prompt_eval_count > 0
    old = client(server).embeddings(server.model, "one")
    assert list(old.embedding) == pytest.approx(list(answer.embeddings[0]), abs=1e-3)


def test_list(server: Server) -> None:
    row = next(m for m in client(server).list().models if m.model == f"{server.model}:latest")
    assert row.details.format == "gguf" and row.digest


def test_show(server: Server) -> None:
    found = client(server).show(server.model)
    assert found.modelinfo["general.architecture"] and "completion" in found.capabilities and found.template


def test_ps(server: Server) -> None:
    chat(server, limit=2)
    (row,) = client(server).ps().models
    assert row.model == f"{server.model}:latest" and row.expires_at is not None and row.context_length >= 2048


def test_pull_tells_its_progress(server: Server) -> None:
    status = [part.status for part in client(server).pull(server.model, stream=True)]
    assert status[0] == "pulling manifest" and status[-1] == "success"
    assert client(server).pull(server.model).status == "success"


def test_a_model_that_is_pulled_is_there(scripted: Server) -> None:
    parts = list(client(scripted).pull("far-away", stream=True))
    moved = [part for part in parts if part.completed is not None]
    assert parts[0].status == "pulling manifest" and parts[-1].status == "success"
    assert len(moved) >= 3 and all(part.total == 10_000 and part.digest for part in moved)
    assert [part.completed for part in moved] == sorted(part.completed for part in moved)
    assert "far-away:latest" in [m.model for m in client(scripted).list().models]
    assert client(scripted).show("far-away").modelinfo["general.architecture"] == "llama"
    assert client(scripted).delete("far-away").status == "success"


def test_mistakes_are_exceptions(server: Server) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        client(server).chat("nope", messages=HI)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError) as caught:
        client(server).chat(server.model, messages=HI, options={"num_ctx": 10**6})
    assert caught.value.status_code == 400 and "num_ctx" in caught.value.error


def test_loading_and_unloading(scripted: Server) -> None:
    assert client(scripted).generate(scripted.model, keep_alive="5m").done_reason == "load"
    assert client(scripted).generate(scripted.model, keep_alive=0).done_reason == "unload"
    assert client(scripted).ps().models == []
    assert chat(scripted).message.content


@pytest.mark.asyncio
async def test_chat_async(server: Server) -> None:
    stream = await ollama.AsyncClient(host=server.url).chat(
        server.model, messages=HI, options={"num_predict": 10}, stream=True
    )
    assert "".join([part.message.content async for part in stream])

"""The package openai, chat completions and what is older: against the stand-in and against SmolLM2."""

from __future__ import annotations

import json
import math
from typing import Any

import openai
import pytest
from conftest import PERSON, TOOL, Person, Server


def client(server: Server, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, **options)


def say(text: str) -> Any:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]


def create(server: Server, text: str = "Hello?", **options: Any) -> Any:
    # The stand-in's tokens are bytes.
    limit = 600 if server.scripted else 60
    options = {"model": server.model, "messages": say(text), "temperature": 0, "max_tokens": limit, **options}
    return client(server).chat.completions.create(**options)


def calling(server: Server, **more: Any) -> Any:
    """Options of a request that is to end in calls: SmolLM2 is too small to make them unless it has to."""
    return {"tools": [TOOL], **({} if server.scripted else {"tool_choice": "required"}), **more}


def test_models_list(server: Server) -> None:
    assert server.model in [m.id for m in client(server).models.list()]


def test_models_get(server: Server) -> None:
    found = client(server).models.retrieve(server.model)
    assert found.id == server.model and found.model_extra["meta"]["n_ctx"] >= 2048


def test_models_get_missing(server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client(server).models.retrieve("some/other:model")
    assert caught.value.code == "model_not_found"


def test_chat(server: Server) -> None:
    answer = create(server)
    assert answer.choices[0].message.content and answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    if server.scripted:
        assert answer.choices[0].message.content == "Hello from the stand-in."
        assert answer.choices[0].message.tool_calls is None


def test_chat_streamed(server: Server) -> None:
    whole = create(server, seed=1).choices[0].message.content
    chunks = list(create(server, seed=1, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole
    assert [c.choices[0].delta.role for c in chunks].count("assistant") == 1
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_chat_streamed_with_usage(server: Server) -> None:
    chunks = list(create(server, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert all(c.usage is None for c in chunks[:-1])


def test_chat_with_the_stream_helper(server: Server) -> None:
    with client(server).chat.completions.stream(
        model=server.model, messages=say("Hi"), temperature=0
    ) as stream:
        kinds = {event.type for event in stream}
    assert "content.delta" in kinds
    assert stream.get_final_completion().choices[0].message.role == "assistant"


@pytest.mark.asyncio
async def test_chat_async(server: Server) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as asynchronous:
        stream = await asynchronous.chat.completions.create(
            model=server.model, messages=say("Hi"), max_tokens=20, stream=True
        )
        text = "".join([c.choices[0].delta.content or "" async for c in stream])
    assert text


def test_tools(server: Server) -> None:
    options = calling(server, parallel_tool_calls=False, max_tokens=400)
    answer = create(server, "What is the weather in Paris?", **options)
    (call,) = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "get_weather"
    found = json.loads(call.function.arguments)
    assert found == {"city": "Paris"} if server.scripted else list(found) == ["city"]
    history = [
        *say("What is the weather in Paris?"),
        answer.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "22 degrees"},
    ]
    final = client(server).chat.completions.create(
        model=server.model, messages=history, tools=[TOOL], max_tokens=60
    )
    text = final.choices[0].message.content
    assert text == "It has 22 degrees in Paris." if server.scripted else text


def test_tools_required(server: Server) -> None:
    answer = create(server, "Tell me about Paris.", tools=[TOOL], tool_choice="required", max_tokens=400)
    (first, *_) = answer.choices[0].message.tool_calls
    assert first.function.name == "get_weather"


def test_tools_streamed(server: Server) -> None:
    options = calling(server, parallel_tool_calls=False, max_tokens=400)
    chunks = list(create(server, "What is the weather in Paris?", stream=True, **options))
    pieces = [p for c in chunks for p in c.choices[0].delta.tool_calls or []]
    assert pieces[0].id and pieces[0].function.name == "get_weather"
    assert all(p.id is None and p.function.name is None for p in pieces[1:])
    found = json.loads("".join(p.function.arguments for p in pieces))
    assert found == {"city": "Paris"} if server.scripted else list(found) == ["city"]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_tools_parallel(server: Server) -> None:
    more: Any = {"model": server.model, "messages": say("two cities"), "temperature": 0, "max_tokens": 400}
    with client(server).chat.completions.stream(**more, **calling(server)) as stream:
        for _ in stream:
            pass
        calls = stream.current_completion_snapshot.choices[0].message.tool_calls
    assert len({c.id for c in calls}) == len(calls) and {c.function.name for c in calls} == {"get_weather"}
    if server.scripted:
        assert [json.loads(c.function.arguments)["city"] for c in calls] == ["Paris", "Oslo"]
    one = create(server, "two cities", max_tokens=400, **calling(server, parallel_tool_calls=False))
    assert len(one.choices[0].message.tool_calls) == 1


def test_json_schema(server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    answer = create(server, "Describe a person.", response_format=form, max_tokens=200)
    assert set(json.loads(answer.choices[0].message.content)) == {"name", "age"}
    assert answer.choices[0].finish_reason == "stop"


def test_parse(server: Server) -> None:
    answer = client(server).chat.completions.parse(
        model=server.model, messages=say("Describe a person."), response_format=Person, temperature=0
    )
    parsed = answer.choices[0].message.parsed
    assert parsed == Person(name="Ada", age=36) if server.scripted else isinstance(parsed, Person)


def test_logprobs(server: Server) -> None:
    answer = create(server, logprobs=True, top_logprobs=3, max_tokens=8)
    entries = answer.choices[0].logprobs.content
    assert 1 <= len(entries) <= 8 and all(e.logprob <= 0 and len(e.top_logprobs) == 3 for e in entries)
    assert "".join(e.token for e in entries) == answer.choices[0].message.content


def test_two_choices(server: Server) -> None:
    answer = create(server, n=2, temperature=1.5, seed=3, max_tokens=20)
    again = create(server, n=2, temperature=1.5, seed=3, max_tokens=20)
    texts = [c.message.content for c in answer.choices]
    assert [c.index for c in answer.choices] == [0, 1] and texts == [c.message.content for c in again.choices]
    if not server.scripted:
        assert texts[0] != texts[1]
    if server.scripted:
        with client(server).chat.completions.stream(model="stand-in", messages=say("Hi"), n=2) as stream:
            assert len(stream.get_final_completion().choices) == 2


def test_reasoning(scripted: Server) -> None:
    answer = create(scripted, "think")
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("Six by seven.", "42")
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    deltas = [c.choices[0].delta for c in create(scripted, "think", stream=True)]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == "Six by seven."
    assert "".join(d.content or "" for d in deltas) == "42"


def test_completions(server: Server) -> None:
    answer = client(server).completions.create(
        model=server.model, prompt="Once upon", max_tokens=8, temperature=0
    )
    assert answer.choices[0].text and answer.object == "text_completion"
    stream = client(server).completions.create(
        model=server.model, prompt="Once upon", max_tokens=8, temperature=0, stream=True
    )
    assert "".join(c.choices[0].text for c in stream) == answer.choices[0].text
    several = client(server).completions.create(model=server.model, prompt=["a", "b"], max_tokens=4)
    assert [c.index for c in several.choices] == [0, 1]


def test_embeddings_with_their_default(server: Server) -> None:
    answer = client(server).embeddings.create(model=server.model, input=["one", "two"])
    assert [row.index for row in answer.data] == [0, 1]
    for row in answer.data:
        assert math.isclose(math.hypot(*row.embedding), 1, abs_tol=1e-4)
    plain = client(server).embeddings.create(model=server.model, input="one", encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(answer.data[0].embedding, abs=1e-3)


def test_responses_create(server: Server) -> None:
    answer = client(server).responses.create(
        model=server.model, input="Hello?", instructions="Be brief.", max_output_tokens=40, temperature=0
    )
    assert answer.output_text and answer.status in ("completed", "incomplete")
    assert answer.usage.total_tokens > 0


def test_responses_stream(server: Server) -> None:
    # Not limited: this helper wants an answer that is completed.
    with client(server).responses.stream(model=server.model, input="Hello?", temperature=0) as stream:
        events = [event for event in stream]
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == final.output_text


def test_responses_tools(server: Server) -> None:
    tool = {"type": "function", "strict": None, **TOOL["function"]}
    question = "What is the weather in Paris?"
    options: Any = {"model": server.model, "tools": [tool], "temperature": 0, "max_output_tokens": 400}
    more: Any = {} if server.scripted else {"tool_choice": "required", "parallel_tool_calls": False}
    first = client(server).responses.create(input=question, **options, **more)
    call = next(item for item in first.output if item.type == "function_call")
    assert call.name == "get_weather"
    found = json.loads(call.arguments)
    assert found == {"city": "Paris"} if server.scripted else list(found) == ["city"]
    items = [
        {"role": "user", "content": question},
        *first.output,
        {"type": "function_call_output", "call_id": call.call_id, "output": "22 degrees"},
    ]
    second = client(server).responses.create(input=items, **options)
    assert second.output_text == "It has 22 degrees in Paris." if server.scripted else second.output
    with client(server).responses.stream(input=question, **options, **more) as stream:
        assert "response.function_call_arguments.done" in {event.type for event in stream}


def test_responses_parse(server: Server) -> None:
    answer = client(server).responses.parse(
        model=server.model, input="Describe a person.", text_format=Person, temperature=0
    )
    parsed = answer.output_parsed
    assert parsed == Person(name="Ada", age=36) if server.scripted else isinstance(parsed, Person)


def test_mistakes_are_exceptions(server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        create(server, top_p=2)
    assert caught.value.param == "top_p" and caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError):
        client(server).responses.create(model=server.model, input="x", previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError):
        create(server, model="nope")
    with pytest.raises(openai.BadRequestError) as caught:
        create(server, "word " * 20_000)
    assert caught.value.code == "context_length_exceeded"


def test_a_client_that_leaves(server: Server) -> None:
    stream = create(server, "count forever", stream=True, max_tokens=500)
    next(iter(stream))
    stream.close()
    assert create(server, max_tokens=5).choices[0].message.content

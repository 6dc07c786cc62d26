"""langchain-openai, langchain-ollama, litellm and llm: chat, streams, tools or schemas, embeddings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import litellm
import pytest
from conftest import PERSON, TOOL, Person, Server
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

litellm.telemetry = False


# -- langchain-openai ------------------------------------------------------------------------------


def langchain(server: Server, **more: Any) -> ChatOpenAI:
    limit = 600 if server.scripted else 60  # the stand-in's tokens are bytes
    more = {
        "model": server.model,
        "base_url": f"{server.url}/v1",
        "api_key": "none",
        "max_tokens": limit,
        **more,
    }
    return ChatOpenAI(temperature=0, **more)


def test_langchain_openai_chat(server: Server) -> None:
    answer = langchain(server).invoke("Hello?")
    assert answer.content and answer.usage_metadata["output_tokens"] > 0


def test_langchain_openai_stream(server: Server) -> None:
    assert "".join(chunk.content for chunk in langchain(server).stream("Hello?"))


def test_langchain_openai_tools(server: Server) -> None:
    choice = None if server.scripted else "any"  # SmolLM2 calls when it has to
    bound = langchain(server, max_tokens=600).bind_tools([TOOL], tool_choice=choice)
    answer = bound.invoke("What is the weather in Paris?")
    assert {c["name"] for c in answer.tool_calls} == {"get_weather"}
    streamed = None
    for chunk in bound.stream("two cities"):
        streamed = chunk if streamed is None else streamed + chunk
    assert {c["name"] for c in streamed.tool_calls} == {"get_weather"}
    if server.scripted:
        assert [c["args"] for c in answer.tool_calls] == [{"city": "Paris"}]
        assert [c["args"]["city"] for c in streamed.tool_calls] == ["Paris", "Oslo"]


def test_langchain_openai_schema(server: Server) -> None:
    found = langchain(server, max_tokens=600).with_structured_output(Person).invoke("Describe a person.")
    assert found == Person(name="Ada", age=36) if server.scripted else isinstance(found, Person)


def test_langchain_openai_responses(scripted: Server) -> None:
    answer = langchain(scripted, use_responses_api=True).invoke("Hello?")
    assert answer.text == "Hello from the stand-in."


def test_langchain_openai_embeddings(server: Server) -> None:
    made = OpenAIEmbeddings(
        model=server.model, base_url=f"{server.url}/v1", api_key="none", check_embedding_ctx_length=False
    ).embed_documents(["one", "two"])
    assert len(made) == 2 and len(made[0]) == len(made[1])


# -- langchain-ollama ------------------------------------------------------------------------------


def chat_ollama(server: Server, limit: int = 60) -> ChatOllama:
    return ChatOllama(
        model=server.model, base_url=server.url, num_predict=limit, temperature=0, validate_model_on_init=True
    )


def test_langchain_ollama_chat(server: Server) -> None:
    answer = chat_ollama(server).invoke("Hello?")
    assert answer.content and answer.usage_metadata["output_tokens"] > 0


def test_langchain_ollama_stream(server: Server) -> None:
    assert "".join(chunk.content for chunk in chat_ollama(server).stream("Hello?"))


def test_langchain_ollama_tools(scripted: Server) -> None:
    made = ChatOllama(model="stand-in", base_url=scripted.url, num_predict=300, temperature=0)
    answer = made.bind_tools([TOOL]).invoke("What is the weather in Paris?")
    assert [(c["name"], c["args"]) for c in answer.tool_calls] == [("get_weather", {"city": "Paris"})]


def test_langchain_ollama_schema(server: Server) -> None:
    found = chat_ollama(server, 600).with_structured_output(Person).invoke("Describe a person.")
    assert found == Person(name="Ada", age=36) if server.scripted else isinstance(found, Person)


def test_langchain_ollama_embeddings(server: Server) -> None:
    made = OllamaEmbeddings(model=server.model, base_url=server.url).embed_documents(["one", "two"])
    assert len(made) == 2


# -- litellm ---------------------------------------------------------------------------------------

PROVIDERS = {"openai": "/v1", "lm_studio": "/v1", "hosted_vllm": "/v1", "ollama": "", "ollama_chat": ""}


def complete(server: Server, provider: str, text: str = "Hello?", **more: Any) -> Any:
    return litellm.completion(
        model=f"{provider}/{server.model}",
        api_base=server.url + PROVIDERS[provider],
        api_key="none",
        messages=[{"role": "user", "content": text}],
        max_tokens=more.pop("max_tokens", 60),
        temperature=0,
        **more,
    )


@pytest.mark.parametrize("provider", PROVIDERS)
def test_litellm_chat(server: Server, provider: str) -> None:
    assert complete(server, provider).choices[0].message.content


@pytest.mark.parametrize("provider", PROVIDERS)
def test_litellm_stream(server: Server, provider: str) -> None:
    assert "".join(c.choices[0].delta.content or "" for c in complete(server, provider, stream=True))


@pytest.mark.parametrize("provider", ["openai", "lm_studio", "hosted_vllm"])
def test_litellm_tools_required(server: Server, provider: str) -> None:
    options: Any = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 600}
    calls = (
        complete(server, provider, "What is the weather in Paris?", **options).choices[0].message.tool_calls
    )
    assert calls and all(call.function.name == "get_weather" for call in calls)


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "ollama_chat"])
def test_litellm_tools(scripted: Server, provider: str) -> None:
    answer = complete(scripted, provider, "What is the weather in Paris?", tools=[TOOL], max_tokens=300)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Paris"}


def test_litellm_schema(server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    answer = complete(server, "openai", "Describe a person.", response_format=form, max_tokens=200)
    assert set(json.loads(answer.choices[0].message.content)) == {"name", "age"}


def test_litellm_anthropic(server: Server) -> None:
    answer = litellm.completion(
        model=f"anthropic/{server.model}",
        api_base=server.url,
        api_key="none",
        messages=[{"role": "user", "content": "Hello?"}],
        max_tokens=40,
    )
    assert answer.choices[0].message.content


def test_litellm_embedding(server: Server) -> None:
    made = litellm.embedding(
        model=f"openai/{server.model}", api_base=f"{server.url}/v1", api_key="none", input=["one", "two"]
    )
    assert len(made.data) == 2


# -- llm -------------------------------------------------------------------------------------------


def llm(server: Server, folder: Path, *arguments: str) -> str:
    """Run simonw's ``llm`` with the server as an extra model."""
    models = f"- model_id: mine\n  model_name: {server.model}\n  api_base: {server.url}/v1\n  supports_schema: true\n"
    (folder / "extra-openai-models.yaml").write_text(models)
    command = [str(Path(sys.executable).with_name("llm")), "-m", "mine", *arguments]
    environment = {
        "LLM_USER_PATH": str(folder),
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
    }
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_llm_chat_and_stream(server: Server, tmp_path: Path) -> None:
    options = ("-o", "temperature", "0", "-o", "max_tokens", "30", "Hello?")
    whole = llm(server, tmp_path, "--no-stream", *options)
    assert whole and llm(server, tmp_path, *options) == whole


def test_llm_schema(server: Server, tmp_path: Path) -> None:
    options = ("-o", "temperature", "0", "--schema", json.dumps(PERSON))
    found = json.loads(llm(server, tmp_path, *options, "Describe a person."))
    assert found == {"name": "Ada", "age": 36} if server.scripted else set(found) == {"name", "age"}

"""Skills in every API family, streamed and whole: usage of all rounds, no skills by choice, mixed turns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from live_server import LiveServer

from ggfw.descriptors import Skill
from ggfw.server import create_app
from ggfw.testing import ScriptedModel

CALL = '<tool_call>\n{"name": "load_skill", "arguments": {"name": "pirate"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
BODY, SAID = "SAY ARRR", "Arrr, matey!"
#: What is asked decides: a skill and then the answer, two rounds of skills, or the skill beside a call of the caller's.
ANSWERS = {"mixed turn": f"{CALL}\n{OTHER}", BODY: SAID, "like a pirate": CALL}
PIRATE = Skill(name="pirate", description="How to be one", load=lambda: BODY)
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
OPENAI = [{"type": "function", "function": FUNCTION}]

#: Family -> (path, body that asks, tools in its form, the choice of no tool in its form).
FAMILIES: dict[str, tuple[str, Any, Any, Any]] = {
    "openai": ("/v1/chat/completions", lambda text: {"messages": say(text)}, OPENAI, "none"),
    "anthropic": (
        "/v1/messages",
        lambda text: {"messages": say(text), "max_tokens": 900},
        [{"name": "f", "input_schema": {"type": "object"}}],
        {"type": "none"},
    ),
    "responses": ("/v1/responses", lambda text: {"input": text}, [{"type": "function", **FUNCTION}], "none"),
    "ollama": ("/api/chat", lambda text: {"messages": say(text)}, OPENAI, None),
    "native": ("/generate", lambda text: {"messages": say(text)}, OPENAI, "none"),
}
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
every = pytest.mark.parametrize("family", FAMILIES)


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel.load(None, ANSWERS) as model:
        yield model


@pytest.fixture(scope="module")
def http(model: ScriptedModel) -> Iterator[httpx.Client]:
    with LiveServer(create_app(model, skills=[PIRATE])) as live:
        with httpx.Client(base_url=live.url, timeout=30) as client:
            yield client


def ask(
    http: httpx.Client, model: ScriptedModel, family: str, text: str, stream: bool, **more: Any
) -> list[Any]:
    """The JSON objects of an answer, in order."""
    model.prompts.clear()
    path, body, _, _ = FAMILIES[family]
    name = {"model": model.name} if family in ("anthropic", "ollama") else {}
    usage = {"stream_options": {"include_usage": True}} if family == "openai" and stream else {}
    response = http.post(path, json={**body(text), **name, **usage, **more, "stream": stream})
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data:").strip() for line in response.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def used(frames: list[Any]) -> tuple[int, int]:
    """(tokens of prompts, tokens written) that the last object which tells of them tells of."""
    for frame in reversed(frames):
        frame = frame.get("response") if isinstance(frame.get("response"), dict) else frame
        told = frame.get("usage") or frame
        for asked, written in (
            ("prompt_tokens", "completion_tokens"),
            ("prompt_tokens", "generated_tokens"),
            ("input_tokens", "output_tokens"),
            ("prompt_eval_count", "eval_count"),
        ):
            if asked in told and written in told:
                return told[asked] + told.get("cache_read_input_tokens", 0), told[written]
    raise AssertionError("nothing tells of tokens")


@both
@every
def test_usage_sums_all_rounds(http: httpx.Client, model: ScriptedModel, family: str, stream: bool) -> None:
    frames = ask(http, model, family, "Speak like a pirate", stream)
    encode = model.tokenizer.encode
    assert len(model.prompts) == 2 and BODY in model.prompts[1]
    prompts = sum(len(encode(text, add_special=False, parse_special=True)) for text in model.prompts)
    assert used(frames) == (prompts, sum(len(encode(text, add_special=False)) for text in (CALL, SAID)))


@both
@pytest.mark.parametrize("family", [name for name, (_, _, _, none) in FAMILIES.items() if none])
def test_none_switches_skills_off(
    http: httpx.Client, model: ScriptedModel, family: str, stream: bool
) -> None:
    _, _, tools, none = FAMILIES[family]
    frames = ask(http, model, family, "Speak like a pirate", stream, tools=tools, tool_choice=none)
    assert len(model.prompts) == 1 and "load_skill" not in model.prompts[0]
    assert not names(frames)


def names(frames: list[Any]) -> set[str]:
    """The names of calls in an answer, wherever the family puts them."""
    found: set[str] = set()

    def look(value: Any, inside: bool) -> None:
        if isinstance(value, list):
            for one in value:
                look(one, inside)
        elif isinstance(value, dict):
            inside = inside or value.get("type") in ("tool_use", "function_call")
            if inside and isinstance(value.get("name"), str):
                found.add(value["name"])
            for key, one in value.items():
                if key not in ("tools", "tool_choice", "input", "arguments"):
                    look(one, inside or key == "tool_calls")

    look(frames, False)
    return found


@both
@every
def test_mixed_turns_go_to_the_caller(
    http: httpx.Client, model: ScriptedModel, family: str, stream: bool
) -> None:
    frames = ask(http, model, family, "a mixed turn", stream, tools=FAMILIES[family][2])
    assert len(model.prompts) == 1 and names(frames) == {"load_skill", "f"}


@both
@every
def test_an_internal_call_is_nowhere(
    http: httpx.Client, model: ScriptedModel, family: str, stream: bool
) -> None:
    frames = ask(http, model, family, "Speak like a pirate", stream, tools=FAMILIES[family][2])
    assert len(model.prompts) == 2 and not names(frames)
    assert "load_skill" not in json.dumps(frames) and BODY not in json.dumps(frames)

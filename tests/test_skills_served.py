"""Skills behind every endpoint and at the command line, with the scripted stand-in of the testing kit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from live_server import LiveServer

import ggfw
from ggfw.descriptors import Skill
from ggfw.server import create_app
from ggfw.testing import ScriptedModel

CALL = '<tool_call>\n{"name": "load_skill", "arguments": {"name": "pirate"}}\n</tool_call>'
#: The body of the skill, and what the model says having read it.
BODY, SAID = "SAY ARRR", "Arrr, matey!"
#: A call of a tool that nobody offers.
STRAY = '<tool_call>\n{"name": "pirate", "arguments": {}}\n</tool_call>'
ANSWERS = {BODY: SAID, "like a pirate": CALL, "there is no tool": SAID, "a stray call": STRAY}
PIRATE = Skill(name="pirate", description="How to be one", load=lambda: BODY)
USER = "Speak like a pirate"
ASK = [{"role": "user", "content": USER}]


# -- the stand-in ----------------------------------------------------------------------------------------------------


def test_answers_by_prompt_by_turn_and_by_function() -> None:
    with ScriptedModel.load(None, {"two": "2\né", "one": "1"}) as model:
        assert model.chat([ggfw.user("say one")]).text == "1"
        result = model.chat([ggfw.user("say two")])
        assert (result.text, result.finish_reason, result.usage.completion_tokens) == ("2\né", "stop", 4)
        assert "".join(model.chat_stream([ggfw.user("say two")])) == "2\né"  # type: ignore[arg-type]
        assert len(model.prompts) == 3 and "say one<|im_end|>" in model.prompts[0]
        own = model.generate("else", max_tokens=3, temperature=0)
        assert own.usage.completion_tokens == 3 and own.finish_reason == "length"
    with ScriptedModel.load(None, ["a", None, [66, 67, 68]]) as model:
        first, second, third = (model.generate("x", max_tokens=5, seed=1) for _ in range(3))
        assert first.text == "a" and third.token_ids == (66, 67, 68) and len(second.token_ids) == 5
    with ScriptedModel.load(None, lambda prompt: prompt[-1:] * 3 if "y" in prompt else "") as model:
        assert model.generate("xy").text == "yyy" and model.generate("xy", max_tokens=2).text == "yy"
        assert model.generate("x").text == ""


# -- the server ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel.load(None, ANSWERS) as model:
        yield model


@pytest.fixture(scope="module")
def http(model: ScriptedModel) -> Iterator[httpx.Client]:
    with LiveServer(create_app(model, skills=[PIRATE])) as live:
        with httpx.Client(base_url=live.url, timeout=30) as client:
            yield client


def said_by(response: httpx.Response) -> str:
    """All text of an answer, plain or streamed, whatever the family."""
    texts: list[str] = []
    for line in response.text.splitlines():
        line = line.removeprefix("data: ").strip()
        if not line.startswith("{"):
            continue
        frame = json.loads(line)
        # Whole answers that close a stream repeat what was streamed.
        if frame.get("type", "").endswith((".done", ".completed")) or frame.get("done") and texts:
            continue
        texts += _texts(frame)
    return "".join(texts)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str) and (key in ("text", "content", "response") or key == "delta"):
                yield item
            elif isinstance(item, dict | list) and key != "usage":
                yield from _texts(item)


TEMPLATED = [
    ("/v1/chat/completions", {"messages": ASK}),
    ("/v1/messages", {"messages": ASK, "max_tokens": 300}),
    ("/v1/responses", {"input": USER}),
    ("/api/chat", {"messages": ASK}),
    ("/api/generate", {"prompt": USER}),
    ("/generate", {"messages": ASK}),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("path", "body"), TEMPLATED, ids=[path for path, _ in TEMPLATED])
def test_every_templated_endpoint(
    http: httpx.Client, model: ScriptedModel, path: str, body: dict[str, Any], stream: bool
) -> None:
    model.prompts.clear()
    name = {"model": model.name} if path.startswith(("/api", "/v1/messages")) else {}
    response = http.post(path, json={**body, **name, "stream": stream})
    assert response.status_code == 200, response.text
    assert said_by(response) == SAID
    for word in ("load_skill", "<tool_call", "function_call", BODY, "tool_use"):
        assert word not in response.text, word
    assert len(model.prompts) == 2 and "load_skill" in model.prompts[0] and BODY in model.prompts[1]


def test_usage_sums_the_rounds(http: httpx.Client, model: ScriptedModel) -> None:
    model.prompts.clear()
    used = http.post("/v1/chat/completions", json={"messages": ASK}).json()["usage"]
    spoken = [len(model.tokenizer.encode(text, add_special=False)) for text in (CALL, SAID)]
    assert used["completion_tokens"] == sum(spoken)
    prompts = [
        len(model.tokenizer.encode(text, add_special=False, parse_special=True)) for text in model.prompts
    ]
    assert used["prompt_tokens"] == sum(prompts)


def test_log_probabilities_show_nothing_of_the_call(http: httpx.Client) -> None:
    body = {"messages": ASK, "logprobs": True, "top_logprobs": 0}
    choice = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == SAID


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": USER, "max_tokens": 400}),
        ("/completion", {"prompt": USER, "n_predict": 400}),
        ("/api/generate", {"prompt": USER, "raw": True, "stream": False}),
    ],
    ids=["completions", "completion", "raw"],
)
def test_raw_endpoints_know_no_skills(
    http: httpx.Client, model: ScriptedModel, path: str, body: dict[str, Any]
) -> None:
    model.prompts.clear()
    response = http.post(path, json={"model": model.name, **body})
    assert response.status_code == 200, response.text
    assert len(model.prompts) == 1 and "load_skill" not in model.prompts[0]
    assert "load_skill" in response.text  # what the model wrote is text here


def test_none_switches_them_off(http: httpx.Client, model: ScriptedModel) -> None:
    model.prompts.clear()
    response = http.post("/v1/chat/completions", json={"messages": ASK, "tool_choice": "none"})
    assert response.status_code == 200 and len(model.prompts) == 1 and "load_skill" not in model.prompts[0]


# -- the command line ------------------------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, path: Path, folder: Path, answers: Any, *flags: str) -> Any:
    """``ggfw run`` with a scripted model of the file."""
    from ggfw.cli.main import cli

    made: list[ScriptedModel] = []

    def load_model(path: Path, options: dict[str, Any], **more: Any) -> ScriptedModel:
        made.append(ScriptedModel.load(path, answers))
        return made[0]

    monkeypatch.setattr("ggfw.cli.loading.load_model", load_model)
    outcome = CliRunner().invoke(cli, ["run", str(path), USER, "--skills", str(folder), *flags])
    return outcome, made[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "skills"
    (folder / "pirate").mkdir(parents=True)
    text = f"---\nname: pirate\ndescription: How to be one\n---\n{BODY}\n"
    (folder / "pirate" / "SKILL.md").write_text(text)
    return folder


@pytest.mark.slow
def test_smollm2_uses_a_skill_that_the_stand_in_asks_for(
    smollm2_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first turn is scripted, the answer is the real model's own."""
    flags = ("--temp", "0", "--max-tokens", "120", "--json")
    outcome, model = run(monkeypatch, smollm2_path, folder, [CALL], *flags)
    assert outcome.exit_code == 0, outcome.output
    answer = json.loads(outcome.stdout)
    assert answer["text"].strip() and not answer["tool_calls"] and "load_skill" not in answer["text"]
    assert len(model.prompts) == 2 and BODY in model.prompts[1] and BODY not in model.prompts[0]
    assert answer["usage"]["completion_tokens"] > len(answer["token_ids"])


def test_run_says_what_the_skill_told(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ggfw.testing import tiny_gguf

    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf(n_ctx=4096))
    outcome, model = run(monkeypatch, path, folder, ANSWERS)
    assert outcome.exit_code == 0 and outcome.stdout.strip() == SAID, outcome.output
    assert len(model.prompts) == 2 and BODY in model.prompts[1]


def test_skills_of_plugins_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ggfw.cli.main import cli
    from ggfw.testing import registry_with, tiny_gguf

    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf(n_ctx=4096))
    registry = registry_with(PIRATE)
    monkeypatch.setattr("ggfw.registry.default_registry", lambda: registry)
    monkeypatch.setattr("ggfw.cli.loading.load_model", lambda *a, **k: ScriptedModel.load(path, ANSWERS))
    outcome = CliRunner().invoke(cli, ["run", str(path), USER, "--skills"])
    assert outcome.exit_code == 0 and outcome.stdout.strip() == SAID, outcome.output
    assert ggfw.load_skills().keys() >= {"pirate"} and not ggfw.load_skills(plugins=False)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate"]
)
def test_stray_calls_are_told_to_the_model_where_the_client_has_no_tools(
    http: httpx.Client, path: str, stream: bool
) -> None:
    text, name = "Make a stray call", http.get("/v1/models").json()["data"][0]["id"]
    body: dict[str, Any] = {"model": name, "stream": stream, "max_tokens": 200}
    body |= {"/v1/responses": {"input": text}, "/api/generate": {"prompt": text}}.get(
        path, {"messages": [{"role": "user", "content": text}]}
    )
    answer = http.post(path, json=body)
    assert answer.status_code == 200 and said_by(answer) == SAID
    assert not any(mark in answer.text for mark in ("load_skill", "pirate", '"tool_calls"', "function_call"))


@pytest.mark.parametrize("stream", [False, True])
def test_stray_calls_go_to_clients_with_tools(http: httpx.Client, stream: bool) -> None:
    tools = [{"type": "function", "function": {"name": "mine"}}]
    message = {"role": "user", "content": "Make a stray call"}
    body = {"messages": [message], "tools": tools, "stream": stream, "max_tokens": 200}
    answer = http.post("/v1/chat/completions", json=body)
    assert '"name":"pirate"' in answer.text and '"finish_reason":"tool_calls"' in answer.text

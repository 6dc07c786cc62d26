"""Reasoning of every dialect that has it: opened by the prompt or by the model, limited, switched off, kept in history.

The model thinks for ever, unless its block is closed; then it answers. What is written in its place must be what the
family's own template writes around that block.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_model import FakeModel
from served import Served
from test_dialects import NAMES, dialect, table, tools_of

import ggfw
from ggfw.chat.deltas import ReasoningDelta, TextDelta
from ggfw.chat.template import ChatTemplate
from ggfw.library import Model

ASK = [ggfw.user("q")]
THOUGHT, ANSWER = "hmm so ", "42"
#: Dialect -> (opening text, what closes it when the budget is used up).
BLOCKS: dict[str, tuple[str, str]] = {
    name: ("<think>\n", "\n</think>\n\n")
    for name in (
        *(
            "hermes",
            "qwen3_coder",
            "llama3",
            "generic",
            "nemotron",
            "granite",
            "deepseek_r1",
            "lfm2",
            "phi4_mini",
        ),
        *("functools", "minimax_m1", "minimax_m2", "minicpm5", "gigachat3", "gigachat3_1"),
    )
} | {
    "kimi_k2": ("<think>", "</think>"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "seed_oss": ("<seed:think>", "</seed:think>\n"),
    "apertus": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "apriel": ("Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]\n"),
    "deepseek_v3_1": ("<think>", "</think>"),
    "deepseek_v3_2": ("<think>", "</think>"),
    "deepseek_v4": ("<think>", "</think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "mistral_list": ("[THINK]", "[/THINK]"),
    "gemma4": ("<|channel>thought\n", "\n<channel|>"),
    "harmony": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
}
#: Ends of prompts behind which the model goes on.
BEGINS = {"harmony": "<|start|>assistant"}
NO_REASONING = ("gemma3", "functiongemma")


def thinker(name: str, opened: bool = False, answer: str = ANSWER) -> tuple[Model, FakeModel]:
    """A model of this dialect that thinks for ever."""
    opening, closing = BLOCKS[name]
    begin = BEGINS.get(name, "assistant:") + (opening if opened else "")
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}" + begin

    def policy(tokens: list[int], n_prompt: int) -> np.ndarray:
        said = ("" if not opened else opening) + fake.tokenizer.decode(tokens[n_prompt:], special=True)
        bare = opening.rstrip()
        if not said.startswith(bare):
            wanted = bare[len(said) :]
        elif closing.strip() not in said[len(bare) :]:
            wanted = THOUGHT[len(said.removeprefix(bare).lstrip()) % len(THOUGHT) :]
        else:
            wanted = answer[len(said.partition(closing.strip())[2].lstrip("\n")) :]
        logits = np.full(fake.n_vocab, -30.0, np.float32)
        logits[wanted.encode()[0] if wanted else fake.tokenizer.eos_id] = 30.0
        return logits

    fake = FakeModel(policy=policy, template=template, n_ctx=2048)
    model = Model(fake)  # type: ignore[arg-type]
    model.__dict__["dialect"] = dialect(name)  # a cached property
    return model, fake


def test_every_dialect_is_here() -> None:
    assert sorted([*BLOCKS, *NO_REASONING]) == NAMES
    for name in NO_REASONING:
        assert dialect(name).reasoning("") is None


@pytest.mark.parametrize("opened", [True, False], ids=["opened", "begun"])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_budget_closes_the_block_as_the_family_does(name: str, opened: bool) -> None:
    opening, closing = BLOCKS[name]
    model, fake = thinker(name, opened)
    with model:
        result = model.chat(ASK, reasoning_budget=6, max_tokens=200, temperature=0)
        assert (result.reasoning, result.text, result.finish_reason) == ("hmm so", ANSWER, "stop")
        written = fake.tokenizer.decode(result.token_ids, special=True).removesuffix("</s>")
        assert written == ("" if opened else opening.rstrip()) + "hmm so" + closing + ANSWER
        assert result.usage.reasoning_tokens >= 6
        stream = model.chat_stream(ASK, reasoning_budget=6, max_tokens=200, temperature=0)
        deltas = list(stream.deltas())
        assert "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)) == result.reasoning
        assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == result.text
        endless = model.chat(ASK, max_tokens=60, temperature=0)
        assert (endless.text, endless.finish_reason) == ("", "length") and endless.reasoning.startswith(
            "hmm so hmm"
        )


@pytest.mark.parametrize("opened", [True, False], ids=["opened", "begun"])
@pytest.mark.parametrize("name", BLOCKS)
def test_off(name: str, opened: bool) -> None:
    model, _ = thinker(name, opened)
    with model:
        result = model.chat(ASK, max_tokens=100, temperature=0, think=False)
        assert (result.reasoning, result.text, result.finish_reason) == ("", ANSWER, "stop")


@pytest.mark.parametrize("name", [n for n in BLOCKS if n not in ("llama3",)])
def test_a_forced_call_comes_behind_the_block(name: str) -> None:
    rows = [
        r for r in table(name)
        if len(r.get("calls", ())) == 1 and not r.get("text") and not r.get("reasoning") and not r.get("prompt")
    ]  # fmt: skip
    row = min(rows, key=lambda r: len(r["output"]))
    tools = [tool.definition() for tool in tools_of(row).offered]
    opened = name != "harmony"  # there the headers are part of the grammar
    model, _ = thinker(name, opened, answer=row["output"])
    with model:
        options: dict[str, Any] = {
            "tools": tools,
            "tool_choice": "required",
            "temperature": 0,
            "max_tokens": 600,
        }
        result = model.chat(ASK, reasoning_budget=6, **options)
        assert result.reasoning == "hmm so" and result.tool_calls and not result.text


# -- what requests of every family say -------------------------------------------------------------------------------

SERVED = ("hermes", "gemma4", "harmony")


@pytest.fixture(scope="module", params=SERVED)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    model, fake = thinker(request.param, opened=True)
    template = fake.gguf.metadata["tokenizer.chat_template"]
    marks = {
        "hermes": "<tool_call>",
        "gemma4": '<|tool_call><|"|>',
        "harmony": "<|start|><|channel|><|message|>",
    }
    with Served(
        policy=fake.executor._policy, template="{# " + marks[request.param] + " #}" + template, n_ctx=2048
    ) as server:
        assert type(server.model.dialect) is type(dialect(request.param))
        yield server
    model.close()


def fields(value: Any, names: tuple[str, ...]) -> str:
    """The texts that stand under these names, one behind the other."""
    if isinstance(value, list):
        return "".join(fields(one, names) for one in value)
    if not isinstance(value, dict):
        return ""
    return "".join(v if isinstance(v, str) and k in names else fields(v, names) for k, v in value.items())


CHAT = {"messages": [{"role": "user", "content": "q"}], "temperature": 0, "max_tokens": 200}
OLLAMA = {"model": "fake", "messages": CHAT["messages"], "options": {"temperature": 0, "num_predict": 200}}
ANTHROPIC = {"model": "fake", "messages": CHAT["messages"], "temperature": 0, "max_tokens": 200}
RESPONSES = {"input": "q", "temperature": 0, "max_output_tokens": 200}
LIMITED = [
    ("/v1/chat/completions", CHAT | {"reasoning_budget": 6}),
    ("/v1/messages", ANTHROPIC | {"thinking": {"type": "enabled", "budget_tokens": 6}}),
    ("/generate", CHAT | {"reasoning_budget": 6}),
]
OFF = [
    ("/v1/chat/completions", CHAT | {"reasoning_effort": "none"}),
    ("/v1/chat/completions", CHAT | {"enable_thinking": False}),
    ("/v1/chat/completions", CHAT | {"reasoning": {"effort": "none"}}),
    ("/v1/messages", ANTHROPIC | {"thinking": {"type": "disabled"}}),
    ("/v1/responses", RESPONSES | {"reasoning": {"effort": "none"}}),
    ("/api/chat", OLLAMA | {"think": False}),
    ("/api/generate", {**OLLAMA, "prompt": "q", "think": False}),
    ("/generate", CHAT | {"reasoning_effort": "none"}),
]


def answers(served: Served, path: str, body: dict[str, Any]) -> list[tuple[str, str]]:
    """(reasoning, text) whole and streamed."""
    out = []
    for stream in (False, True):
        response = served.http.post(path, json={**body, "stream": stream})
        assert response.status_code == 200, response.text
        lines = [line.removeprefix("data:").strip() for line in response.text.splitlines()]
        frames = [json.loads(line) for line in lines if line.startswith("{")]
        if stream and path == "/generate":
            frames = frames[:-1]  # repeats the whole
        if stream and path == "/v1/responses":
            frames = [
                {"reasoning" if "reasoning" in f["type"] else "text": f["delta"]}
                for f in frames
                if "delta" in f
            ]
        thoughts = fields(frames, ("reasoning_content", "thinking", "reasoning"))
        text = fields(frames, ("content", "text", "response"))
        out.append((thoughts, text))
    return out


@pytest.mark.parametrize(("path", "body"), LIMITED, ids=[path for path, _ in LIMITED])
def test_a_budget_in_every_family(served: Served, path: str, body: dict[str, Any]) -> None:
    assert answers(served, path, body) == [("hmm so", ANSWER)] * 2


@pytest.mark.parametrize(("path", "body"), OFF, ids=[f"{n}{path}" for n, (path, _) in enumerate(OFF)])
def test_off_in_every_family(served: Served, path: str, body: dict[str, Any]) -> None:
    assert answers(served, path, body) == [("", ANSWER)] * 2


# -- history ---------------------------------------------------------------------------------------------------------

KEPT = (
    "{% for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}|{% endfor %}"
)
DROPPED = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}|{% endfor %}"  # as Qwen's does


@pytest.mark.parametrize(
    ("source", "wanted"), [(KEPT, "q|<think>why</think>a|r|"), (DROPPED, "q|a|r|")], ids=["kept", "dropped"]
)
def test_history_goes_as_the_template_wants(source: str, wanted: str) -> None:
    history = [ggfw.user("q"), ggfw.assistant("a", reasoning="why"), ggfw.user("r")]
    assert ChatTemplate(source).render(history).text == wanted


SPOKEN = (
    "<|start_of_role|>system<|end_of_role|>Write your thoughts after 'Here is my thought process:' and write your "
    "response after 'Here is my response:' for each user query.<|end_of_text|>\n"
)


@pytest.mark.parametrize(
    ("prompt", "thoughts", "answer"),
    [(SPOKEN, "Six by seven.", "It is 42."), ("", "", None)],
)
def test_granite_3_2_says_in_words_what_it_thinks(prompt: str, thoughts: str, answer: str | None) -> None:
    said = "Here is my thought process:\n\nSix by seven.\n\nHere is my response:\n\nIt is 42."
    for cut in range(len(said)):
        parser = dialect("granite").parser(prompt)
        deltas = [*parser.push(said[:cut]), *parser.push(said[cut:]), *parser.finish()]
        assert "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)).strip() == thoughts
        assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == (answer or said)
    block = dialect("granite").reasoning(prompt)
    assert block is not None and block.close == ("Here is my response:" if thoughts else "</think>")


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Here is my response:\n\nIt is 42.", "It is 42."),
        ("She wrote 'Here is my response: no'.", "She wrote 'Here is my response: no'."),
        (
            "Here is my thought process: x\n\nHere is my response:\n\nA. Here is my response: B",
            "A. Here is my response: B",
        ),
    ],
)
def test_granite_3_2_loses_nothing_of_an_answer_that_quotes_its_marks(said: str, answer: str) -> None:
    for cut in range(len(said)):
        parser = dialect("granite").parser(SPOKEN)
        deltas = [*parser.push(said[:cut]), *parser.push(said[cut:]), *parser.finish()]
        assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == answer

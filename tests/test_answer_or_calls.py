"""An answer that is to be JSON, in a conversation with tools: it is that, or calls, as programs expect of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import test_dialect_grammars as families
from served import ONE_CALL, TOOLS_CHATML, TWO_CALLS, Served, function

from ggfw.chat.call_grammar import answer_or_calls, enforceable
from ggfw.chat.tools import Tools
from ggfw.constraints import Grammar

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
TOOLS = [function("f"), function("g")]
TALK = '{"ok": true}'
#: A template that opens the reasoning.
THINKING = TOOLS_CHATML.replace(
    "{{ '<|im_start|>assistant\n' }}{% endif %}", "{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)


@pytest.fixture(scope="module", params=["plain", "thinking"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    before = "hm\n</think>\n\n" if request.param == "thinking" else ""
    scripts = {"two": TWO_CALLS, "one": ONE_CALL, "talk": TALK}
    template = THINKING if before else TOOLS_CHATML
    scripts = {key: before + text for key, text in scripts.items()}
    with Served(scripts=scripts, template=template, n_ctx=4096, max_rows=512) as made:
        yield made


def ask(served: Served, text: str, **more: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], "tools": TOOLS, "max_tokens": 600, **more}
    whole = served.post(**body).json()["choices"][0]
    calls: dict[int, list[str]] = {}
    content, reason = "", None
    for frame in served.frames(**body):
        (choice,) = frame["choices"]
        content += choice["delta"].get("content") or ""
        reason = choice["finish_reason"] or reason
        for call in choice["delta"].get("tool_calls", ()):
            calls.setdefault(call["index"], ["", ""])
            calls[call["index"]][0] += call["function"].get("name", "")
            calls[call["index"]][1] += call["function"]["arguments"]
    message = whole["message"]
    found = [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", ())]
    assert (content, reason, list(calls.values())) == (
        message["content"] or "",
        whole["finish_reason"],
        found,
    )
    return {"content": content, "reason": reason, "calls": [(n, json.loads(a)) for n, a in found]}


def test_the_model_may_call(served: Served) -> None:
    found = ask(served, "two", response_format=FORM)
    assert found == {"content": "", "reason": "tool_calls", "calls": [("f", {"a": 1}), ("g", {"b": 2})]}


@pytest.mark.parametrize("form", [FORM, {"type": "json_object"}])
def test_or_say_what_the_schema_allows(served: Served, form: dict[str, Any]) -> None:
    assert ask(served, "talk", response_format=form) == {"content": TALK, "reason": "stop", "calls": []}


def test_but_nothing_else(served: Served) -> None:
    """Prose in front of a call is neither."""
    found = ask(served, "one", response_format=FORM, seed=1)
    assert not found["content"].startswith("L") and (found["calls"] or json.loads(found["content"]))


@pytest.mark.parametrize("more", [{"tool_choice": "none"}, {"grammar": 'root ::= "{" [a-z": }{]*'}])
def test_no_call_where_none_is_wanted(served: Served, more: dict[str, Any]) -> None:
    form = {} if "grammar" in more else {"response_format": FORM}
    assert ask(served, "two", **more, **form)["calls"] == []


def test_strict_arguments_stay_strict(served: Served) -> None:
    tool = function("f")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool["function"] |= {"strict": True, "parameters": {**schema, "additionalProperties": False}}
    found = ask(served, "two", tools=[tool], response_format=FORM, parallel_tool_calls=False, seed=3)
    assert all(name == "f" and list(arguments) == ["n"] for name, arguments in found["calls"])


#: Schemas of arguments as they are met: malformed, or beyond a grammar.
ODD: list[dict[str, Any]] = [
    {"properties": {"a": {"type": "any"}, "b": {"type": "integer"}}, "required": ["a"]},
    {"properties": {"a": {"type": None, "enum": None}}, "required": None},
    {"properties": {"a": {"$id": "http://x/y", "type": "string"}}},
    {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "any"}}},
    {"properties": ["a"]},
]


@pytest.mark.parametrize("parameters", ODD)
def test_odd_schemas_of_arguments_do_not_matter(served: Served, parameters: dict[str, Any]) -> None:
    """As without a schema of the answer; but where a tool says ``strict``, they are refused."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", **parameters}}}
    tools = [tool, function("g")]
    assert ask(served, "talk", tools=tools, response_format=FORM)["content"] == TALK
    assert ask(served, "two", tools=tools, response_format=FORM)["calls"][-1] == ("g", {"b": 2})
    tool["function"] |= {"strict": True}
    body = {"messages": [{"role": "user", "content": "talk"}], "tools": tools, "response_format": FORM}
    answer = served.post(**body)
    assert answer.status_code == 400 and "'f'" in answer.json()["error"]["message"]


@pytest.mark.parametrize("named", [False, True])
def test_a_forced_call_is_not_the_last_answer(served: Served, named: bool) -> None:
    wish = {"type": "function", "function": {"name": "f"}} if named else "required"
    found = ask(served, "two", response_format=FORM, tool_choice=wish)["calls"]
    assert found == [("f", {"a": 1}), ("g", {"b": 2})][: 1 if named else 2]
    talk = {"messages": [{"role": "user", "content": "talk"}], "tools": TOOLS, "tool_choice": wish, "seed": 1}
    message = served.post(**talk, response_format=FORM, max_tokens=40).json()["choices"][0]["message"]
    assert TALK not in (message["content"] or "")
    error = served.post(**talk, guided_regex="[a-z]+").json()["error"]
    assert error["param"] == "tool_choice" and "rules out" in error["message"]


def test_ollama_and_anthropic_and_responses(served: Served) -> None:
    message = {"role": "user", "content": "two"}
    ollama = {
        "model": served.state.pool.default.id,
        "messages": [message],
        "tools": TOOLS,
        "format": SCHEMA,
        "stream": False,
    }
    found = served.http.post("/api/chat", json=ollama).json()["message"]
    assert [call["function"]["name"] for call in found["tool_calls"]] == ["f", "g"]
    tools = [
        {"name": "f", "input_schema": {"type": "object"}},
        {"name": "g", "input_schema": {"type": "object"}},
    ]
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    body = {"messages": [message], "tools": tools, "max_tokens": 600, "output_config": form}
    assert served.http.post("/v1/messages", json=body).json()["stop_reason"] == "tool_use"
    own = [{"type": "function", "name": n, "parameters": {"type": "object"}} for n in "fg"]
    text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    body = {"input": "two", "tools": own, "text": text, "max_output_tokens": 600}
    kinds = [item["type"] for item in served.http.post("/v1/responses", json=body).json()["output"]]
    assert [kind for kind in kinds if kind != "reasoning"] == ["function_call", "function_call"]


@families.every
def test_every_family_takes_odd_schemas(name: str) -> None:
    odd = [function(f"f{n}") for n in range(len(ODD))]
    for one, parameters in zip(odd, ODD, strict=True):
        one["function"]["parameters"] = {"type": "object", **parameters}
    tools = enforceable(Tools.of(odd, "required"))
    forced = families.dialect(name).call_grammar(tools, required=True, parallel=True, strict=False)
    families.compiler(False).compile(answer_or_calls(Grammar.json_schema(SCHEMA), forced))


@families.both
@families.every
def test_every_family_has_room_for_both(name: str, control: bool) -> None:
    tokenizer, tools = families.tokenizer(control), families.REQUIRED

    def find(text: str) -> int | None:
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        return ids[0] if len(ids) == 1 and tokenizer.is_mark(ids[0]) else None

    forced = families.dialect(name).call_grammar(
        tools, required=True, parallel=True, strict=False, control=find
    )
    made = families.compiler(control).compile(answer_or_calls(Grammar.json_schema(SCHEMA), forced))
    calls = families.several(name, control, families.TWO)
    for text in (TALK, families.write(name, calls)):
        assert families.accepts(made.copy(), control, text)
    for text in ("", "Hello.", '{"ok": 1}', families.write(name, [("other", {})])):
        assert not families.accepts(made.copy(), control, text)

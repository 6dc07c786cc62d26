"""Arguments of calls as objects: whole ones, and those of a call that was cut."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import TOOLS_CHATML, Served

from ggfw.result import ToolCall
from ggfw.server.calls import arguments_object


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("", {}),
        ("{", {}),
        ('{"', {}),
        ('{"city"', {}),
        ('{"city": ', {}),
        ('{"city": "Par', {}),
        ('{"city": "Paris"', {"city": "Paris"}),
        ('{"city": "Paris", "days": 1', {"city": "Paris"}),
        ('{"city": "Paris", "days": 1,', {"city": "Paris", "days": 1}),
        ('{"a": true', {}),
        ('{"a": [1, 2], "b": {"c": [', {"a": [1, 2]}),
        ('{ "a" : {"b": null} , ', {"a": {"b": None}}),
        ("[1, 2", {}),
        ("null", {}),
        ('{"a": ' + "[" * 100_000, {}),
    ],
)
def test_members_that_came_whole(text: str, members: dict[str, Any]) -> None:
    assert arguments_object(ToolCall("id", "f", text)) == members


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
)


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.data())
def test_a_cut_invents_nothing(members: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(members)
    assert arguments_object(ToolCall("id", "f", text)) == members
    cut = data.draw(st.integers(0, len(text) - 1))
    found = arguments_object(ToolCall("id", "f", text[:cut]))
    assert list(found.items()) == list(members.items())[: len(found)]


def test_a_forced_call_that_was_cut() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"name": "f", "input_schema": schema}
    ask = [{"role": "user", "content": "hi"}]
    with Served(script="x" * 200, template=TOOLS_CHATML, n_ctx=1024) as server:
        body = {"max_tokens": 70, "messages": ask, "temperature": 0, "tools": [tool]}
        body["tool_choice"] = {"type": "tool", "name": "f"}
        answer = server.http.post("/v1/messages", json=body).json()
        assert answer["stop_reason"] == "max_tokens"
        [block] = answer["content"]
        assert (block["type"], block["name"], block["input"]) == ("tool_use", "f", {})


def test_numbers_that_are_too_large_stay_json() -> None:
    found = arguments_object(ToolCall("id", "f", '{"x": 1e999, "y": [-1e999, 1.5]}'))
    assert found == {"x": sys.float_info.max, "y": [-sys.float_info.max, 1.5]}
    assert arguments_object(ToolCall("id", "f", '{"x": 1e999, "y": '))["x"] == sys.float_info.max

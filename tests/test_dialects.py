"""Every dialect takes answers apart the same way, however they are cut into pieces.

The tables are ``tests/data/dialects/NAME.json``; :mod:`ggfw.chat.dialect` says what is in their rows.
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from ggfw.chat.dialect import Dialect
from ggfw.chat.tools import Tools
from ggfw.descriptors import resolve
from ggfw.registry import default_registry

TABLES = Path(__file__).parent / "data" / "dialects"
NAMES = sorted(default_registry().chat_dialects)
#: (text, reasoning, calls as (name, arguments' text))
Parsed = tuple[str, str, list[tuple[str, str]]]


@cache
def table(name: str) -> list[dict[str, Any]]:
    path = TABLES / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.is_file() else []


def dialect(name: str) -> Dialect:
    return resolve(default_registry().chat_dialects[name].load)()


def tools_of(row: dict[str, Any]) -> Tools:
    given = row.get("tools", ["f", "g", *dict.fromkeys(name for name, _ in row.get("calls", ()))])
    tools = [
        {"type": "function", "function": {"name": t} if isinstance(t, str) else t} for t in unique(given)
    ]
    return Tools.of(tools, row.get("tool_choice"), row.get("parallel_tool_calls"))


def unique(given: list[Any]) -> list[Any]:
    """Without the names that stand twice."""
    return [t for n, t in enumerate(given) if t not in given[:n]]


def parse(name: str, row: dict[str, Any], pieces: list[str]) -> Parsed:
    parser = dialect(name).parser(row.get("prompt", ""), tools_of(row))
    deltas: list[Delta] = [d for p in pieces for d in parser.push(p)] + parser.finish()
    check_order(deltas)
    check_spans(deltas, row["output"])
    calls: dict[int, tuple[str, str]] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            known, text = calls.pop(delta.index, ("", ""))
            if delta.withdrawn:
                assert not is_json(text), "arguments of a call that is none could be taken for whole"
            else:
                calls[delta.index] = (known or delta.name, text + delta.arguments)
    return (
        "".join(d.text for d in deltas if isinstance(d, TextDelta)),
        "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)),
        [calls[n] for n in sorted(calls)],
    )


def check_order(deltas: list[Delta]) -> None:
    """Calls are numbered from 0 and follow each other; id and name come once, first; nothing is empty.

    Nothing comes behind the withdrawal of a call.
    """
    ids: list[str] = []
    gone: set[int] = set()
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            assert delta.index not in gone
            if delta.id:
                assert delta.index == len(ids) and delta.name and not delta.arguments
                assert len(delta.id) == 9 and delta.id.isalnum()
                ids.append(delta.id)
            else:
                assert delta.index == len(ids) - 1 and not delta.name
                assert bool(delta.arguments) != delta.withdrawn
            if delta.withdrawn:
                gone.add(delta.index)
        else:
            assert delta.text
    assert len(set(ids)) == len(ids)


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def strict(text: str) -> Any:
    """What any reader of JSON takes, sent as UTF-8."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    text.encode()
    return json.loads(text, parse_constant=refuse)


def check_spans(deltas: list[Delta], output: str) -> None:
    """Text and reasoning say where they stand in the answer, one behind the other."""
    at = 0
    for delta in deltas:
        if isinstance(delta, TextDelta | ReasoningDelta) and delta.span is not None:
            begin, end = delta.span
            assert at <= begin <= end <= len(output)
            if begin < end:
                assert output[begin:end] == delta.text
            at = end


def expected(row: dict[str, Any]) -> tuple[str, str, list[tuple[str, Any]]]:
    return row.get("text", ""), row.get("reasoning", ""), [(n, a) for n, a in row.get("calls", ())]


def read(parsed: Parsed) -> tuple[str, str, list[tuple[str, Any]]]:
    """With the arguments read, which are JSON whatever the model wrote."""
    text, reasoning, calls = parsed
    return text, reasoning, [(name, strict(arguments)) for name, arguments in calls]


HALF = r"""{"a": "\ud800"}"""


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("lfm2", r'<|tool_call_start|>[f(a="\ud800")]<|tool_call_end|>'),
        ("hermes", r'<tool_call>{"name": "f", "arguments": "{\"a\": \"\ud800\"}"}</tool_call>'),
        ("gemma3", '```tool_code\nf(a="\\ud800")\n```'),
    ],
)
def test_half_characters_stay_escapes(name: str, output: str) -> None:
    """Nobody could send them as UTF-8."""
    assert parse(name, {"output": output}, [output]) == ("", "", [("f", HALF)])


ROWS = [(name, n) for name in NAMES for n in range(len(table(name)))]


@pytest.mark.parametrize("name", NAMES)
def test_every_dialect_has_a_table(name: str) -> None:
    assert len(table(name)) >= 20


@pytest.mark.parametrize("name", NAMES)
def test_tables_hold_what_goes_wrong(name: str) -> None:
    """In every table: several calls, arguments beyond ASCII, a mark of the family inside arguments, a call behind text
    and one behind reasoning, and blocks that break or are cut, which stay text.
    """
    rows, form = table(name), dialect(name).format
    marks = [mark for call in form.calls for mark in (call.open, *call.close) if mark] or ["{", "<|"]
    called = [row for row in rows if row.get("calls")]

    def written(value: Any) -> str:
        if isinstance(value, dict):
            value = list(value.values())
        return " ".join(map(written, value)) if isinstance(value, list) else str(value)

    assert any(len(row["calls"]) > 1 for row in called), "two calls"
    assert any(not written(row["calls"]).isascii() for row in called), "arguments beyond ASCII"
    assert any(mark.strip() in written(row["calls"]) for row in called for mark in marks), (
        "marks in arguments"
    )
    assert any(row.get("text") for row in called), "text and a call"
    assert any(not row.get("calls") and any(mark in row["output"] for mark in marks) for row in rows), (
        "no call"
    )
    if form.reasoning or form.channels:
        assert any(row.get("reasoning") for row in called), "reasoning before a call"


@pytest.mark.parametrize(("name", "n"), ROWS)
def test_row(name: str, n: int) -> None:
    """Whole, by characters, cut at every place and at random pairs of places; without tools nothing is a call."""
    row = table(name)[n]
    output = row["output"]
    whole = parse(name, row, [output])
    assert read(whole) == expected(row)
    assert parse(name, row, list(output)) == whole
    for cut in range(1, len(output)):
        assert parse(name, row, [output[:cut], output[cut:]]) == whole, f"cut at {cut}"
    rng = random.Random(n)
    for _ in range(20):
        a, b = sorted((rng.randrange(len(output) + 1), rng.randrange(len(output) + 1)))
        assert parse(name, row, [output[:a], output[a:b], output[b:]]) == whole, f"cut at {a} and {b}"
    for choice in ({"tools": []}, {"tool_choice": "none"}):
        assert not parse(name, row | choice, [output])[2]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hold", [0, 5])
def test_when_a_call_is_begun_does_not_matter(name: str, hold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that are streamed from their name on, and withdrawn where they break, give the same answer."""
    monkeypatch.setattr("ggfw.chat.splitter.HOLD", hold)
    for row in table(name):
        output = row["output"]
        whole = parse(name, row, [output])
        assert read(whole) == expected(row), row.get("name")
        assert parse(name, row, list(output)) == whole


def fragments(name: str) -> list[str]:
    """Marks and parts of calls of a dialect, to be put together at random."""
    form = dialect(name).format
    found = [mark for pair in form.reasoning for mark in pair] + list(form.drop)
    found += [mark for call in form.calls for mark in (call.open, *call.close) if mark]
    if form.channels is not None:
        found += [
            *form.channels.begin,
            form.channels.message,
            *form.channels.ends,
            "assistant to=functions.f",
        ]
    found += [
        '{"name": "f", ',
        '"arguments": ',
        "{",
        "}",
        '"',
        "f",
        "(",
        "[",
        "]",
        "a",
        " ",
        "\n",
        "<",
        ">",
        '{"a": 1}',
    ]
    return [*found, *(row["output"] for row in table(name)[:6])]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_marks_in_any_order(name: str, data: st.DataObject) -> None:
    """The cuts never matter, whatever stands where."""
    parts = data.draw(st.lists(st.sampled_from(fragments(name)), max_size=12))
    row = {"output": "".join(parts), "parallel_tool_calls": data.draw(st.sampled_from([None, False]))}
    assert (
        parse(name, row, parts) == parse(name, row, [row["output"]]) == parse(name, row, list(row["output"]))
    )

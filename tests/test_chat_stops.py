"""Stop strings end visible text; calls, marks and layout are none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_dialects_engine import ASK, TOOLS, F, G, deltas, model

from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from ggfw.output import Output
from ggfw.sampling import StopStrings


@pytest.mark.parametrize("stop", ["tool", "arguments", "}", "\n", '"', "<", "call>"])
def test_calls_and_their_marks_are_not_stopped(stop: str) -> None:
    with model(F + "\n" + G) as made:
        result = made.chat(ASK, tools=TOOLS, stop=[stop])
        assert [(c.name, json.loads(c.arguments)) for c in result.tool_calls] == [
            ("f", {"a": 1}),
            ("g", {"b": 2}),
        ]
        assert (result.text, result.finish_reason, result.stop) == ("", "tool_calls", None)


@pytest.mark.parametrize("stop", ["name", "\n", '"'])
def test_forced_calls_are_not_stopped(stop: str) -> None:
    with model("talk") as made:
        choice = {"type": "function", "function": {"name": "g"}}
        free = made.chat(ASK, tools=TOOLS, tool_choice=choice, max_tokens=300, seed=1)
        stopped = made.chat(ASK, tools=TOOLS, tool_choice=choice, max_tokens=300, seed=1, stop=stop)
        assert stopped.token_ids == free.token_ids and stopped.text == ""
        assert [c.arguments for c in stopped.tool_calls] == [c.arguments for c in free.tool_calls]


def test_text_around_calls_is_stopped() -> None:
    with model(f"One.\n{F}\nTwo STOP three {G}") as made:
        whole = made.chat(ASK, tools=TOOLS, stop="STOP")
        assert (whole.text, whole.stop) == ("One.\nTwo ", "STOP")
        assert [c.name for c in whole.tool_calls] == ["f"]
        streamed = deltas(made, tools=TOOLS, stop="STOP")
        assert "".join(d.text for d in streamed if isinstance(d, TextDelta)) == whole.text
    with model("<think>a STOP b</think>c") as made:
        result = made.chat(ASK, stop="STOP")
        assert (result.reasoning, result.text, result.stop) == ("a ", "", "STOP")
    with model("<think>ab</think>cd") as made:  # no stop string reaches over a mark
        assert made.chat(ASK, stop=["bc", "think"]).text == "cd"
    with model("abc<tool_call>") as made:  # without tools this is text
        assert made.chat(ASK, stop="tool").text == "abc<"


class Fake:
    """Decoder and parser: a token is a character; upper case is reasoning, a digit a call."""

    def push(self, given: Any) -> Any:
        if isinstance(given, int):
            return chr(given)
        out: list[Delta] = []
        for c in given:
            kind = ReasoningDelta if c.isupper() else TextDelta
            out.append(ToolCallDelta(int(c), "i", "f", "{}") if c.isdigit() else kind(c))
        return out

    def flush(self) -> str:
        return ""

    def finish(self) -> list[Delta]:
        return []


@given(st.text("aabB1", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), max_size=2))
def test_runs_of_text_end_before_the_first_stop(text: str, stops: list[str]) -> None:
    fake = Fake()
    output = Output(fake, StopStrings(stops), fake)
    seen: list[Delta] = []
    for c in text:
        seen += output.push(ord(c))
        if output.matched is not None:
            break
    seen += output.finish()
    expected, run = "", ""
    for c in text:
        run = run + c if c in "ab" else ""
        expected += c
        found = [s for s in stops if run.endswith(s)]
        if found:
            expected = expected[: -len(max(found, key=len))]
            break
    assert "".join("1" if isinstance(d, ToolCallDelta) else d.text for d in seen) == expected

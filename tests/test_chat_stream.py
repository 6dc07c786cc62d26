"""Reasoning blocks whatever the borders of the pieces, and the joining of deltas."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta, coalesce
from ggfw.chat.dialect import Dialect


def parse(pieces: list[str], inside: bool = False) -> tuple[str, str]:
    parser = Dialect().parser("<think>\n" if inside else "")
    deltas: list[Delta] = [d for p in pieces for d in parser.push(p)] + parser.finish()
    reasoning = "".join(d.text for d in deltas if isinstance(d, ReasoningDelta))
    return reasoning, "".join(d.text for d in deltas if isinstance(d, TextDelta))


WHOLE = "<think>plan one</think>RESULT"


def test_every_pair_of_cuts() -> None:
    for a, b in combinations(range(len(WHOLE) + 1), 2):
        assert parse([WHOLE[:a], WHOLE[a:b], WHOLE[b:]]) == ("plan one", "RESULT")


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "answer"),
    [
        ("<think>a < b and </thin air></think>x", False, "a < b and </thin air>", "x"),
        ("<think>\n\nplan\n\n</think>\n\n42", False, "plan", "42"),
        ("plan</think>\n\n42", True, "plan", "42"),
        ("plan", True, "plan", ""),
        ("42", False, "", "42"),
        ("<think>plan</thi", False, "plan</thi", ""),
        ("<think>only", False, "only", ""),
        ("<think>\n\n</think>\n\nhi", False, "", "hi"),
        ("<think>a</think>\n<think>b</think>c", False, "ab", "c"),
        ("say <think> is a tag</think>", False, "", "say <think> is a tag</think>"),
        ("  indented", False, "", "  indented"),
        ("<thinking>", False, "", "<thinking>"),
        ("<thi", False, "", "<thi"),
        ("  \n", False, "", "  \n"),
        ("", False, "", ""),
    ],
)
def test_the_same_in_one_piece_and_by_characters(
    text: str, inside: bool, reasoning: str, answer: str
) -> None:
    assert parse([text], inside) == (reasoning, answer)
    assert parse(list(text), inside) == (reasoning, answer)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "th", "a", " ", "\n", "ink>"])), st.booleans()
)
def test_cuts_do_not_matter(parts: list[str], inside: bool) -> None:
    text = "".join(parts)
    assert parse(parts, inside) == parse([text], inside) == parse(list(text), inside)


def test_nothing_is_held_longer_than_needed() -> None:
    parser = Dialect().parser("")
    parser.push("<think>")
    assert parser.push("a <") == [ReasoningDelta("a")]
    assert parser.push(" b") == [ReasoningDelta(" < b")]
    parser = Dialect().parser("")
    assert parser.push("Hello") == [TextDelta("Hello")]
    assert parser.push(" <think>") == [TextDelta(" <think>")]


def test_the_prompt_may_open_the_block() -> None:
    for prompt in ("…<|im_start|>assistant\n<think>\n\n</think>\n\n", "<think> is a tag\n"):
        assert Dialect().parser(prompt).push("plan</think>x") == [TextDelta("plan</think>x")]
    parser = Dialect().parser("assistant\n<think>\n")
    assert parser.push("plan</think>x") == [ReasoningDelta("plan"), TextDelta("x")]


def test_coalesce() -> None:
    call = ToolCallDelta(0, "id", "f", "{")
    deltas: list[Delta] = [
        TextDelta("a"),
        TextDelta("b"),
        ReasoningDelta("r"),
        TextDelta("c"),
        call,
        call,
        TextDelta("d"),
    ]
    assert coalesce(deltas) == [
        TextDelta("ab"),
        ReasoningDelta("r"),
        TextDelta("c"),
        call,
        call,
        TextDelta("d"),
    ]
    assert coalesce([]) == []

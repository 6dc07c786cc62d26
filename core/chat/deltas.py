"""The pieces of an answer while it is being written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More text of a reasoning block."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The beginning or more arguments of a tool call.

    Args:
        index: counts the calls of one answer from 0.
        id, name: set in the first delta of a call only, empty afterwards.
        arguments: the next piece of the arguments' JSON text.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


Delta = TextDelta | ReasoningDelta | ToolCallDelta


def coalesce(deltas: Iterable[Delta]) -> list[Delta]:
    """Join neighbouring pieces of text, and of reasoning; nothing changes places."""
    out: list[Delta] = []
    run: list[str] = []
    kind: type[TextDelta] | type[ReasoningDelta] | None = None
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            if kind is not None:
                out.append(kind("".join(run)))
                kind, run = None, []
            out.append(delta)
        elif type(delta) is kind:
            run.append(delta.text)
        else:
            if kind is not None:
                out.append(kind("".join(run)))
            kind, run = type(delta), [delta.text]
    if kind is not None:
        out.append(kind("".join(run)))
    return out

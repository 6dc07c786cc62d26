"""The pieces of an answer while it is being written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import TYPE_CHECKING

from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw.sampling.logprobs import TokenLogprob


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of the answer.

    Args:
        text: the text.
        logprobs: of the tokens that became it, where the request asked for them.
        span: where it stands in the raw answer, (first character, one behind the last), where the parser says so;
            an empty span belongs to no token.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    span: tuple[int, int] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More text of a reasoning block; like :class:`TextDelta`."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    span: tuple[int, int] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The beginning or more arguments of a tool call, or the word that it is none.

    Args:
        index: counts the calls of one answer from 0; a call that is withdrawn keeps its number.
        id, name: set in the first delta of a call only, empty afterwards.
        arguments: the next piece of the arguments' JSON text.
        withdrawn: the call broke, or was cut, after it had begun: it is none of the answer's calls. The last delta of
            its number; all that the model wrote of it follows as text. What came of its arguments is no JSON.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    withdrawn: bool = False


Delta = TextDelta | ReasoningDelta | ToolCallDelta


def coalesce(deltas: Iterable[Delta]) -> list[Delta]:
    """Join neighbouring pieces of text, and of reasoning; nothing changes places."""
    out: list[Delta] = []
    run: list[str] = []
    logprobs: list[TokenLogprob] = []
    kind: type[TextDelta] | type[ReasoningDelta] | None = None
    for delta in deltas:
        if kind is not None and type(delta) is not kind:
            out.append(kind("".join(run), tuple(logprobs)))
            kind, run, logprobs = None, [], []
        if isinstance(delta, ToolCallDelta):
            out.append(delta)
            continue
        kind = type(delta)
        run.append(delta.text)
        logprobs += delta.logprobs
    if kind is not None:
        out.append(kind("".join(run), tuple(logprobs)))
    return out

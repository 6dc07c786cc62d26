"""The rounds of an answer with skills: which request comes next, what the client sees, what the whole adds up to.

No waiting is done here: :mod:`ggfw.chat.skill_handle` drives it, for threads and for event loops.

A turn whose calls are all ``load_skill`` is answered here, and the model goes on; nothing of those calls is shown. A
turn that also calls something else goes to the caller with all its calls. Up to MAX_ROUNDS turns are answered, the last
one with the remark that it was the last; should the model call again all the same, its answer ends there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ggfw.chat.deltas import Delta, TextDelta, ToolCallDelta
from ggfw.chat.messages import assistant, tool
from ggfw.chat.skills import LOAD_SKILL, Skills
from ggfw.chat.tools import Tools
from ggfw.errors import brief
from ggfw.request import check_timeout
from ggfw.result import Result, Timings, Usage

if TYPE_CHECKING:
    from ggfw.request import Request

#: Turns of ``load_skill`` that are answered.
MAX_ROUNDS = 6
#: Between the visible texts of two turns.
SEPARATOR = "\n\n"
#: Told to the model with the last answer.
NO_MORE = "\n\n(No further skill can be loaded now. Answer with what you have.)"


def skills_apply(skills: Skills, tools: Any, tool_choice: Any) -> bool:
    """Whether ``load_skill`` is offered: there are skills, the caller has no such tool, and the choice allows it.

    Raises:
        InvalidRequest: malformed tools or choice.
    """
    if not skills:
        return False
    own = {t.name for t in Tools.of(tools).offered}
    if LOAD_SKILL in own:
        return False
    offered = Tools.of([*(tools or ()), skills.tool()], tool_choice)
    return any(t.name == LOAD_SKILL for t in offered.callable)


class Rounds:
    """State of one answer.

    Args:
        make: ``(messages, **options) -> Request``, e.g. ``Model.chat_request``.
        messages: the conversation.
        skills: those to offer; see :func:`skills_apply`.
        options: of every request: ``tools``, ``tool_choice``, ``max_tokens``, ``timeout`` and the rest.
    """

    def __init__(
        self,
        make: Callable[..., Request],
        messages: Sequence[Mapping[str, Any]],
        skills: Skills,
        options: Mapping[str, Any],
    ) -> None:
        self._make, self._skills, self._options = make, skills, dict(options)
        self._messages: list[Mapping[str, Any]] = list(messages)
        self._tools: list[Mapping[str, Any]] = list(self._options.pop("tools", None) or ())
        self._caller_has_none = not self._tools
        self._choice: Any = self._options.pop("tool_choice", None)
        wish = Tools.of([*self._tools, skills.tool()], self._choice)
        #: The caller forces a call that only load_skill can be: once it has been made, the wish is fulfilled.
        self._forces_skill = wish.named == LOAD_SKILL or (wish.required and not self._tools)
        check_timeout(self._options.get("timeout"))
        self._begun = time.perf_counter()
        self._first_shown = 0.0
        self._turns: list[Result] = []  # those that have ended
        self._text = _Joined()
        self._reasoning = _Joined()
        self._held: list[ToolCallDelta] = []  # calls of this turn, all answered here so far
        self._open: dict[
            int, bool
        ] = {}  # calls of this turn that are shown, and whether they are the caller's
        self._n_shown = self._first = 0  # numbers of calls that are used up: by now, and when this turn began
        self._request: Request | None = None

    # -- requests -------------------------------------------------------------------------------------------------

    def next(self) -> Request:
        """The request of the turn that is to begin."""
        options = dict(self._options)
        if self._request is not None:  # with this seed the whole answer comes out the same again
            options |= {"seed": self._request.params.seed, "id": self._request.id}
            options.pop("continue_final_message", None)
        limit: Any = options.get("max_tokens")
        if _positive(limit):
            options["max_tokens"] = limit - self._spent()
        if options.get("timeout") is not None:
            options["timeout"] = max(0.001, options["timeout"] - (time.perf_counter() - self._begun))
        choice = "auto" if self._turns and self._forces_skill else self._choice
        tools = [*self._tools, self._skills.tool()]
        self._request = self._make(self._messages, tools=tools, tool_choice=choice, **options)
        return self._request

    def end(self, turn: Result) -> bool:
        """A turn has ended; whether another one is to begin (:meth:`next`), else see :meth:`result`."""
        self._turns.append(turn)
        self._text.end(turn.text)
        self._reasoning.end(turn.reasoning)
        self._held, self._open, self._first = [], {}, self._n_shown
        if not self._internal(turn):
            return False
        limit: Any = self._options.get("max_tokens")
        used_up = _positive(limit) and self._spent() >= limit
        if turn.finish_reason != "tool_calls" or used_up or len(self._turns) > MAX_ROUNDS:
            # Calls that nobody answers any more are not the caller's.
            reason = "length" if used_up or turn.finish_reason == "length" else "stop"
            self._turns[-1] = replace(turn, tool_calls=(), finish_reason=reason)
            return False
        self._answer(turn)
        return True

    def _answer(self, turn: Result) -> None:
        """Put the turn and what its calls loaded into the conversation."""
        calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in turn.tool_calls]
        self._messages.append(assistant(turn.text, tool_calls=calls, reasoning=turn.reasoning))
        for call in turn.tool_calls:
            if call.name == LOAD_SKILL:
                text, skill = self._skills.answer(call.arguments)
            else:
                known = ", ".join((LOAD_SKILL, *self._names()))
                text, skill = f"there is no tool {brief(call.name)}; only {known} can be called", None
            if len(self._turns) == MAX_ROUNDS and call is turn.tool_calls[-1]:
                text += NO_MORE
            self._messages.append(tool(text, call_id=call.id, name=call.name))
            if skill is not None:
                self._add_tools(skill.tools)

    def _add_tools(self, tools: Iterable[Mapping[str, Any]]) -> None:
        """The tools of a loaded skill come along; a name that is taken stays as it is."""
        for given in Tools.of(list(tools)).offered:
            if given.name not in (LOAD_SKILL, *self._names()):
                self._tools.append(given.definition())

    def _is_own(self, name: str) -> bool:
        """Whether a call is answered here: of ``load_skill``, and of what nobody has where the caller has no tools."""
        return name == LOAD_SKILL or (self._caller_has_none and name not in self._names())

    def _names(self) -> list[str]:
        """The tools beside ``load_skill``: the caller's, and those of skills that have been loaded."""
        return [tool.name for tool in Tools.of(self._tools).offered]

    def _internal(self, turn: Result) -> bool:
        return bool(turn.tool_calls) and all(self._is_own(call.name) for call in turn.tool_calls)

    def _spent(self) -> int:
        return sum(turn.usage.completion_tokens for turn in self._turns)

    # -- what is seen ---------------------------------------------------------------------------------------------

    def see(self, delta: Delta) -> Iterator[Delta]:
        """What the client sees of a delta: calls only once it is sure that they are the caller's."""
        shown: Sequence[Delta]
        if isinstance(delta, ToolCallDelta):
            calls = [replace(one, index=self._first + one.index) for one in self._see_call(delta)]
            if not calls:
                return
            self._n_shown = max(self._n_shown, 1 + max(one.index for one in calls))
            shown = calls
        else:
            joined = self._text if isinstance(delta, TextDelta) else self._reasoning
            text = joined.shown(delta.text)
            shown = [replace(delta, text=text) if text != delta.text else delta]
        self._first_shown = self._first_shown or time.perf_counter()
        yield from shown

    def _see_call(self, delta: ToolCallDelta) -> Sequence[ToolCallDelta]:
        if delta.withdrawn:
            self._held = [one for one in self._held if one.index != delta.index]
            if self._open.pop(delta.index, None) is None:
                return ()
            if any(self._open.values()):
                return (delta,)
            # Those that are left are answered here: they are none of the client's either.
            gone, self._open = [delta.index, *self._open], {}
            return [ToolCallDelta(index, withdrawn=True) for index in gone]
        self._held.append(delta)
        if delta.name and not self._is_own(delta.name):
            self._open[delta.index] = True
        if not any(self._open.values()):
            return ()
        seen, self._held = self._held, []
        for one in seen:
            self._open.setdefault(one.index, False)
        return seen

    # -- the whole ------------------------------------------------------------------------------------------------

    def result(self) -> Result:
        """All turns as one result. ``token_ids`` and ``logprobs`` are those of the last turn."""
        return self._whole(self._turns, self._turns[-1])

    def partial(self, turn: Result | None) -> Result | None:
        """What there was when a turn failed, whose own part is ``turn``."""
        if turn is None:
            return None
        self._text.end(turn.text)
        self._reasoning.end(turn.reasoning)
        if self._internal(turn):
            turn = replace(turn, tool_calls=())
        return self._whole([*self._turns, turn], turn)

    def _whole(self, turns: Sequence[Result], last: Result) -> Result:
        if len(turns) == 1:
            return last
        counts = {f.name: sum(getattr(turn.usage, f.name) for turn in turns) for f in fields(Usage)}
        usage = Usage(**counts)
        return replace(
            last,
            text=self._text.whole,
            reasoning=self._reasoning.whole,
            usage=usage,
            timings=self._timings(turns, usage),
        )

    def _timings(self, turns: Sequence[Result], usage: Usage) -> Timings:
        sums = {
            name: sum(getattr(turn.timings, name) for turn in turns)
            for name in ("queue", "prefill", "decode", "total")
        }
        evaluated = usage.prompt_tokens - usage.cached_tokens
        later = sum(max(0, turn.usage.completion_tokens - 1) for turn in turns)
        return Timings(
            load=turns[0].timings.load,
            ttft=(self._first_shown - self._begun) * 1e3 if self._first_shown else sums["total"],
            prompt_per_second=1e3 * evaluated / sums["prefill"] if sums["prefill"] > 0 else 0.0,
            decode_per_second=1e3 * later / sums["decode"] if sums["decode"] > 0 else 0.0,
            **sums,
        )


class _Joined:
    """The texts of several turns with a separator where they would run into each other; streamed and whole the same."""

    def __init__(self) -> None:
        #: Of the turns that have ended.
        self.whole = ""
        self._begun = False  # whether this turn has shown something

    def shown(self, piece: str) -> str:
        """A piece of the present turn as it is shown."""
        first, self._begun = not self._begun and bool(piece), self._begun or bool(piece)
        return self._gap() + piece if first else piece

    def end(self, text: str) -> None:
        """The turn has ended and its text was this."""
        if text:
            self.whole += self._gap() + text
        self._begun = False

    def _gap(self) -> str:
        return SEPARATOR if self.whole and not self.whole[-1].isspace() else ""


def _positive(limit: Any) -> bool:
    return isinstance(limit, int) and limit > 0

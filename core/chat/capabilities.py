"""What a chat template can do, found out by trying it on small conversations.

Every answer is looked for when it is first asked and kept; a probe takes about as long as rendering a short prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from ggfw.chat.messages import REASONING, Message
from ggfw.records import dataclass

#: Renders a conversation with variables; None where the template refuses or fails.
Probe = Callable[..., "str | None"]

_HI: Message = {"role": "user", "content": "ping"}
#: Nine characters: some templates insist on it.
_IDS = ("abcdefgh1", "abcdefgh2")


@dataclass(frozen=True)
class Capabilities:
    """See the module.

    Args:
        probe: ``(messages, **variables) -> text | None``.
    """

    probe: Probe

    def _ask(self, messages: list[Message], **variables: Any) -> str:
        if self.typed_content:
            messages = [typed(m) for m in messages]
        if self.needs_functions:
            variables = {"functions": "[]", "datetime": "today", **variables}
        return self.probe(messages, **variables) or ""

    # -- messages -------------------------------------------------------------------------------------------------

    @cached_property
    def typed_content(self) -> bool:
        """Whether it wants content as a list of parts: a string does not arrive, a list does."""
        word = "ping-7f3a"
        if word in (self.probe([{"role": "user", "content": word}]) or ""):
            return False
        parts = [{"type": "text", "text": word}]
        return word in (self.probe([{"role": "user", "content": parts}]) or "")

    @cached_property
    def system_role(self) -> bool:
        """Whether a system message arrives in the prompt."""
        word = "rule-91bc"
        return word in self._ask([{"role": "system", "content": word}, _HI])

    @cached_property
    def prefill(self) -> bool:
        """Whether an assistant message at the end arrives in the prompt, so that it can be left open."""
        word = "begun-52de"
        return word in self._ask([_HI, {"role": "assistant", "content": word}], add_generation_prompt=False)

    # -- tools ----------------------------------------------------------------------------------------------------

    @cached_property
    def tools(self) -> bool:
        """Whether tool definitions arrive in the prompt."""
        return self.tools_variable is not None

    @cached_property
    def tools_variable(self) -> str | None:
        """The variable in which it looks for tool definitions: ``tools``, ``xml_tools`` or ``functions``."""
        if self.needs_functions:
            return "functions"
        for name in ("tools", "xml_tools"):
            if "probe_d81" in self._ask([_HI], **{name: [_tool("probe_d81")]}):
                return name
        return None

    @cached_property
    def needs_functions(self) -> bool:
        """Whether it fails without the variables ``functions`` (JSON text of the definitions) and ``datetime``."""
        return self.probe([_HI]) is None and self.probe([_HI], functions="[]", datetime="today") is not None

    @cached_property
    def needs_tools(self) -> bool:
        """Whether it fails where there are no tools, but takes an empty list of them."""
        return self.probe([_HI]) is None and self.probe([_HI], tools=[]) is not None

    @cached_property
    def tool_calls(self) -> bool:
        """Whether calls of earlier turns arrive in the prompt."""
        return self._call_shape is not None

    @cached_property
    def mapping_arguments(self) -> bool:
        """Whether it writes the arguments of calls properly as a mapping; else it wants their JSON text."""
        return self._call_shape is None or self._call_shape[0]

    @cached_property
    def null_content(self) -> bool:
        """Whether calls arrive only in messages whose content is null, not an empty string."""
        return self._call_shape is not None and self._call_shape[1]

    @cached_property
    def tool_results(self) -> bool:
        """Whether messages of the role ``tool`` arrive in the prompt."""
        conversation = [_HI, self._calls(1), _result(0, "found-a6c"), _HI]
        return any(
            "found-a6c" in self._ask(messages, tools=[_tool("probe_0")], add_generation_prompt=True)
            for messages in (conversation[:3], conversation)
        )

    @cached_property
    def parallel_tool_calls(self) -> bool:
        """Whether two calls of one turn both arrive."""
        conversation = [_HI, self._calls(2), _result(0, "a"), _result(1, "b")]
        text = self._ask(conversation, tools=[_tool("probe_0"), _tool("probe_1")])
        return self.tool_calls and all(text.count(f"val-{n}") for n in range(2))

    @cached_property
    def _call_shape(self) -> tuple[bool, bool] | None:
        """(arguments as a mapping, content null) with which a call arrives; None: it does not.

        The usual shape is preferred; Python's notation of a mapping counts as not arrived.
        """
        for mapping, null in ((True, False), (False, False), (True, True), (False, True)):
            message = _call_message(1, mapping, null)
            text = self._ask([_HI, message, _result(0, "ok")], tools=[_tool("probe_0")])
            text = text or self._ask([_HI, message], add_generation_prompt=False)
            if "val-0" in text and "{'key5'" not in text:
                return mapping, null
        return None

    def _calls(self, n: int) -> Message:
        return _call_message(n, self.mapping_arguments, self.null_content)

    # -- reasoning ------------------------------------------------------------------------------------------------

    @cached_property
    def thinking_switch(self) -> str | None:
        """The variable that switches reasoning on and off (``enable_thinking``, ``thinking``), or None."""
        for name in ("enable_thinking", "thinking"):
            if self._ask([_HI], **{name: True}) != self._ask([_HI], **{name: False}):
                return name
        return None

    @cached_property
    def reasoning_effort(self) -> bool:
        """Whether it says the variable ``reasoning_effort`` to the model."""
        return self._ask([_HI], reasoning_effort="low") != self._ask([_HI], reasoning_effort="high")

    @cached_property
    def least_effort(self) -> str | None:
        """The effort that comes nearest to none, for templates that know efforts but no switch."""
        return "low" if self.reasoning_effort and self.thinking_switch is None else None

    @cached_property
    def reasoning_history(self) -> bool:
        """Whether the reasoning of a turn in which tools were called goes back to the model with their results."""
        word = "because-3e9"
        message = {**self._calls(1), **dict.fromkeys(REASONING, word)}
        return word in self._ask([_HI, message, _result(0, "ok")], tools=[_tool("probe_0")])

    @cached_property
    def text_beside_reasoning(self) -> bool:
        """Whether a turn in which tools were called may have both text and reasoning; some templates refuse that."""
        message = {**self._calls(1), "content": "so"}
        tools = [_tool("probe_0")]
        both = self._ask([_HI, {**message, **dict.fromkeys(REASONING, "hm")}, _result(0, "ok")], tools=tools)
        return bool(both) or not self._ask([_HI, message, _result(0, "ok")], tools=tools)

    def to_dict(self) -> dict[str, Any]:
        """All of them, for display; probes what has not been asked yet."""
        names = (
            "system_role", "typed_content", "prefill", "tools", "tools_variable", "tool_calls", "tool_results",
            "parallel_tool_calls", "mapping_arguments", "null_content", "thinking_switch", "reasoning_effort",
            "reasoning_history",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


def typed(message: Message) -> Message:
    """A message with its content as a list of one text part; null stays null."""
    if not isinstance(message["content"], str):
        return message
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _tool(name: str) -> dict[str, Any]:
    # Not the key of _call_message: some templates print definitions in Python's notation.
    parameters = {"type": "object", "properties": {"place": {"type": "string", "description": "p"}}}
    return {
        "type": "function",
        "function": {"name": name, "description": "d", "parameters": {**parameters, "required": ["place"]}},
    }


def _call_message(n: int, mapping: bool, null: bool) -> Message:
    def arguments(k: int) -> Any:
        return {"key5": f"val-{k}"} if mapping else f'{{"key5": "val-{k}"}}'

    return {
        "role": "assistant",
        "content": None if null else "",
        "tool_calls": [
            {"id": _IDS[k], "type": "function", "function": {"name": f"probe_{k}", "arguments": arguments(k)}}
            for k in range(n)
        ],
    }


def _result(n: int, content: str) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": _IDS[n], "name": f"probe_{n}"}

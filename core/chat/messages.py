"""Messages: builders for callers, and the one form that templates get."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ggfw.chat.tracked import Tracked, join, own
from ggfw.errors import InvalidRequest, brief

#: Roles that callers may write -> the role that templates know.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
    "ipython": "tool",
}

#: Names under which callers give the reasoning of a turn, and templates look for it.
REASONING = ("reasoning_content", "reasoning", "thinking")

#: Types of parts that are text.
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")

#: Several text parts of one message are joined by this.
PART_SEPARATOR = "\n"

#: Messages of a conversation; contexts hold less.
MAX_MESSAGES = 1 << 14

Message = dict[str, Any]


def system(content: str) -> Message:
    """Instructions that come before the conversation."""
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    """What the user says."""
    return {"role": "user", "content": content}


def assistant(
    content: str = "", *, tool_calls: Sequence[Mapping[str, Any]] = (), reasoning: str = ""
) -> Message:
    """What the model said.

    Args:
        content: the answer.
        tool_calls: ``{"name": …, "arguments": {…}}``, or OpenAI's form with ``function``; ``id`` is optional.
        reasoning: its reasoning, for templates that want it back.
    """
    out: Message = {"role": "assistant", "content": content}
    if tool_calls is not None and not (
        isinstance(tool_calls, list | tuple) and all(isinstance(call, Mapping) for call in tool_calls)
    ):
        raise InvalidRequest(
            f"tool_calls is {brief(tool_calls)}; a list of calls was expected", param="tool_calls"
        )
    if tool_calls:
        out["tool_calls"] = [dict(call) for call in tool_calls]
    if reasoning:
        out["reasoning_content"] = reasoning
    return out


def tool(content: str, *, call_id: str = "", name: str = "") -> Message:
    """What a tool answered to the call ``call_id``."""
    out: Message = {"role": "tool", "content": content}
    if call_id:
        out["tool_call_id"] = call_id
    if name:
        out["name"] = name
    return out


def normalise(messages: Any) -> list[Message]:
    """Check messages and bring them into one form: known roles, content as one string, arguments as mappings.

    The reasoning of an assistant's turn gets all the names of :data:`REASONING`. Text parts are joined by a line break.
    Arguments that are a string are parsed; one that is not JSON is left as it is. The input is not changed.

    Raises:
        InvalidRequest: not a non-empty list of messages, an unknown role, content that is not text.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise InvalidRequest(f"messages must be a list, not {type(messages).__name__}", param="messages")
    if not messages:
        raise InvalidRequest("messages must not be empty; at least one message is needed", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(
            f"there are {len(messages)} messages; at most {MAX_MESSAGES} are allowed", param="messages"
        )
    return [_message(m, f"messages[{n}]") for n, m in enumerate(messages)]


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object, not {type(message).__name__}", param=where)
    given = message.get("role")
    if given is None:
        raise InvalidRequest(
            f"{where} has no role; expected one of {', '.join(ROLES)}", param=f"{where}.role"
        )
    role = ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise InvalidRequest(
            f"{where}.role is {brief(given)}; expected one of {', '.join(ROLES)}", param=f"{where}.role"
        )
    out: Message = {k: v for k, v in message.items() if v is not None}
    for key in ("name", "tool_call_id"):
        _check_text(out.get(key), f"{where}.{key}")
    out["role"] = role
    out["content"] = text_of(message.get("content"), f"{where}.content")
    if role == "assistant" and not out["content"] and isinstance(refusal := out.pop("refusal", None), str):
        out["content"] = refusal  # what the assistant said instead
    if out.get("tool_calls"):
        out["tool_calls"] = [
            _call(c, f"{where}.tool_calls[{n}]") for n, c in enumerate(_list(out["tool_calls"], where))
        ]
    else:
        out.pop("tool_calls", None)  # templates ask "is defined": an empty list would count as calls
    if role == "assistant":
        reasoning = next((out[k] for k in REASONING if out.get(k)), None)
        out |= dict.fromkeys(REASONING, reasoning) if isinstance(reasoning, str) else {}
    if message.get("content") is None and role != "assistant":
        raise InvalidRequest(f"{where} has no content", param=f"{where}.content")
    return out


def _list(value: Any, where: str) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    raise InvalidRequest(
        f"{where}.tool_calls must be a list, not {brief(value)}", param=f"{where}.tool_calls"
    )


def text_of(content: Any, where: str = "content") -> str:
    """The text of a message's content: a string, None, or a list of text parts.

    Raises:
        InvalidRequest: anything that is not text, e.g. an image.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        raise InvalidRequest(
            f"{where} must be a string or a list of parts, not {brief(content)}", param=where
        )
    return PART_SEPARATOR.join(part_text(part, f"{where}[{n}]") for n, part in enumerate(content))


def part_text(part: Any, where: str) -> str:
    """The text of one part of a content.

    Raises:
        InvalidRequest: it is none, e.g. an image.
    """
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, Mapping) else None
    if kind not in TEXT_PARTS:
        raise InvalidRequest(f"{where} is of type {brief(kind)}; this model takes text only", param=where)
    key = "refusal" if kind == "refusal" else "text"
    text = part.get(key)
    if not isinstance(text, str):
        raise InvalidRequest(f"{where} has no {key}", param=f"{where}.{key}")
    return text


def _check_text(value: Any, where: str) -> None:
    """Refuse what is given and no text.

    Raises:
        InvalidRequest: naming the place.
    """
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{where} must be a text, not {brief(value)}", param=where)


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{where} has no function name", param=where)
    arguments = function.get("arguments")
    if arguments is None:
        arguments = {}
    elif not isinstance(arguments, str | Mapping):
        place = f"{where}.function.arguments" if "function" in call else f"{where}.arguments"
        raise InvalidRequest(
            f"{place} must be an object, or its JSON text, not {brief(arguments)}", param=place
        )
    _check_text(call.get("id"), f"{where}.id")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            parsed = arguments
        arguments = parsed if isinstance(parsed, dict) else arguments
    out = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    if call.get("id"):
        out["id"] = call["id"]
    return out


def with_instructions(messages: Any, text: str) -> list[Message]:
    """Messages with ``text`` at the end of the system message, which is made where there is none."""
    given = normalise(messages)
    if given[0]["role"] == "system":
        first = given[0]["content"]
        return [{**given[0], "content": f"{first}\n\n{text}" if first else text}, *given[1:]]
    return [system(text), *given]


def call_text(name: str, arguments: str) -> str:
    """A call as :func:`ggfw.chat.dialect.tool_prompt` tells the model to write it; ``arguments`` is JSON text."""
    return f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}\n</tool_call>'


def result_text(content: str) -> str:
    """A result as models know it that know calls of that form."""
    return f"<tool_response>\n{content}\n</tool_response>"


def calls_as_text(
    messages: list[Message],
    call: Callable[[str, str], str] = call_text,
    result: Callable[[str], str] = result_text,
) -> list[Message]:
    """Messages for a template that knows no calls: calls as text of the assistant, results as text of the user.

    Results that follow each other share one message.

    Args:
        messages: normalised.
        call: (name, arguments as JSON text) -> text.
        result: content -> text.
    """
    out: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            text = result(message["content"])
            if out and out[-1].get("results"):
                out[-1]["content"] += "\n" + text
            else:
                out.append({"role": "user", "content": text, "results": True})
        elif "tool_calls" in message:
            calls = [call(*_name_and_arguments(one["function"])) for one in message["tool_calls"]]
            kept = {k: v for k, v in message.items() if k != "tool_calls"}
            out.append({**kept, "content": "\n".join(filter(None, [message["content"], *calls]))})
        else:
            out.append(message)
    return [{k: v for k, v in message.items() if k != "results"} for message in out]


def with_turns_of_calls(
    messages: list[Message], write: Callable[[Sequence[tuple[str, str]]], tuple[str, str, str] | None]
) -> list[Message]:
    """Messages for a template that drops calls: they go into the text of their turn, as ``write`` puts them.

    Args:
        messages: normalised.
        write: see :meth:`ggfw.chat.dialect.Dialect.turn_of_calls`.
    """
    out: list[Message] = []
    for message in messages:
        parts = None
        if "tool_calls" in message and isinstance(message["content"], str):
            parts = write([_name_and_arguments(one["function"]) for one in message["tool_calls"]])
        if parts is not None:
            opening, text, closing = parts
            kept = {k: v for k, v in message.items() if k != "tool_calls"}
            content = join((Tracked(message["content"]), own(opening), Tracked(text), own(closing)))
            message = {**kept, "content": content}
        out.append(message)
    return out


def _name_and_arguments(function: Mapping[str, Any]) -> tuple[str, str]:
    arguments = function["arguments"]
    return function["name"], arguments if isinstance(arguments, str) else json.dumps(
        arguments, ensure_ascii=False
    )

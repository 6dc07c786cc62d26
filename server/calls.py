"""Tool calls between the families: arguments are JSON text in one, an object in another."""

from __future__ import annotations

import json
import sys
from typing import Any

from ggfw.request import new_id
from ggfw.result import ToolCall

_SPACE = " \t\r\n"


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call as an object; of a call that was cut, the members that are whole."""
    text = call.arguments.strip()
    try:
        found = json.loads(text, parse_float=_finite) if text else {}
    except (ValueError, RecursionError):
        return whole_members(text)
    return found if isinstance(found, dict) else {}


def is_whole(text: str) -> bool:
    """Whether arguments are all of a JSON object, and not the beginning of one.

    >>> is_whole('{"city": "Paris"}'), is_whole('{"city": "Paris"')
    (True, False)
    """
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def whole_members(text: str) -> dict[str, Any]:
    """The members that stand whole in the beginning of a JSON object; a value that could go on is not whole.

    >>> whole_members('{"city": "Paris", "days": 1')
    {'city': 'Paris'}
    """
    decoder = json.JSONDecoder(parse_float=_finite)
    members: dict[str, Any] = {}
    at = _behind(text, 0, "{")
    try:
        while at:
            key, at = decoder.raw_decode(text, at)
            at = _behind(text, at, ":")
            if not at or not isinstance(key, str):
                break
            value, at = decoder.raw_decode(text, at)
            if at == len(text) and not isinstance(value, str | dict | list):
                break  # more digits could have come
            members[key] = value
            at = _behind(text, at, ",")
    except (ValueError, RecursionError):
        pass
    return members


def _finite(text: str) -> float:
    """A number as JSON can hold it again: 1e999 is the largest one."""
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


def _behind(text: str, at: int, mark: str) -> int:
    """The place of what follows ``mark``, which stands at ``at`` behind white space; 0: it does not."""
    while at < len(text) and text[at] in _SPACE:
        at += 1
    if text[at : at + 1] != mark:
        return 0
    at += 1
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def underscored_id(prefix: str) -> str:
    """A fresh id in the form of responses and messages, ``msg_…``; other objects have a hyphen."""
    return new_id(prefix).replace("-", "_", 1)


def function_tool(name: Any, description: Any, parameters: Any, strict: Any = None) -> dict[str, Any]:
    """A tool definition in OpenAI's form."""
    function: dict[str, Any] = {
        "name": name,
        "parameters": {"type": "object", "properties": {}} if parameters in (None, {}) else parameters,
    }
    if description is not None:
        function["description"] = description
    if strict is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}

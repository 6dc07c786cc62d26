"""Tool calls between the families: arguments are JSON text in one, an object in another."""

from __future__ import annotations

import json
from typing import Any

from ggfw.result import ToolCall


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call as an object; text that is none (an answer cut off in the middle) under ``_text``."""
    try:
        found = json.loads(call.arguments) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"_text": call.arguments}


def function_tool(name: Any, description: Any, parameters: Any, strict: Any = None) -> dict[str, Any]:
    """A tool definition in OpenAI's form."""
    function: dict[str, Any] = {
        "name": name,
        "parameters": parameters or {"type": "object", "properties": {}},
    }
    if description:
        function["description"] = description
    if strict is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}

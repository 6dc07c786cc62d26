"""Let a model call a function of yours: ``python examples/chat_with_tools.py model.gguf``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import ggfw

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        },
    }
]


def add(a: float, b: float) -> float:
    """What the model may call."""
    return a + b


def main(model: ggfw.Model, question: str = "What is 2 + 3? Use the tool.") -> str:
    """Answer a question; calls are made here, and their results go back, until there is a text."""
    messages: list[dict[str, Any]] = [ggfw.user(question)]
    for _ in range(4):  # a model may call for ever
        result = model.chat(messages, tools=TOOLS, max_tokens=300, temperature=0)
        if not result.tool_calls:
            break
        messages.append(ggfw.assistant(result.text, tool_calls=[asdict(call) for call in result.tool_calls]))
        for call in result.tool_calls:
            answer = add(**json.loads(call.arguments))
            print(f"{call.name}({call.arguments}) = {answer}")
            messages.append(ggfw.tool(str(answer), call_id=call.id, name=call.name))
    print(result.text)
    return result.text


if __name__ == "__main__":
    with ggfw.load(sys.argv[1]) as loaded:
        main(loaded)

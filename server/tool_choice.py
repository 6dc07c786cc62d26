"""OpenAI's ``allowed_tools``: which of the tools an answer may call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ggfw.errors import InvalidRequest

__all__ = ["allowed_tools"]


def allowed_tools(tools: Sequence[Any] | None, choice: Any) -> tuple[Sequence[Any] | None, Any]:
    """The tools and the choice that are left of ``{"type": "allowed_tools", ...}``; any other choice stays as it is.

    Those that are not allowed are left out of the prompt, too: a model calls what it is shown.

    Args:
        tools: in OpenAI's form.
        choice: with ``mode`` (``auto`` or ``required``) and ``tools``, either inside of ``allowed_tools`` as in chat
            completions, or beside ``type`` as in responses.

    Raises:
        InvalidRequest: another mode, no list of tools, or one that is not among ``tools``.
    """
    if not (isinstance(choice, dict) and choice.get("type") == "allowed_tools"):
        return tools, choice
    inner = choice.get("allowed_tools", choice)
    wanted = inner.get("tools") if isinstance(inner, dict) else None
    if not isinstance(wanted, list) or not wanted:
        raise InvalidRequest("tool_choice of type allowed_tools has no list of tools", "tool_choice")
    mode = inner.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise InvalidRequest(
            f"the mode of tool_choice must be auto or required, not {mode!r:.40}", "tool_choice"
        )
    known = {name for tool in tools or () if (name := _name(tool)) is not None}
    names = set()
    for n, one in enumerate(wanted):
        if isinstance(one, dict) and one.get("type", "function") != "function":
            continue  # a tool that only OpenAI's servers run, which is left out of the tools, too
        name = _name(one)
        if name is None or name not in known:
            what = "has no name" if name is None else f"is {name!r:.80}, which is not among the tools"
            raise InvalidRequest(f"tool {n} of tool_choice {what}", "tool_choice")
        names.add(name)
    left = [tool for tool in tools or () if _name(tool) in names]
    return left or None, mode


def _name(tool: Any) -> str | None:
    inner = tool.get("function", tool) if isinstance(tool, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else None

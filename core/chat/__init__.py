"""Chat: messages, templates, dialects, and the pieces in which an answer arrives.

Names are loaded on first use, because templates need Jinja and most programs that import ggfw do not chat.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
    from ggfw.chat.dialect import Dialect, Parser, PlainParser
    from ggfw.chat.format import CallForm, Channels, Format, Route
    from ggfw.chat.messages import assistant, normalise, system, tool, user
    from ggfw.chat.splitter import Splitter
    from ggfw.chat.template import ChatTemplate, Prompt
    from ggfw.chat.tools import Tool, Tools

_WHERE = {
    "deltas": ("Delta", "ReasoningDelta", "TextDelta", "ToolCallDelta"),
    "dialect": ("Dialect", "Parser", "PlainParser"),
    "format": ("CallForm", "Channels", "Format", "Route"),
    "messages": ("assistant", "normalise", "system", "tool", "user"),
    "splitter": ("Splitter",),
    "template": ("ChatTemplate", "Prompt"),
    "tools": ("Tool", "Tools"),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "CallForm",
    "Channels",
    "ChatTemplate",
    "Delta",
    "Dialect",
    "Format",
    "Parser",
    "PlainParser",
    "Prompt",
    "ReasoningDelta",
    "Route",
    "Splitter",
    "TextDelta",
    "Tool",
    "ToolCallDelta",
    "Tools",
    "assistant",
    "normalise",
    "system",
    "tool",
    "user",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)

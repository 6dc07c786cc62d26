"""Llama 3.1 to 3.3: an answer that is ``{"name": …, "parameters": {…}}``, or what stands behind ``<|python_tag|>``."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable

from ggfw.chat.bodies import JsonCall, Pythonic, python_calls
from ggfw.chat.call_grammar import Lark
from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.chat.reader import Broken, Chars, Reader, Sink
from ggfw.chat.tools import Tools
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl
from ggfw.records import dataclass

GGFW_PLUGIN_API = 1

#: Marks of the end of a message.
ENDS = ("<|eom_id|>", "<|eot_id|>")
#: Names under which callers may offer the interpreter that the model writes code for.
INTERPRETERS = ("code_interpreter", "python", "ipython")


@dataclass(frozen=True)
class PythonTag:
    """Behind ``<|python_tag|>``: a JSON call, a call of a built-in tool (``brave_search.call(query="…")``), or code.

    A built-in tool counts if a tool of that name was offered. Code is a call of the interpreter with the argument
    ``code``, if one was offered under one of its names. Everything else is text.
    """

    json: JsonCall = JsonCall("parameters")

    def parse(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        """See :class:`ggfw.chat.bodies.Body`."""
        yield from reader.space()
        if (yield from reader.peek()) == "{":
            yield from self.json.parse(reader, sink, tools)
            return
        text = ""
        while c := (yield from reader.read()):
            text += c
            if text.endswith(ENDS):  # visible where they are not the tokens that end answers
                reader.unread(next(end for end in ENDS if text.endswith(end)))
                text = text.removesuffix(ENDS[0]).removesuffix(ENDS[1])
                break
        sink.call(*_call_of(text.strip(), tools))

    def grammar(self, lark: Lark, tools: Tools) -> str:
        """See :class:`ggfw.chat.bodies.Body`."""
        return self.json.grammar(lark, tools)


def _call_of(code: str, tools: Tools) -> tuple[str, str]:
    """(name, arguments) of what the model wrote for its Python environment."""
    try:
        node = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        node = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "call":
        (found,) = python_calls(f"[{code}]")
        name = found[0].removesuffix(".call")
        if tools.get(name) is not None:
            return name, found[1]
    for name in INTERPRETERS:
        if code and tools.get(name) is not None:
            return name, json.dumps({"code": code}, ensure_ascii=False)
    raise Broken("code")


class Llama3(Dialect):
    """A call has no mark of its own; so only the exact form with the name of an offered tool is one.

    Several calls stand behind each other, with or without a semicolon; Llama 3.2 at times writes a Python list.
    """

    special_tokens = True
    format = Format(
        calls=(
            CallForm("", JsonCall("parameters", bare=True), ("", ";"), starts="{", between="; "),
            CallForm("", Pythonic(bare=True), starts="["),
            CallForm("<|python_tag|>", PythonTag(), ("", ";")),
        ),
        drop=("<|python_tag|>", *ENDS),
    )


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialect of Llama 3.1, 3.2 and 3.3."""
    return [
        ChatDialect(
            name="llama3",
            match=lambda metadata: marks(metadata, "<|start_header_id|>", "ipython", score=40),
            load=Llama3,
            summary="bare JSON with parameters, <|python_tag|>: Llama 3.1 to 3.3",
        )
    ]

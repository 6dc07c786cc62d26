"""Gemma 2 and 3: nothing is built in; calls are asked for in the prompt, in a fence named ``tool_code``."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable

from ggfw.chat.bodies import JsonCall, python_calls
from ggfw.chat.call_grammar import Lark
from ggfw.chat.dialect import Dialect, marks
from ggfw.chat.format import CallForm, Format
from ggfw.chat.reader import SPACE, Broken, Chars, Reader, Sink
from ggfw.chat.tools import Tools
from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl
from ggfw.records import dataclass

GGFW_PLUGIN_API = 1

OPEN, CLOSE = "```tool_code", "```"


@dataclass(frozen=True)
class ToolCode:
    """JSON calls, as the prompt asks for, or Python calls with literal arguments, which the model falls back to."""

    json: JsonCall = JsonCall("parameters")

    def parse(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        """See :class:`ggfw.chat.bodies.Body`."""
        if (yield from reader.peek()) not in tuple(SPACE):
            raise Broken("another fence")
        yield from reader.space()
        bracket = "[" if (yield from reader.match("[")) else ""
        space = yield from reader.space()
        is_json = (yield from reader.peek()) == "{"
        reader.unread(bracket + space)
        if is_json:
            yield from self.json.parse(reader, sink, tools)
            return
        for name, arguments in _calls((yield from _code(reader))):
            sink.call(name, arguments)

    def grammar(self, lark: Lark, tools: Tools) -> str:
        """See :class:`ggfw.chat.bodies.Body`."""
        return self.json.grammar(lark, tools)


def _code(reader: Reader) -> Chars[str]:
    """Python, up to the fence outside its strings, which is left."""
    text, quote = "", ""
    while quote or not (yield from reader.match(CLOSE)):
        c = yield from reader.read()
        if not c:
            raise Broken("end")
        text += c
        if quote and c == "\\":
            text += yield from reader.read()
        elif c == quote:
            quote = ""
        elif not quote and c in "\"'":
            quote = c
    reader.unread(CLOSE)
    return text


def _calls(code: str) -> list[tuple[str, str]]:
    """(name, arguments) of calls on lines of their own, in a list, or inside ``print(…)``."""
    try:
        body = ast.parse(code.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Broken("python") from None
    nodes: list[ast.expr] = []
    for statement in body:
        if not isinstance(statement, ast.Expr):
            raise Broken("statement")
        value = statement.value
        nodes += value.elts if isinstance(value, ast.List) else [value]
    for n, node in enumerate(nodes):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print" and len(node.args) == 1:
            nodes[n] = node.args[0]
    return python_calls(f"[{', '.join(map(ast.unparse, nodes))}]")


class Gemma3(Dialect):
    """The fence is the one of Google's examples; JSON inside it, because values then have a type."""

    format = Format(
        reasoning=(), calls=(CallForm(OPEN, ToolCode(), (CLOSE,), between="\n", gap=("\n", "\n")),)
    )

    def tool_prompt(self, tools: Tools) -> str:
        """Definitions, and how a call is written."""
        definitions = [tool.definition()["function"] for tool in tools.callable]
        lines = "\n".join(json.dumps(one, ensure_ascii=False) for one in definitions)
        return (
            f"You have access to these functions, one JSON object a line:\n{lines}\n\n"
            "To call one, answer with a block of this form and nothing behind it:\n"
            f'{OPEN}\n{{"name": "function name", "parameters": {{"parameter name": "value"}}}}\n{CLOSE}\n'
            "The result comes in the next message. If no function helps, answer yourself, without such a block."
        )

    def call_text(self, name: str, arguments: str) -> str:
        """The fence with its object."""
        return (
            f'{OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "parameters": {arguments}}}\n{CLOSE}'
        )

    def result_text(self, content: str) -> str:
        """The fence of Google's examples."""
        return f"```tool_output\n{content}\n{CLOSE}"


@hookimpl
def ggfw_register_chat_dialects() -> Iterable[ChatDialect]:
    """The dialect of Gemma 2 and 3, whose templates know no tools."""
    return [
        ChatDialect(
            name="gemma3",
            match=lambda metadata: marks(metadata, "<start_of_turn>", score=20),
            load=Gemma3,
            summary="a tool_code fence, asked for in the prompt: Gemma 2 and 3",
        )
    ]

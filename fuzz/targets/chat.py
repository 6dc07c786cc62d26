"""Chat templates, what dialects read from models, and skill files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fuzz.choices import TRAPS, Choices, cuts
from fuzz.target import Target
from ggfw.chat.deltas import ReasoningDelta, TextDelta, ToolCallDelta
from ggfw.chat.skill_files import Unusable, front_matter, parse
from ggfw.chat.template import ChatTemplate
from ggfw.chat.tools import Tools
from ggfw.descriptors import resolve
from ggfw.errors import InvalidRequest
from ggfw.registry import default_registry

_TABLES = Path(__file__).parents[2] / "tests" / "data" / "dialects"

_WORDS = (
    "messages", "m", "m.content", "m.role", "m.tool_calls", "tools", "'a'", "0", "1", "-1", "10**9", "range(9)",
    "range(10**7)", "[]", "{}", "namespace(a=1)", "bos_token", "none", "true", "loop.index", "ns.a", "messages[0]",
    "cycler('a')", "joiner()", "dict(a=1)", "self", "caller", "x", "''", "'%s'", "'{0.__class__}'", "m.items()",
    "strftime_now('%Y')", "messages.__class__", "''.join", "m|attr('x')", "{'a': messages}", "varargs",
)  # fmt: skip
_FILTERS = (
    "trim", "tojson", "length", "list", "join(',')", "upper", "replace('a','b'*9)", "first", "last", "items", "default('')",  # noqa: E501
    "string", "int", "float", "sort", "reverse", "unique", "map('upper')", "selectattr('role')", "batch(2)", "slice(2)",
    "center(99)", "indent(9)", "wordwrap(2)", "format('a')", "attr('role')", "groupby('role')", "sum", "safe", "escape",
    "urlize", "xmlattr", "pprint", "random", "dictsort", "tojson(indent=9)", "truncate(3)", "filesizeformat", "count",
    "from_json", "striptags", "title", "urlencode", "wordcount", "round", "min", "max", "abs", "select", "forceescape",
)  # fmt: skip
_OPERATORS = (
    " + ",
    " ~ ",
    " * ",
    " ** ",
    " % ",
    " - ",
    " / ",
    " // ",
    " in ",
    " == ",
    " and ",
    " is ",
    "[",
    ".",
)


def _expression(c: Choices, depth: int = 3) -> str:
    kind = c.below(7 if depth else 1)
    if kind <= 1:
        return c.pick(_WORDS)
    if kind == 2:
        return f"({_expression(c, depth - 1)})|{c.pick(_FILTERS)}"
    if kind == 3:
        operator = c.pick(_OPERATORS)
        right = _expression(c, depth - 1)
        return f"({_expression(c, depth - 1)}){operator}{right}{']' if operator == '[' else ''}"
    if kind == 4:
        return repr(c.text(8))
    if kind == 5:
        return f"({_expression(c, depth - 1)}).{c.pick(('format', 'split', 'strip', 'join', 'replace', 'append', 'get'))}({_expression(c, depth - 1)})"  # noqa: E501
    return f"[{_expression(c, depth - 1)}, {_expression(c, depth - 1)}]"


def _template(c: Choices, depth: int = 4) -> str:
    out = []
    for _ in range(c.between(1, 5)):
        kind = c.below(9 if depth else 3)
        if kind == 0:
            out.append(c.text(10))
        elif kind <= 3:
            out.append("{{ " + _expression(c) + " }}")
        elif kind == 4:
            out.append(f"{{% for m in {_expression(c)} %}}{_template(c, depth - 1)}{{% endfor %}}")
        elif kind == 5:
            out.append(f"{{% if {_expression(c)} %}}{_template(c, depth - 1)}{{% endif %}}")
        elif kind == 6:
            out.append(f"{{% set x = {_expression(c)} %}}")
        elif kind == 7:
            out.append(f"{{% macro f(a) %}}{_template(c, depth - 1)}{{% endmacro %}}{{{{ f(x) }}}}")
        else:
            out.append(f"{{% set x %}}{_template(c, depth - 1)}{{% endset %}}")
    return "".join(out)


def _messages(c: Choices) -> list[Any]:
    out: list[Any] = []
    for _ in range(c.between(1, 4)):
        one: dict[str, Any] = {"role": c.pick(("user", "assistant", "system", "tool")), "content": c.text(20)}
        if c.chance(10):
            one["content"] = c.json(2)
        if c.chance(15):
            one["tool_calls"] = [
                {"type": "function", "id": c.text(4), "function": {"name": "f", "arguments": c.text(9)}}
            ]
        if c.chance(5):
            one = {c.text(4): c.json(1)}
        out.append(one)
    return out


def templates() -> Target:
    """Templates made of what Jinja has, with messages that are not what they should be."""

    def run(data: bytes) -> None:
        c = Choices(data)
        source = data.decode("utf-8", "replace") if data[:2] in (b"{{", b"{%") else _template(c)
        messages = _messages(c)
        tools = [{"type": "function", "function": {"name": "f"}}] if c.chance(30) else None
        before = json.dumps(messages)
        try:
            prompt = ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages, tools=tools)
            str(prompt.text)
        finally:
            assert json.dumps(messages) == before, "the messages were changed"

    seeds = [p.encode() for p in ("{{ messages }}", "{% for m in messages %}{{ m.role }}{% endfor %}")]
    return Target(run, [*seeds, bytes(range(256))], (InvalidRequest,))


def dialects() -> Target:
    """Every dialect's parser: model outputs of the tables, spliced and spoiled, cut at random."""
    made = [(name, resolve(d.load)()) for name, d in sorted(default_registry().chat_dialects.items())]
    outputs = {}
    for name, _ in made:
        path = _TABLES / f"{name}.json"
        outputs[name] = [r["output"] for r in json.loads(path.read_text("utf-8"))] if path.is_file() else []
    everything = [o for rows in outputs.values() for o in rows]
    tools = Tools.of([{"type": "function", "function": {"name": n, "parameters": p}} for n, p in (
        ("f", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array"}}}), ("g", {}),
    )])  # fmt: skip
    prompts = (
        "",
        "<think>\n",
        "<think></think>",
        "[THINK]",
        "<|channel|>analysis<|message|>",
        "<start_of_turn>model\n",
    )

    def collect(parser: Any, pieces: list[str]) -> tuple[Any, ...]:
        text, reasoning, calls, gone = "", "", {}, set()
        deltas = [d for p in pieces for d in parser.push(p)] + parser.finish()
        for d in deltas:
            if isinstance(d, TextDelta):
                text += d.text
            elif isinstance(d, ReasoningDelta):
                reasoning += d.text
            elif isinstance(d, ToolCallDelta):
                assert d.index not in gone, "more of a call that was withdrawn"
                known, arguments = calls.pop(d.index, ("", ""))
                if d.withdrawn:
                    gone.add(d.index)
                else:
                    calls[d.index] = (known or d.name, arguments + d.arguments)
        for name, arguments in calls.values():
            assert name, "a call without a name"
            assert isinstance(json.loads(arguments), dict), f"arguments are {arguments!r}"
        assert sorted([*calls, *gone]) == list(range(len(calls) + len(gone))), "indices with gaps"
        return text, reasoning, calls

    def run(data: bytes) -> None:
        c = Choices(data)
        name, dialect = made[c.below(len(made))]
        out = ""
        for _ in range(c.between(1, 4)):
            source = outputs[name] if outputs[name] and c.chance(70) else everything
            text = source[c.below(len(source))]
            a, b = c.below(len(text) + 1), c.below(len(text) + 1)
            kind = c.below(5)
            out += (
                text
                if kind == 0
                else text[:a]
                if kind == 1
                else text[a:]
                if kind == 2
                else text[min(a, b) : max(a, b)]
            )
            if c.chance(40):
                out += c.pick(TRAPS) if c.chance(50) else c.text(12)
        prompt = c.pick(prompts)
        with_tools = tools if c.chance(80) else None
        whole = collect(dialect.parser(prompt, with_tools), [out])
        pieces = collect(dialect.parser(prompt, with_tools), cuts(c, out))
        single = collect(dialect.parser(prompt, with_tools), list(out))
        assert whole == pieces == single, "the answer depends on how it is cut"

    return Target(run, [bytes([n] * 64) for n in range(len(made))])


def skills() -> Target:
    """SKILL.md files."""
    words = (
        "---",
        "...",
        "name:",
        "description:",
        ": ",
        " >",
        " |",
        ">-",
        '"',
        "'",
        "#",
        "\n",
        "\r\n",
        "\r",
        "  ",
        "\ufeff",
    )

    def run(data: bytes) -> None:
        c = Choices(data)
        text = data.decode("utf-8", "replace")
        if data[:3] != b"---":
            text = "---\n" + "".join(c.pick(words) if c.chance(70) else c.text(8) for _ in range(c.below(60)))
        front_matter(text.split("\n"))
        skill = parse(text, c.text(6))
        assert skill.description and len(skill.description) <= 1024

    good = b"---\nname: my-skill\ndescription: >\n  Sort the notes:\n  tags, links\n---\nDo it.\n"
    return Target(
        run,
        [good, good.replace(b"\n", b"\r\n"), b'---\nname: x\ndescription: "a\\ud800"\n---\nbody'],
        (Unusable,),
    )

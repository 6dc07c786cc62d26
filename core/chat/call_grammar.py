"""Grammars that force tool calls in a family's own form: :class:`Format` -> Lark for llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ggfw.chat.definitions import needed
from ggfw.chat.format import CallForm
from ggfw.chat.tools import Tool, Tools
from ggfw.chat.typed import resolved
from ggfw.errors import InvalidRequest

if TYPE_CHECKING:
    from ggfw.constraints import Grammar

#: Calls that one answer may hold: small models that may go on write the same call until their tokens are used up.
MAX_CALLS = 16
#: Characters of schemas that one request has checked once more, or written again for each argument that needs their
#: definitions: about a second. What goes beyond that is left open.
MOST_CHECKED = 1 << 19
_START = re.compile(r"^start\s*:", re.MULTILINE)
#: text -> id of the control token that it is, or None if it is ordinary text in this vocabulary.
Control = Callable[[str], "int | None"]


def no_control(text: str) -> int | None:
    """A vocabulary without control tokens."""
    return None


def literal(text: str) -> str:
    """``text`` as a string of Lark."""
    return json.dumps(text, ensure_ascii=False)


class Lark:
    """Collects the rules of a grammar.

    Args:
        control: finds control tokens; grammars reach them by id only.
        strict: every tool's arguments must satisfy its schema, with an error for what grammars cannot express; else
            that holds for tools that say so themselves, and what cannot be expressed is left open.
        param: request parameter for messages.
    """

    def __init__(self, control: Control = no_control, strict: bool = False, param: str = "tools") -> None:
        self._control, self._strict, self._param = control, strict, param
        self._rules: list[str] = []
        self._names: dict[str, str] = {}
        self._values: dict[str, str] = {}  # schema of an argument -> its rule
        self._left = MOST_CHECKED

    def rule(self, expression: str, attributes: str = "") -> str:
        """The name of a rule with this right side."""
        key = f"{attributes}: {expression}"
        if key not in self._names:
            self._names[key] = name = f"r{len(self._names)}"
            self._rules.append(f"{name}{key}")
        return self._names[key]

    def terminal(self, expression: str) -> str:
        """The name of a terminal (one lexeme) with this right side."""
        if expression not in self._names:
            self._names[expression] = name = f"T{len(self._names)}"
            self._rules.append(f"{name}: {expression}")
        return self._names[expression]

    def text(self, text: str) -> str:
        """Exactly ``text``; nothing for the empty one."""
        return literal(text) if text else ""

    def more(self, separator: str, call: str) -> str:
        """Further calls behind a first one, up to MAX_CALLS together; the answer may end before each of them."""
        return f"({separator} {call}){{0,{MAX_CALLS - 1}}}"

    def mark(self, text: str) -> str:
        """A mark: the control token, where it is one in this vocabulary, else its text."""
        token = self._control(text) if text else None
        return self.text(text) if token is None else f"<[{token}]>"

    def is_control(self, text: str) -> bool:
        """Whether ``text`` is one control token."""
        return bool(text) and self._control(text) is not None

    def json(self, schema: Mapping[str, Any], *, strict: bool, tool: str = "") -> str:
        """JSON that satisfies ``schema``; if not ``strict``, keywords that cannot be expressed are ignored.

        Args:
            schema: an object.
            strict: see there.
            tool: the name of the tool to which the schema belongs, for messages.

        Raises:
            InvalidRequest: the schema is malformed, nothing satisfies it, or it is ``strict`` and cannot be expressed.
        """
        from ggfw.constraints.compiler import JSON_OPTIONS
        from ggfw.constraints.widen import refusal, widened

        if not strict:
            schema = widened(schema)
        why = refusal(schema, lenient=not strict)
        if why is not None:
            raise InvalidRequest(
                f"the parameters of the tool {tool!r} cannot be enforced: {why}", self._param
            )
        options = JSON_OPTIONS if strict else {**JSON_OPTIONS, "lenient": True}
        return self.rule("%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False))

    def arguments(self, tool: Tool) -> str:
        """The arguments of ``tool`` as a JSON object."""
        return self.json(_object(tool.parameters), strict=self._strict or tool.strict, tool=tool.name)

    def value(self, tool: Tool, schema: Any) -> str:
        """One argument of ``tool`` as JSON; ``schema`` may refer to the definitions of the tool."""
        own, strict = dict(schema) if isinstance(schema, Mapping) else {}, self._strict or tool.strict
        definitions = needed(own, tool.parameters)
        own = {**definitions, **own}
        try:
            key = f"{strict} {json.dumps(own)}"
        except (TypeError, ValueError, RecursionError):
            return self.json(own, strict=strict, tool=tool.name)  # says what is wrong with it
        if key not in self._values:
            self._left -= len(key) if definitions else 0
            if self._left < 0 and strict:
                raise InvalidRequest(
                    f"the parameters of the tool {tool.name!r} cannot be enforced: so many of them need the same "
                    f"definitions that these would be more than {MOST_CHECKED} characters; refer to fewer of them",
                    self._param,
                )
            self._values[key] = self.json(own if self._left >= 0 else {}, strict=strict, tool=tool.name)
        return self._values[key]

    def text_value(self, tool: Tool, schema: Any, end: str) -> str:
        """Bare text up to and with ``end``, which it does not hold, as an argument of ``tool`` with this schema.

        It is one of the schema's values, where it lists them, else it has the schema's lengths and pattern.

        Raises:
            InvalidRequest: the arguments must satisfy a keyword that cannot be enforced in bare text.
        """
        schema = resolved(schema, tool.parameters)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list | tuple) and values and all(isinstance(v, str) for v in values):
            return f"({' | '.join(literal(v) for v in values)}) {self.text(end)}"
        if self.is_control(end):
            return self.until(end)
        parts, missed = _text_patterns(schema)
        if missed and (self._strict or tool.strict):
            raise InvalidRequest(
                f"the parameters of the tool {tool.name!r} cannot be enforced: {missed!r} of a text that this model "
                "writes without quotes",
                self._param,
            )
        if not parts:
            return self.until(end)
        return self.rule(self.terminal(" & ".join(f"/{part}/" for part in parts)), f"[suffix={literal(end)}]")

    def until(self, end: str) -> str:
        """Any text up to and with the first ``end``."""
        if self.is_control(end):
            return f"{self.terminal('/(?s:.+)/')}? {self.mark(end)}"
        return self.rule("/(?s:.*)/", f"[suffix={literal(end)}]")

    def without(self, mark: str) -> str:
        """Any text in which ``mark`` does not stand."""
        if not mark or self.is_control(mark):
            return self.terminal("/(?s:.+)/") + "?"
        inside = "".join(c if c.isalnum() else f"\\x{{{ord(c):X}}}" for c in mark)
        return self.terminal(f"/(?s:.+)/ & ~/(?s:.*){inside}(?s:.*)/") + "?"

    def source(self, start: str) -> str:
        """The whole grammar."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"


def _text_patterns(schema: Mapping[str, Any]) -> tuple[list[str], str]:
    """Regular expressions for all of a text, and a keyword of the schema that they leave out, or ""."""
    parts, missed = list[str](), "format" if "format" in schema else ""
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if low or high is not None:
        if (
            isinstance(low, int)
            and isinstance(high, int | None)
            and 0 <= low <= (low if high is None else high)
        ):
            parts.append(f"(?s:.{{{low},{'' if high is None else high}}})")
        else:
            missed = "minLength"
    if "pattern" in schema:
        found = _whole(schema["pattern"])
        if found is None:
            missed = "pattern"
        else:
            parts.append(found)
    return parts, missed


def _whole(pattern: Any) -> str | None:
    """A pattern of a schema, which may match anywhere, as one for all of a text; None where that is not simple."""
    from ggfw.constraints.widen import refusal

    schema = {"type": "string", "pattern": pattern}
    if not isinstance(pattern, str) or refusal(schema, lenient=False) is not None:
        return None
    inside, first = pattern.removeprefix("^"), pattern.startswith("^")
    last = re.search(r"(?<!\\)(?:\\\\)*\$\Z", inside) is not None
    inside = inside[:-1] if last else inside
    if re.search(r"[$^]", inside.replace("[^", "")) or ((first or last) and "|" in inside):
        return None
    whole = f"{'' if first else '(?s:.*)'}({inside}){'' if last else '(?s:.*)'}"
    return re.sub(r"(?<!\\)/", r"\/", whole).replace("\n", r"\n")


def _object(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of arguments: it is an object even where it does not say so."""
    schema = {**parameters, "type": "object"}
    if not any(key in schema for key in ("properties", "$ref", "anyOf", "oneOf", "allOf")):
        schema["properties"] = {}
    return schema


def calls(
    form: CallForm,
    tools: Tools,
    *,
    required: bool,
    parallel: bool,
    strict: bool,
    control: Control = no_control,
) -> Grammar:
    """The grammar of an answer that holds calls in ``form``.

    Args:
        form: how calls are written.
        tools: what may be called.
        required: the answer is calls and nothing else; otherwise text may stand in front of them, or alone.
        parallel: several calls may follow each other, up to MAX_CALLS.
        strict: see :class:`Lark`.
        control: see :class:`Lark`.

    Raises:
        InvalidRequest: a schema is malformed.
    """
    from ggfw.constraints import Grammar

    lark = Lark(control, strict)
    body = form.body.grammar(lark, tools)
    close = form.close[0] if form.close else ""
    inside = " ".join(
        part for part in (lark.text(form.gap[0]), body, lark.text(form.gap[1]), lark.mark(close)) if part
    )
    block = lark.rule(f"{lark.mark(form.open)} {inside}")
    repeated = parallel and not getattr(form.body, "listed", False)  # a list holds all calls in one block
    more = f" {lark.more(lark.text(form.between), block)}" if repeated else ""
    first, last = (lark.mark(mark) for mark in form.group)
    blocks = f"{first} {block}{more} {last}"
    if required:
        return Grammar.lark(lark.source(blocks), "tools")
    opening = form.group[0] or form.open
    if not opening:  # nothing tells a call from text before it has come: the answer is one or the other
        return Grammar.lark(lark.source(f"{blocks} | {lark.terminal('/[^{](?s:.*)/')}"), "tools")
    behind = f"{block}{more} {last}" if form.group[0] else f"{inside}{more} {last}"
    start = f"{lark.without(opening)} | {lark.until(opening)} {behind}"
    return Grammar.lark(lark.source(start), "tools")


def enforceable(tools: Tools) -> Tools:
    """The tools with schemas that can be enforced: what cannot is left open, but for tools that are strict."""
    checks = _Checks()
    return replace(tools, offered=tuple(t if t.strict else checks.kept(t) for t in tools.offered))


class _Checks:
    """Finds what of tools' schemas can be enforced, at a cost that grows with their length and no faster."""

    def __init__(self) -> None:
        self._left = MOST_CHECKED

    def kept(self, tool: Tool) -> Tool:
        """``tool`` itself if all can be enforced, else with what cannot left open."""
        own = tool.parameters
        given, names = own.get("properties"), own.get("required")
        properties = dict(given) if isinstance(given, Mapping) else {}
        good = self._good({k: v for k, v in properties.items() if isinstance(v, bool | Mapping)}, own)
        kept = {key: one if key in good else {} for key, one in properties.items()}
        if kept == properties and _fits(_object(own)):
            return tool
        required = [k for k in names if isinstance(k, str)] if isinstance(names, list | tuple) else []
        schema = {"type": "object", "properties": kept, "required": required, **needed(kept, own)}
        if not _fits(schema):
            schema = {"type": "object", "properties": dict.fromkeys(properties, {})}
        return replace(tool, parameters=schema)

    def _good(self, properties: Mapping[str, Any], root: Mapping[str, Any], parts: int = 1) -> set[str]:
        """Names of the properties that can be enforced, each for itself; where too much was checked, of fewer."""
        found, names = set[str](), list(properties)
        step = -(-len(names) // parts) or 1
        for first in range(0, len(names), step):
            some = {name: properties[name] for name in names[first : first + step]}
            if parts > 1 and not self._charged(some, root):
                continue
            # Together first: few tools have anything that cannot be enforced.
            if _fits({"type": "object", "properties": some, "required": [*some], **needed(some, root)}):
                found.update(some)
            elif len(some) > 1:
                found |= self._good(some, root, 16)
            elif all(
                isinstance(one, Mapping) and _fits({**needed(one, root), **one}) for one in some.values()
            ):
                # It is good alone, as some families write it; inside it may be left out, and may not have an "$id".
                found.update(
                    some if _fits({"type": "object", "properties": some, **needed(some, root)}) else ()
                )
        return found

    def _charged(self, some: Any, root: Mapping[str, Any]) -> bool:
        try:
            self._left -= len(json.dumps([some, needed(some, root)]))
        except (TypeError, ValueError, RecursionError):
            return False
        return self._left >= 0


def _fits(schema: Mapping[str, Any]) -> bool:
    from ggfw.constraints.widen import refusal, widened

    return refusal(widened(schema), lenient=True) is None


def answer_or_calls(answer: Grammar, forced: Grammar) -> Grammar:
    """The grammar of an answer that is JSON, or calls and nothing else.

    Args:
        answer: a JSON schema.
        forced: a Lark grammar of calls.

    Returns:
        In Lark, with the parameter of ``answer``.
    """
    from ggfw.constraints import Grammar
    from ggfw.constraints.compiler import JSON_OPTIONS

    schema = json.loads(answer.text)
    inline = json.dumps(
        {**({} if schema is True else schema), "x-guidance": JSON_OPTIONS}, ensure_ascii=False
    )
    rules = _START.sub("answer_calls:", forced.text, count=1)
    return Grammar.lark(
        f"start: answer_json | answer_calls\nanswer_json: %json {inline}\n{rules}", answer.param
    )

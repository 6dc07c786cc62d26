"""Bounds on grammars and schemas, checked before they are compiled.

llguidance compiles by recursion; some 700 references in a row overflow its stack and take the process with them. So
depth is counted here first, without recursion. The other bounds keep compilation within two seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from ggfw.errors import InvalidRequest

#: References and subschemas within each other.
MAX_DEPTH = 256
#: Containers within each other in the text of a schema; beyond it JSON readers give up.
MAX_NESTING = 100
#: Properties of one object: compilation takes the square of them.
MAX_PROPERTIES = 2000
#: ``multipleOf`` becomes an automaton with that many states.
MAX_MULTIPLE = 100_000
#: Bytes of a grammar or schema.
MAX_SIZE = 4 << 20


def check_size(text: str, what: str, param: str) -> None:
    """Refuse texts of more than MAX_SIZE characters.

    Raises:
        InvalidRequest: it is longer.
    """
    if len(text) > MAX_SIZE:
        raise InvalidRequest(f"the {what} has {len(text)} characters; at most {MAX_SIZE} are allowed", param)


def depth(start: Hashable, children: Callable[[Any], Iterable[Hashable]], limit: int) -> int:
    """Length of the longest path from ``start`` that a depth-first walk takes; stops counting at ``limit`` + 1.

    The walk enters every node once, as a compiler does that remembers what it has compiled.
    """
    seen = {start}
    stack = [iter(children(start))]
    deepest = 1
    while stack and deepest <= limit:
        for child in stack[-1]:
            if child not in seen:
                seen.add(child)
                stack.append(iter(children(child)))
                deepest = max(deepest, len(stack))
                break
        else:
            stack.pop()
    return deepest


# -- JSON schemas -----------------------------------------------------------------------------------------------------


def check_schema(schema: Any, param: str) -> None:
    """Check size and depth of a schema: nesting, and chains of ``$ref``.

    Raises:
        InvalidRequest: the message names the bound.
    """
    _check_nesting(schema, param)
    # Values are told apart by identity: the same text in two places is two subschemas.
    nodes: dict[int, Any] = {id(schema): schema}

    def children(node: int) -> Iterable[int]:
        value = nodes[node]
        values: Iterable[Any] = ()
        if isinstance(value, Mapping):
            values = value.values()
            target = _resolve(schema, value.get("$ref"))
            if target is not None:
                values = [*values, target]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            values = value
        for one in values:
            if isinstance(one, Mapping | list | tuple):
                nodes[id(one)] = one
                yield id(one)

    # A mapping of properties and the subschema in it are two nodes here, one level for the compiler.
    if depth(id(schema), children, 2 * MAX_DEPTH) > 2 * MAX_DEPTH:
        raise InvalidRequest(
            f"the JSON schema's references are more than {MAX_DEPTH} deep; flatten the chain of $ref", param
        )


def _check_nesting(schema: Any, param: str) -> None:
    """Nesting of the text, and the bounds of single keywords; level by level, without recursion."""
    level: list[Any] = [schema]
    for _ in range(MAX_NESTING):
        below: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                _check_keywords(value, param)
                below += value.values()
            elif isinstance(value, list | tuple):
                below += value
        level = [value for value in below if isinstance(value, Mapping | list | tuple)]
        if not level:
            return
    raise InvalidRequest(
        f"the JSON schema is nested more than {MAX_NESTING} deep; that is the most allowed", param
    )


def _check_keywords(schema: Mapping[str, Any], param: str) -> None:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and len(properties) > MAX_PROPERTIES:
        raise InvalidRequest(
            f"an object of the JSON schema has {len(properties)} properties; at most {MAX_PROPERTIES} are allowed",
            param,
        )
    multiple = schema.get("multipleOf")
    if isinstance(multiple, int | float) and not isinstance(multiple, bool):
        digits = re.sub(r"e.*|\.", "", repr(multiple)).lstrip("-0") or "0"
        if int(digits.rstrip("0") or "0") > MAX_MULTIPLE:
            raise InvalidRequest(
                f"multipleOf {multiple} has too many digits for a grammar; at most {MAX_MULTIPLE} is possible",
                param,
            )


def _resolve(schema: Any, reference: Any) -> Any:
    """The subschema that a local reference points at, or None."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = schema
    for part in unquote(reference[1:]).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(part)
        elif isinstance(found, list | tuple) and part.isdigit() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


# -- Lark -------------------------------------------------------------------------------------------------------------

#: What may hold a name without meaning it: strings, regular expressions, comments.
_LARK_OPAQUE = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?!/)(?:[^/\\\n]|\\.)+/|//[^\n]*|#[^\n]*')
_LARK_JSON = re.compile(r"%json\s*(?=\{)")
_LARK_RULE = re.compile(r"^[ \t]*[?!]?([A-Za-z_][\w-]*)[^:\n]*:", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_][\w-]*")


def check_lark(text: str, param: str) -> None:
    """Check size and depth of references of a Lark grammar.

    Raises:
        InvalidRequest: the message names the bound.
    """
    check_size(text, "grammar", param)
    for inline in _LARK_JSON.finditer(text):
        try:
            schema, _ = json.JSONDecoder().raw_decode(text, inline.end())
        except RecursionError:
            raise InvalidRequest("a %json block of the grammar is nested too deeply", param) from None
        except ValueError:  # the compiler says what is wrong with it, and where
            continue
        check_schema(schema, param)
    bare = _LARK_OPAQUE.sub(" ", text)
    heads = list(_LARK_RULE.finditer(bare))
    ends = [head.start() for head in heads[1:]] + [len(bare)]
    names = {head[1] for head in heads}
    bodies: dict[str, list[str]] = {}
    for head, end in zip(heads, ends, strict=True):
        found = (name for name in _NAME.findall(bare, head.end(), end) if name in names)
        bodies.setdefault(head[1], []).extend(found)
    if "start" in names and depth("start", lambda name: bodies[name], MAX_DEPTH) > MAX_DEPTH:
        raise InvalidRequest(
            f"the grammar's rules refer to each other more than {MAX_DEPTH} deep; inline some of them", param
        )

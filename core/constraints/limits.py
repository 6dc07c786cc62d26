"""Bounds on grammars and schemas, checked before they are compiled.

llguidance compiles by recursion; some 700 references in a row overflow its stack and take the process with them. So
depth is counted here first, without recursion. The other bounds keep compilation within two seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from math import isfinite
from typing import Any

from ggfw.constraints.endless import is_endless
from ggfw.errors import InvalidRequest

#: References and subschemas within each other.
MAX_DEPTH = 256
#: Objects within each other that a schema describes. Each is two containers in its text, its subschema and the mapping
#: of its properties; beyond 126 containers JSON readers give up.
MAX_NESTING = 60
#: Types of values in which nothing is to be looked at: lists of choices are the longest part of large schemas.
_PLAIN = frozenset({str, bool, type(None)})
#: Of an integer: Python writes none of thousands of digits.
_MOST_BITS = 1024
_INDEX = re.compile("[0-9]{1,9}")
_PERCENT = re.compile(r"%([0-7][0-9A-Fa-f])")
#: Properties of one object: compilation takes the square of them.
MAX_PROPERTIES = 2000
#: ``multipleOf`` becomes an automaton with that many states.
MAX_MULTIPLE = 100_000
#: Numbers up to this one are -2^63 when llguidance has made integers of them (rounded to double precision, then cut to
#: 64 bits), at which it recurses until its stack overflows. Whether one becomes an integer cannot be told from its
#: place: ``allOf``, references and ``type`` bring them together. Its reader of decimals may miss the nearest float.
LOWEST_INTEGER, LOWEST_FLOAT = -(2**63) + 512, float(-(2**63) + 16 * 1024)
#: Schemas inside a grammar: the place of an error in each is counted from the beginning of the text.
MAX_INLINE = 1000
#: Characters of a grammar or schema.
MAX_SIZE = 1 << 20


def check_size(text: str, what: str, param: str) -> None:
    """Refuse texts of more than MAX_SIZE characters, and those that are not Unicode text.

    Raises:
        InvalidRequest: it is longer, or holds a lone surrogate.
    """
    if len(text) > MAX_SIZE:
        raise InvalidRequest(f"the {what} has {len(text)} characters; at most {MAX_SIZE} are allowed", param)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the {what} holds half of a surrogate pair at character {error.start}", param
        ) from None


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
    """Check size and depth of a schema: nesting, and chains of ``$ref``; and that it does not demand itself.

    Raises:
        InvalidRequest: the message names the bound, or the keyword whose effect on references is not followed here.
    """
    anchors = _check_nesting(schema, param)
    # Values are told apart by identity: the same text in two places is two subschemas.
    nodes: dict[int, Any] = {id(schema): schema}

    def children(node: int) -> Iterable[int]:
        value = nodes[node]
        values: Iterable[Any] = ()
        if isinstance(value, Mapping):
            target = resolve(schema, value.get("$ref"), anchors)
            values = value.values() if target is None else [*value.values(), target]
        elif isinstance(value, list | tuple) and not _PLAIN.issuperset(map(type, value)):
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
    if isinstance(schema, Mapping) and is_endless(schema, lambda name: resolve(schema, name, anchors)):
        raise InvalidRequest(
            "the JSON schema accepts no text: what it requires leads back to itself, so that every answer would go on "
            "for ever; make something on the way optional, or let it be null",
            param,
        )


def _check_nesting(schema: Any, param: str) -> dict[str, Any]:
    """Check nesting and the bounds of single keywords, level by level, without recursion; returns the ``$anchor``s."""
    anchors: dict[str, Any] = {}
    identifiers = ["$id"]  # they change what references inside mean
    if isinstance(schema, Mapping) and re.search("draft-0[34]", str(schema.get("$schema"))):
        identifiers.append("id")
    level: list[Any] = [schema]
    for _ in range(2 * MAX_NESTING + 4):
        below: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                if value is not schema and any(isinstance(value.get(name), str) for name in identifiers):
                    raise InvalidRequest("the JSON schema has an '$id' inside, which is not supported", param)
                if isinstance(value.get("$anchor"), str):
                    anchors[value["$anchor"]] = value
                _check_numbers(value.values(), param)
                _check_keywords(value, param)
                below += value.values()
            elif isinstance(value, list | tuple) and not _PLAIN.issuperset(map(type, value)):
                _check_numbers(value, param)
                below += value
        level = [value for value in below if isinstance(value, Mapping | list | tuple)]
        if not level:
            return anchors
    raise InvalidRequest(
        f"the JSON schema is nested more than {MAX_NESTING} objects deep, which is the most allowed", param
    )


def _check_numbers(values: Iterable[Any], param: str) -> None:
    for value in values:
        if isinstance(value, float) and not isfinite(value):
            raise InvalidRequest(f"the JSON schema holds {value}, which is no number in JSON", param)
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise InvalidRequest("the JSON schema holds an integer of more than 300 digits", param)
        lowest = LOWEST_FLOAT if isinstance(value, float) else LOWEST_INTEGER
        if isinstance(value, int | float) and value <= lowest:
            raise InvalidRequest(
                f"the JSON schema holds a number that is too small; above {lowest} was expected", param
            )


def _check_keywords(schema: Mapping[str, Any], param: str) -> None:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and len(properties) > MAX_PROPERTIES:
        raise InvalidRequest(
            f"an object of the JSON schema has {len(properties)} properties; at most {MAX_PROPERTIES} are allowed",
            param,
        )
    most = free_keys_needed(schema)
    if most is not None:
        raise InvalidRequest(
            f"the JSON schema's minProperties {schema['minProperties']} asks for several free keys, and a grammar "
            f"cannot tell whether they differ; at most {most} is possible there, or name the keys in 'required'",
            param,
        )
    multiple = schema.get("multipleOf")
    if isinstance(multiple, int | float) and not isinstance(multiple, bool):
        digits = re.sub(r"e.*|\.", "", repr(multiple)).lstrip("-0") or "0"
        if int(digits.rstrip("0") or "0") > MAX_MULTIPLE:
            raise InvalidRequest(
                f"the JSON schema's multipleOf {multiple} has too many digits for a grammar; "
                f"at most {MAX_MULTIPLE} is possible",
                param,
            )


def free_keys_needed(schema: Mapping[str, Any]) -> int | None:
    """The most that ``minProperties`` may be where it asks for more free keys than one, else None.

    A grammar does not see that a key comes twice: of free keys (``patternProperties``, ``additionalProperties``) it can
    assure one beside those that are required.
    """
    least, required = schema.get("minProperties"), schema.get("required")
    most = 1 + (len(required) if isinstance(required, list | tuple) else 0)
    free = schema.get("additionalProperties", True) is not False or bool(schema.get("patternProperties"))
    if isinstance(least, int | float) and not isinstance(least, bool) and least > most and free:
        return most
    return None


def resolve(schema: Any, reference: Any, anchors: Mapping[str, Any]) -> Any:
    """The subschema that a reference into this document points at, or None."""
    if not isinstance(reference, str) or "#" not in reference:
        return None
    fragment = _PERCENT.sub(lambda found: chr(int(found[1], 16)), reference.partition("#")[2])
    if not fragment.startswith("/"):
        return anchors.get(fragment) if fragment else schema
    found = schema
    for part in fragment.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(part)
        elif isinstance(found, list | tuple) and _INDEX.fullmatch(part) and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


# -- Lark -------------------------------------------------------------------------------------------------------------

#: What may hold a name without meaning it: strings, regular expressions, comments. One that is never closed is found,
#: too, so that it is read once and not again from each of its characters; it is no closed one, and its names count.
_LARK_OPAQUE = re.compile(
    r""""(?:[^"\\\n]|\\.)*(?P<string>")?|/(?!/)(?:[^/\\\n]|\\.)+(?P<regex>/)?|(?P<comment>//[^\n]*|\#[^\n]*)"""
)
_LARK_JSON = re.compile(r"%json\s*(?=\{)")
_LARK_RULE = re.compile(r"^[ \t]*[?!]?([A-Za-z_][\w-]*)(?![\w-])[^:\n]*:", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_][\w-]*")


def check_lark(text: str, param: str) -> None:
    """Check size and depth of references of a Lark grammar.

    Raises:
        InvalidRequest: the message names the bound.
    """
    check_size(text, "grammar", param)
    for n, inline in enumerate(_LARK_JSON.finditer(text)):
        if n == MAX_INLINE:
            raise InvalidRequest(f"the grammar has more than {MAX_INLINE} %json blocks; merge some", param)
        try:
            schema, _ = json.JSONDecoder().raw_decode(text, inline.end())
        except RecursionError:
            raise InvalidRequest("a %json block of the grammar is nested too deeply", param) from None
        except ValueError:  # the compiler says what is wrong with it, and where
            continue
        check_schema(schema, param)
    bare = _LARK_OPAQUE.sub(lambda found: " " if found.lastgroup else found[0], text)
    heads = list(_LARK_RULE.finditer(bare))
    ends = [head.start() for head in heads[1:]] + [len(bare)] * bool(heads)
    names = {head[1] for head in heads}
    bodies: dict[str, list[str]] = {}
    for head, end in zip(heads, ends, strict=True):
        found = (name for name in _NAME.findall(bare, head.end(), end) if name in names)
        bodies.setdefault(head[1], []).extend(found)
    if "start" in names and depth("start", lambda name: bodies[name], MAX_DEPTH) > MAX_DEPTH:
        raise InvalidRequest(
            f"the grammar's rules refer to each other more than {MAX_DEPTH} deep; inline some of them", param
        )

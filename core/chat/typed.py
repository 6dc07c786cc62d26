"""Arguments that are written as bare text, typed by the tool's schema."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from ggfw.chat.jsonscan import written

_KINDS = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
#: ``$ref`` and ``anyOf`` within each other that are followed.
_MAX_DEPTH = 16


def kinds_of(schema: Any, root: Any = None, depth: int = 0) -> frozenset[str]:
    """The JSON types that ``schema`` admits; empty where it does not say.

    Args:
        schema: of one value.
        root: the schema in which ``$ref`` point.
    """
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind}) & _KINDS
    if isinstance(kind, list | tuple):
        return frozenset(k for k in kind if isinstance(k, str)) & _KINDS
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list | tuple):
            found = (kinds_of(one, root, depth + 1) for one in schema[key])
            return frozenset().union(*found)
    values = schema["enum"] if isinstance(schema.get("enum"), list | tuple) else ()
    if "const" in schema:
        values = (schema["const"],)
    if values:
        return frozenset(_kind(value) for value in values)
    if "$ref" in schema:
        return kinds_of(_target(schema["$ref"], root), root, depth + 1)
    return frozenset()


def _target(reference: Any, root: Any) -> Any:
    """What a ``$ref`` points at in ``root``; None where that is nothing."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    target = root
    for part in reference[2:].split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        target = target.get(part) if isinstance(target, Mapping) else None
    return target


def resolved(schema: Any, root: Any) -> Mapping[str, Any]:
    """``schema``, or what it points at in ``root``; empty where that is no object."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, Mapping):
            break
        if "$ref" not in schema:
            return schema
        schema = _target(schema["$ref"], root)
    return {}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list | tuple) else "object"


def property_of(parameters: Any, name: str) -> Any:
    """The schema of the argument ``name``; None where the tool does not know it."""
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return properties.get(name) if isinstance(properties, Mapping) else None


def is_text(kinds: frozenset[str]) -> bool:
    """Whether a bare value of these types is text whatever it looks like."""
    return not kinds or kinds == {"string"}


def typed(value: str, kinds: frozenset[str]) -> str:
    """A bare value as JSON text.

    What does not fit the types is a string: a bad value must not lose the call.

    Args:
        value: what the model wrote.
        kinds: the types that its schema admits; empty: text.
    """
    if not is_text(kinds):
        bare = value.strip()
        if "null" in kinds and bare.lower() in ("null", "none"):
            return "null"
        if "boolean" in kinds and bare.lower() in ("true", "false"):
            return bare.lower()
        wanted = kinds - {"string", "null", "boolean"}
        if wanted:
            try:
                parsed = json.loads(bare, parse_constant=_refuse)
            except (ValueError, RecursionError):
                parsed = _python(bare) if wanted & {"array", "object"} else ""
            kind = _kind(parsed)
            if kind == "number" and "number" not in wanted and float(parsed).is_integer():
                parsed, kind = int(parsed), "integer"
            if kind in wanted or (kind == "integer" and "number" in wanted):
                try:
                    return written(parsed)
                except (ValueError, RecursionError):
                    pass  # 1e999
    return json.dumps(value, ensure_ascii=False)


def _python(text: str) -> Any:
    """A list or an object in Python's notation, which some templates write and their models repeat."""
    try:
        value = ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return ""
    return value


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")

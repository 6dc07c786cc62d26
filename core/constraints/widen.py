"""JSON schemas without what no grammar can express: the widest schema that can be enforced."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ggfw.constraints.limits import check_schema, free_keys_needed, resolve
from ggfw.errors import InvalidRequest

#: Keywords that may be beyond a grammar: the type that their values must have, and a type that they restrict.
_DOUBTFUL: dict[str, tuple[type | tuple[type, ...], str]] = {
    "pattern": (str, "string"),
    "format": (str, "string"),
    "minimum": ((int, float), "number"),
    "maximum": ((int, float), "number"),
    "exclusiveMinimum": ((int, float), "number"),
    "exclusiveMaximum": ((int, float), "number"),
    "multipleOf": ((int, float), "number"),
}


def refusal(schema: Mapping[str, Any], *, lenient: bool) -> str | None:
    """Why ``schema`` cannot be enforced, as a sentence; None if it can.

    Args:
        schema: an object.
        lenient: keywords that the compiler does not know are ignored.
    """
    try:
        check_schema(schema, "schema")
        return _refusal(json.dumps(schema, ensure_ascii=False, allow_nan=False), lenient)
    except InvalidRequest as error:
        return str(error)
    except (TypeError, ValueError, RecursionError) as error:
        return f"the JSON schema cannot be written as JSON: {error}"


@lru_cache(maxsize=256)
def _refusal(text: str, lenient: bool) -> str | None:
    from llguidance import LLMatcher, LLParserLimits

    from ggfw.constraints.compiler import JSON_OPTIONS, LEXER_FUEL, explained
    from ggfw.constraints.grammar import Grammar

    options = {**JSON_OPTIONS, "lenient": True} if lenient else JSON_OPTIONS
    source = "start: %json " + json.dumps({**json.loads(text), "x-guidance": options}, ensure_ascii=False)
    limits = LLParserLimits(verbose_errors=False, initial_lexer_fuel=LEXER_FUEL)
    matcher = LLMatcher(_bytes(), source, log_level=0, limits=limits)
    return explained(Grammar("json_schema", text), matcher.get_error()) if matcher.is_error() else None


@lru_cache(maxsize=1)
def _bytes() -> Any:
    """A vocabulary of single bytes: whether a grammar compiles does not depend on the vocabulary."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def widened(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """``schema`` itself if it can be enforced, else without the keywords that cannot; what is malformed stays."""
    if refusal(schema, lenient=True) is None:
        return schema
    try:
        return _without(schema, schema)  # type: ignore[no-any-return]
    except RecursionError:
        return schema


def _without(value: Any, root: Mapping[str, Any]) -> Any:
    if isinstance(value, list | tuple):
        return [_without(one, root) for one in value]
    if not isinstance(value, Mapping):
        return value
    out = {
        key: one if key in ("enum", "const", "default", "examples") else _without(one, root)
        for key, one in value.items()
    }
    for key, (kinds, restricts) in _DOUBTFUL.items():
        limit = out.get(key)
        if isinstance(limit, kinds) and not isinstance(limit, bool):
            kind = out.get("type") if out.get("type") in ("integer", "number") else restricts
            if refusal({"type": kind, key: limit}, lenient=True) is not None:
                del out[key]
    reference = out.get("$ref")
    if isinstance(reference, str) and resolve(root, reference, {}) in (None, value):
        del out["$ref"]
    patterns = out.get("patternProperties")
    if isinstance(patterns, Mapping):
        good = {
            p: s
            for p, s in patterns.items()
            if refusal({"type": "string", "pattern": p}, lenient=True) is None
        }
        if len(good) < len(patterns):  # their keys are among the others now
            out["patternProperties"] = good
            out.pop("additionalProperties", None)
    if free_keys_needed(out) is not None:
        del out["minProperties"]
    return out

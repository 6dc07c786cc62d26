"""Schemas of tools that grammars cannot hold: widened for most tools, refused by the tool's name for strict ones."""

from __future__ import annotations

from typing import Any

import pytest
from test_dialect_grammars import accepts, compiler, constraint, write

from ggfw.chat.tools import Tools
from ggfw.constraints import Grammar
from ggfw.errors import InvalidRequest


def tools(schema: dict[str, Any], strict: bool = False) -> Tools:
    parameters = {"type": "object", "properties": {"c": schema}, "required": ["c"]}
    return Tools.of([{"name": "f", "parameters": parameters, "strict": strict}], "required")


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize(
    ("schema", "fits", "other"),
    [
        ({"type": "string", "pattern": "^(?=a)b"}, "b", 1),
        ({"type": "integer", "minimum": -1e30}, 5, "x"),
        ({"type": "integer", "maximum": 10**30, "minimum": -(2**63)}, 5, 1.5),
        ({"type": "number", "multipleOf": 1_000_003}, 5.5, "x"),
        (
            {"type": "object", "patternProperties": {"^(?!a)": {}}, "additionalProperties": False},
            {"b": 1},
            [],
        ),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 3},
            {"b": 1},
            {"b": "x"},
        ),
        (
            {"type": "array", "items": {"type": "integer", "not": {"const": 3}}, "uniqueItems": True},
            [1, 1],
            ["x"],
        ),
        ({"type": "integer", "$ref": "https://example.org/x"}, 5, "x"),
    ],
)
def test_what_cannot_be_held_is_ignored_unless_strict(name: str, schema: Any, fits: Any, other: Any) -> None:
    found = constraint(name, False, tools(schema), strict=False)
    assert accepts(found.copy(), False, write(name, [("f", {"c": fits})]))
    if name == "hermes":
        assert not accepts(found.copy(), False, write(name, [("f", {"c": other})]))
        with pytest.raises(InvalidRequest, match="tool 'f'.*JSON schema") as caught:
            constraint(name, False, tools(schema, strict=True), strict=False)
        assert "Lark" not in str(caught.value) and caught.value.param == "tools"


@pytest.mark.parametrize(
    "schema",
    [{"type": "strin"}, {"type": "string", "pattern": 5}, {"type": "integer", "minimum": 5, "maximum": 2}],
)
def test_what_is_malformed_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match="tool 'f'"):
        constraint("hermes", False, tools(schema), strict=False)


def refused(schema: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        compiler(False).compile(Grammar.json_schema(schema))
    return str(caught.value)


def test_free_keys_are_not_counted_twice() -> None:
    free = {"patternProperties": {"^x$": {}}, "additionalProperties": False, "maxProperties": 3}
    for schema in (
        {"minProperties": 2, **free},
        {"minProperties": 2},
        {"minProperties": 3, "required": ["a"]},
    ):
        assert "minProperties" in refused({"type": "object", **schema})
    for schema in (
        {"minProperties": 1, **free},
        {"properties": {"a": {}}, "required": ["a"], "minProperties": 2},
    ):
        compiler(False).compile(Grammar.json_schema({"type": "object", **schema}))


def test_messages_are_in_our_words() -> None:
    assert "leads back to itself" in refused({"$ref": "#"})
    with pytest.raises(InvalidRequest, match=r"accepts no text: what it demands is impossible"):
        compiler(False).compile(Grammar.regex(r"[^\s\S]"))
    deep: dict[str, Any] = {"type": "string", "pattern": "^(?=a)b"}
    message = refused({"properties": {"a": {"properties": {"b": deep}}}})
    assert "'^(?=a)b' (at $.properties.a.properties.b)" in message and "look-around" in message
    for _ in range(70):
        deep = {"type": "object", "properties": {"a": deep}}
    assert refused(deep) == "the JSON schema is nested more than 60 objects deep, which is the most allowed"
    with pytest.raises(
        InvalidRequest, match="'f' cannot be enforced: the JSON schema is nested more than 60 objects"
    ):
        constraint("hermes", False, tools(deep), strict=False)
    many = {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(600)}}
    found = compiler(False).compile(Grammar.json_schema(many))
    assert accepts(found, False, '{"p3": 1, "p599": 2}')

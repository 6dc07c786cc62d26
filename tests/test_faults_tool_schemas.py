"""Tools whose schemas share many definitions: what forced calls cost, and what of a schema is still enforced."""

from __future__ import annotations

import time
from typing import Any

import pytest
import test_dialect_grammars as families

from ggfw.chat.call_grammar import enforceable
from ggfw.chat.tools import Tools
from ggfw.errors import InvalidRequest

#: Refused wherever it stands.
BAD: dict[str, Any] = {"type": "string", "$id": "http://x/y"}


def offered(parameters: dict[str, Any]) -> Tools:
    return Tools.of([{"name": "f", "parameters": {"type": "object", **parameters}}], "required")


def large(n: int, bad: int, each: str = "own") -> dict[str, Any]:
    """``n`` properties, ``bad`` of them of no type, and as many definitions."""
    of = {"own": "#/$defs/d{}", "one": "#/$defs/d0", "none": ""}[each]
    properties: dict[str, Any] = {
        f"p{i}": {"$ref": of.format(i)} if of else {"type": "string"} for i in range(n)
    }
    for i in range(bad):
        properties[f"p{i * (n // max(bad, 1))}"] = BAD
    definitions = {f"d{i}": {"type": "string", "maxLength": 1 + i} for i in range(n)}
    return {"properties": properties, "$defs": definitions}


def chain(n: int, bad: int) -> dict[str, Any]:
    """Properties that all lead through the same 100 definitions."""
    made = large(n, bad, "one")
    made["$defs"] = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(100)
    }
    made["$defs"]["d100"] = {"type": "string"}
    return made


@pytest.mark.parametrize("make", [large, chain])
@pytest.mark.parametrize("bad", [1, 8, 500])
def test_finding_what_cannot_be_enforced_takes_little(make: Any, bad: int) -> None:
    tools = offered(make(500, bad))
    begin = time.process_time()
    enforceable(tools)
    assert time.process_time() - begin < 2


def test_only_what_cannot_be_enforced_is_left_open() -> None:
    made = large(300, 3)
    (tool,) = enforceable(offered(made)).offered
    given = made["properties"]
    assert tool.parameters["properties"] == {k: {} if v == BAD else v for k, v in given.items()}
    assert tool.parameters["$defs"] == {k: v for k, v in made["$defs"].items() if f"p{k[1:]}" in given
                                        and given[f"p{k[1:]}"] != BAD}  # fmt: skip


def test_definitions_that_nobody_needs_do_no_harm() -> None:
    needed = {"a": {"$ref": "#/$defs/x~1y/properties/b"}, "c": {"$ref": "#/$defs/bad"}}
    definitions = {
        "x/y": {"properties": {"b": {"$ref": "#/$defs/z%20"}}},
        "z ": {"type": "integer"},
        "bad": BAD,
    }
    (tool,) = enforceable(offered({"properties": needed, "$defs": definitions})).offered
    assert tool.parameters["properties"] == {"a": needed["a"], "c": {}}
    assert set(tool.parameters["$defs"]) == {"x/y", "z "}


@pytest.mark.parametrize(
    "reference", ["#here", "#", "#/properties/a", "#/$defs/A/properties/b", "#/definitions/A"]
)
def test_every_kind_of_reference_is_followed(reference: str) -> None:
    """A recursive schema, and names that stand deeper inside, stay as they are."""
    inner = {"$anchor": "here", "type": "object", "properties": {"b": {"type": "integer"}}}
    needed = {"a": {"type": "array", "items": {"$ref": reference}}, "bad": BAD}
    made = {"properties": needed, "$defs": {"A": inner}, "definitions": {"A": inner}}
    (tool,) = enforceable(offered(made)).offered
    assert tool.parameters["properties"]["bad"] == {} and "type" in tool.parameters["properties"]["a"]


@pytest.mark.parametrize("make", [large, chain])
@pytest.mark.parametrize("name", ["hermes", "lfm2", "qwen3_coder", "minimax_m2"])
def test_forced_calls_take_little(name: str, make: Any) -> None:
    """Some families write each argument by a rule of its own, which had held all definitions."""
    tools = offered(make(500, 0))
    begin = time.process_time()
    families.dialect(name).call_grammar(tools, required=True, parallel=True, strict=False)
    assert time.process_time() - begin < 2


def test_definitions_that_would_be_repeated_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are left open from there on; tools that are strict are refused."""
    monkeypatch.setattr("ggfw.chat.call_grammar.MOST_CHECKED", 1 << 15)
    made = chain(300, 0)
    for i, one in enumerate(made["properties"].values()):
        one["title"] = f"t{i}"  # each is another one
    tools = offered(made)
    found = families.dialect("lfm2").call_grammar(tools, required=True, parallel=True, strict=False)
    assert len(found.text) < 3 << 15
    with pytest.raises(InvalidRequest, match="need the same definitions"):
        families.dialect("lfm2").call_grammar(tools, required=True, parallel=True, strict=True)

"""What compiled grammars take of memory is bounded by bytes, not by their number alone."""

from __future__ import annotations

import pytest
from tiny_models import vocabulary

from ggfw.constraints import Compiler, Grammar, compiler
from ggfw.errors import InvalidRequest
from ggfw.tokenizer import Tokenizer


@pytest.fixture
def compile_with() -> Compiler:
    return Compiler(Tokenizer.from_metadata(vocabulary()))


def words(n: int, first: int = 0) -> Grammar:
    return Grammar.choice([f"value{first + i}" for i in range(n)])


def test_large_grammars_are_forgotten(compile_with: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "CACHED_BYTES", 3 << 20)
    for first in range(0, 80_000, 8_000):  # each some 2 MiB
        compile_with.compile(words(8_000, first))
        assert compile_with.held_bytes <= 3 << 20 or len(compile_with._compiled) == 1
    assert len(compile_with._compiled) <= 2


def test_the_last_one_is_remembered_whatever_its_size(
    compile_with: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "CACHED_BYTES", 1)
    calls = []
    make = compile_with._make
    monkeypatch.setattr(compile_with, "_make", lambda grammar: calls.append(grammar) or make(grammar))
    for _ in range(3):
        compile_with.compile(words(2_000))
    assert len(calls) == 1
    compile_with.compile(words(10))
    compile_with.compile(words(2_000))
    assert len(calls) == 3


def test_small_ones_stay(compile_with: Compiler) -> None:
    for n in range(1, 60):
        compile_with.compile(words(n))
    assert len(compile_with._compiled) == 59


def test_a_schema_that_is_too_long_is_refused_before_anything_walks_over_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def walk(*args: object) -> None:
        raise AssertionError("it was walked over")

    monkeypatch.setattr("ggfw.constraints.grammar.check_schema", walk)
    with pytest.raises(InvalidRequest, match="at most 1048576 are allowed") as caught:
        Grammar.json_schema({"enum": [f"value number {i}" for i in range(60_000)]}, "format")
    assert caught.value.param == "format"


def test_what_no_json_can_hold_is_told_by_its_reason() -> None:
    deep: dict[str, object] = {"type": "string"}
    for _ in range(50_000):
        deep = {"properties": {"a": deep}}
    for schema, why in ((deep, "nested more than"), ({"minimum": float("nan")}, "no number in JSON")):
        with pytest.raises(InvalidRequest, match=why):
            Grammar.json_schema(schema)
    while isinstance(inner := deep.get("properties"), dict):  # or freeing it would recurse
        deep = inner.pop("a")

"""Schemas, regular expressions and grammars: compiled and walked for a few tokens, in the vocabulary of bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.choices import Choices
from fuzz.target import Target
from ggfw.constraints import Compiler, Grammar
from ggfw.errors import InvalidRequest
from ggfw.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import tiny_models


@cache
def _compiler() -> Compiler:
    return Compiler(Tokenizer.from_metadata(tiny_models.vocabulary()))


def _walk(grammar: Grammar, c: Choices) -> None:
    """Follow random allowed tokens."""
    constraint = _compiler().compile(grammar)
    for _ in range(40):
        allowed = np.flatnonzero(constraint.mask())
        if not len(allowed) or constraint.complete:
            return
        token = int(allowed[c.number(2) % len(allowed)])
        assert constraint.allows(token)
        constraint.accept(token)


def _target(make: Callable[[Choices, bytes], Grammar], seeds: list[bytes]) -> Target:
    def run(data: bytes) -> None:
        c = Choices(data)
        _walk(make(c, data), c)

    return Target(run, seeds, (InvalidRequest,), grows=128)


_TYPES = ("string", "integer", "number", "object", "array", "boolean", "null", "thing", 3, ["string", "null"])
_KEYWORDS = (
    "type", "enum", "const", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems",
    "maxItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "multipleOf",
    "anyOf", "oneOf", "allOf", "not", "$ref", "$defs", "definitions", "$id", "$anchor", "patternProperties",
    "minProperties", "maxProperties", "if", "then", "else", "uniqueItems", "contains", "x-guidance", "$schema", "default",  # noqa: E501
)  # fmt: skip


def _schema(c: Choices, depth: int = 4) -> Any:
    if not depth or c.chance(8):
        return c.json(1) if c.chance(20) else {"type": c.pick(_TYPES)}
    out: dict[str, Any] = {}
    for _ in range(c.below(4) + 1):
        key = c.pick(_KEYWORDS)
        if key in ("properties", "$defs", "definitions", "patternProperties"):
            out[key] = {
                c.text(3) if key != "patternProperties" else _pattern(c): _schema(c, depth - 1)
                for _ in range(c.below(4))
            }
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            out[key] = [_schema(c, depth - 1) for _ in range(c.below(4))]
        elif key in ("items", "additionalProperties", "not", "if", "then", "else", "contains"):
            out[key] = _schema(c, depth - 1)
        elif key == "type":
            out[key] = c.pick(_TYPES)
        elif key == "$ref":
            out[key] = c.pick(
                (
                    "#",
                    "#/$defs/a",
                    "#/properties/a",
                    "#/anyOf/0",
                    "http://x/y",
                    "#a",
                    "#/%24defs/a",
                    "file:///etc/passwd",
                )
            )
        elif key in ("pattern",):
            out[key] = _pattern(c)
        elif key == "format":
            out[key] = c.pick(("date", "date-time", "email", "ipv6", "uuid", "regex", "nonsense"))
        elif key == "required":
            out[key] = [c.text(3) for _ in range(c.below(3))]
        elif key == "enum":
            out[key] = [c.json(2) for _ in range(c.below(4))]
        else:
            out[key] = c.edge() * c.pick((1, -1)) if c.chance(70) else c.json(1)
    return out


def schemas() -> Target:
    """JSON schemas."""

    def make(c: Choices, data: bytes) -> Grammar:
        if data[:1] == b"{":
            return Grammar.json_schema(data.decode("utf-8", "replace"))
        return Grammar.json_schema(_schema(c))

    return _target(make, [b'{"type":"object","properties":{"a":{"$ref":"#"}}}', bytes(range(256))])


_PARTS = (
    "a", "b", ".", "\\d", "\\w", "\\p{L}", "\\b", "^", "$", "[a-z]", "[^a]", "(?:", "(", ")", "|", "*", "+", "?", "{3}",
    "{2,5}", "{1000}", "{0,99999}", "{,3}", "(?i)", "(?=a)", "(?<!a)", "\\1", "\\x{10FFFF}", "\\u1234", "[", "]", "\\", "\\Q",  # noqa: E501
    "(?P<n>", "(a*)*", "(a|a)*", "((a{9}){9}){9}", "&", "~", "\U0001f600",
)  # fmt: skip


def _pattern(c: Choices) -> str:
    return "".join(c.pick(_PARTS) if c.chance(90) else c.text(4) for _ in range(c.below(9) + 1))


def regexes() -> Target:
    """Regular expressions."""
    return _target(lambda c, data: Grammar.regex(_pattern(c)), [b"(a|b)*c", bytes(range(256))])


_GBNF = (
    "root", "a", "b", "::=", "|", "(", ")", "*", "+", "?", '"x"', '""', "[a-z]", "[^\\n]", "[\\x00-\\U0010FFFF]", "\n",
    "\n\n", "#c\n", "{2}", "{1,}", "{0,99999}", "{,2}", "<[1]>", "!<[2]>", "<|im_end|>", ".", '"\\u12"', "[", '"', "root ::= ",  # noqa: E501
    "\na ::= ", "\nb ::= ",
)  # fmt: skip
_LARK = (
    "start", ": ", "|", "(", ")", "*", "+", "?", '"x"', '""', "/a+/", "/(/", "\n", "\na: ", "\nb: ", "\nA: ", "A", "B", "~3",  # noqa: E501
    "{2,3}", "%json {}", '%json {"type":"string"}', "%ignore ", "%import common.INT", "%llguidance {}", "@x", "<|im_end|>",  # noqa: E501
    "<[1]>", "%regex {}", '[capture="x"]', "[stop=/a/]", "[max_tokens=2]", "&", "~", "-> y", "%lark {}", '"a".."z"', "start: ",  # noqa: E501
)  # fmt: skip


def _spliced(words: tuple[str, ...], first: str) -> Callable[[Choices, bytes], str]:
    def make(c: Choices, data: bytes) -> str:
        if data.startswith(first.encode()):
            return data.decode("utf-8", "replace")
        return first + " ".join(c.pick(words) if c.chance(95) else c.text(5) for _ in range(c.below(30) + 1))

    return make


def gbnf() -> Target:
    """GBNF grammars."""
    text = _spliced(_GBNF, "root ::= ")
    return _target(
        lambda c, data: Grammar.gbnf(text(c, data)),
        [b'root ::= ("a" | b)* "c"\nb ::= [0-9]{2,5}', bytes(range(256))],
    )


def lark() -> Target:
    """Lark grammars."""
    text = _spliced(_LARK, "start: ")
    return _target(
        lambda c, data: Grammar.lark(text(c, data)),
        [b'start: a | B\na: "x" B*\nB: /[0-9]+/', bytes(range(256))],
    )

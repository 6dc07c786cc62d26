"""Constraints without a model: schemas, expressions, Lark; masks; what is refused, and how fast."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import cache
from typing import Any

import numpy as np
import pytest
import synthetic_vocabs
import tiny_models
from hypothesis import given, settings
from hypothesis import strategies as st

from ggfw.chat.dialect import Dialect, Reasoning
from ggfw.constraints import AfterReasoning, Compiler, Grammar, GrammarConstraint, grammar_option
from ggfw.constraints.reasoning import after_reasoning
from ggfw.constraints.vocabulary import TokenTable
from ggfw.errors import InvalidRequest
from ggfw.sampling.constraint import MaskedConstraint
from ggfw.tokenizer import Tokenizer

BYTES = 3  # ids of bytes in the tiny vocabulary begin here
END = 2


@cache
def compiler() -> Compiler:
    return Compiler(Tokenizer.from_metadata(tiny_models.vocabulary()))


@cache
def wordy() -> Tokenizer:
    """A vocabulary with tokens of several characters, some of which cross the borders of JSON's tokens."""
    words = [
        '{"',
        '":',
        '": "',
        '",',
        "name",
        "red",
        "blue",
        "true",
        "12",
        "\n  ",
        "éé",
        "</think>",
        "think>x",
        "ab",
    ]
    return Tokenizer.from_metadata(
        synthetic_vocabs.bpe(words, user_defined=("<think>",), eos_token_id=0, eot_token_id=0)
    )


def feed(constraint: GrammarConstraint, text: str | bytes) -> bool:
    for byte in text.encode() if isinstance(text, str) else text:
        if not constraint.allows(BYTES + byte):
            return False
        constraint.accept(BYTES + byte)
    return True


def accepts(grammar: Grammar, text: str | bytes) -> bool:
    constraint = compiler().compile(grammar)
    return feed(constraint, text) and constraint.accepting


def valid(schema: Any, text: str) -> bool:
    return accepts(Grammar.json_schema(schema), text)


def refusal(grammar: Grammar) -> InvalidRequest:
    begun = time.process_time()
    with pytest.raises(InvalidRequest) as caught:
        compiler().compile(grammar)
    assert time.process_time() - begun < 2
    return caught.value


# -- JSON schemas ----------------------------------------------------------------------------------------------------


def test_references_resolve() -> None:
    schema = {
        "$defs": {
            "C": {"enum": ["red", "blue"]},
            "P": {
                "type": "object",
                "properties": {"c": {"$ref": "#/$defs/C"}},
                "required": ["c"],
                "additionalProperties": False,
            },
        },
        "type": "array",
        "items": {"$ref": "#/$defs/P"},
        "minItems": 1,
    }
    assert valid(schema, '[{"c":"red"}]') and valid(schema, '[{"c": "blue"}, {"c": "red"}]')
    for text in ('[{"c":"green"}]', '[{"c":{}}]', "[]"):
        assert not valid(schema, text), text
    tree = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["v"],
        "additionalProperties": False,
    }
    assert valid(tree, '{"v":1,"children":[{"v":2,"children":[{"v":3}]}]}')
    assert not valid(tree, '{"v":1,"children":[{"children":[]}]}')


def test_string_length_counts_characters() -> None:
    one = {"type": "string", "maxLength": 1}
    for text in ('"😀"', r'"\uD83D\uDE00"', r'"\n"', r'"\""', '""', r'"\u00e9"'):
        assert valid(one, text), text
    for text in ('"\t"', r'"\uD800"', r'"\q"', '"ab"', r'"\uDE00"', '"a'):
        assert not valid(one, text), text
    assert not valid({"type": "string", "minLength": 2}, '"😀"')
    assert valid({"type": "string", "minLength": 2}, '"😀é"')


@pytest.mark.parametrize("indent", [None, 2, 4, "\t"])
def test_usual_layouts_are_allowed(indent: Any) -> None:
    value = {"a": [1, {"b": None}], "c": "x", "d": {}}
    assert valid({"type": "object"}, json.dumps(value, indent=indent))
    assert valid({"type": "object"}, json.dumps(value, separators=(",", ":")))


def test_endless_space_is_not() -> None:
    constraint = compiler().compile(Grammar.json_object())
    n = next(n for n in range(1000) if not feed(constraint, b"{" if n == 0 else b" " if n < 2 else b"\n"))
    assert n < 30
    for text in (" {}", "{} ", "{}{}"):
        assert not valid({"type": "object"}, text)


@pytest.mark.parametrize(
    "keyword", ["if", "not", "uniqueItems", "contains", "dependentRequired", "propertyNames"]
)
def test_unsupported_keywords_are_named(keyword: str) -> None:
    error = refusal(Grammar.json_schema({"type": "object", keyword: {}}, "response_format"))
    assert f"'{keyword}'" in str(error) and error.param == "response_format"
    inside = refusal(Grammar.json_schema({"type": "object", "properties": {"a": {keyword: True}}}))
    assert f"'{keyword}'" in str(inside) and "$.properties.a" in str(inside)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "strin"}, "strin"),
        ({"type": "string", "format": "foo"}, "foo"),
        ({"type": "string", "pattern": "(?=a)a"}, "look-around"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"$ref": "https://example.org/schema"}, "example.org"),
        ({"$ref": "#"}, "accepts no text"),
        ({"type": "integer", "minimum": 5, "maximum": 2}, "minimum"),
        ({"oneOf": [{"type": "object"}, {"type": "object"}]}, "'oneOf'"),
        ({"type": "number", "multipleOf": 1_000_003}, "multipleOf"),
        (False, "accepts no text"),
        *(
            ({"type": "array", "items": {"type": "null"}, key: number}, "no number in JSON")
            for key in ("minItems", "multipleOf", "minProperties")
            for number in (float("inf"), float("-inf"), float("nan"))
        ),
        ({"multipleOf": 10**5000}, "300 digits"),
        ({"anyOf": [{"$ref": "#/anyOf/²"}]}, "²"),
        ({"anyOf": [{"$ref": "#/anyOf/11111111111111111111"}]}, "111"),
    ],
)
def test_impossible_schemas_are_refused(schema: Any, says: str) -> None:
    message = str(_schema_refusal(schema))
    assert says in message and "\n" not in message and len(message) < 400


def _schema_refusal(schema: Any) -> InvalidRequest:
    begun = time.perf_counter()
    with pytest.raises(InvalidRequest) as caught:
        compiler().compile(Grammar.json_schema(schema))
    assert time.perf_counter() - begun < 2
    return caught.value


def _nested(n: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(n):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def _chain(n: int, reference: str, **keys: str) -> dict[str, Any]:
    """Definitions that refer to each other in a row; ``{}`` in texts stands for their numbers."""
    links: dict[str, Any] = {}
    for i in range(n):
        own = {key: text.format(i) for key, text in keys.items()}
        links[f"d{i}"] = {"properties": {"a": {"$ref": reference.format(i + 1)}}, "required": ["a"], **own}
    links[f"d{n}"] = {"type": "string", **{key: text.format(n) for key, text in keys.items()}}
    return {"$defs": links, "$ref": reference.format(0)}


def test_depth_of_schemas_is_bounded() -> None:
    assert "60 objects deep" in str(_schema_refusal(_nested(2000)))
    assert "deep" in str(_schema_refusal("[" * 100_000))
    compiler().compile(Grammar.json_schema(_nested(60)))
    compiler().compile(Grammar.json_schema(_chain(100, "#/$defs/d{}")))


#: What would overflow the compiler's stack if it came so far; in a process of its own, which must not die.
_HOSTILE = """
import json, sys
sys.path[:0] = {path!r}
import test_constraints as t
cases = [
    t._chain(5000, "#/$defs/d{{}}"),
    t._chain(5000, "#/%24defs/d{{}}"),
    t._chain(5000, "#x{{}}", **{{"$anchor": "x{{}}"}}),
    t._chain(5000, "x{{}}", **{{"$id": "x{{}}"}}),
    {{"$id": "https://example.org/r", **t._chain(5000, "r#/$defs/d{{}}")}},
    {{"$schema": "http://json-schema.org/draft-04/schema#", **t._chain(5000, "#x{{}}", id="#x{{}}")}},
    {{"$schema": "http://json-schema.org/draft-07/schema#", **t._chain(5000, "#x{{}}", **{{"$id": "#x{{}}"}})}},
]
for schema in cases:
    print(t._schema_refusal(schema))
inline = "start: %json " + json.dumps(cases[0])
rules = "start: r0\\n" + "".join(f"r{{i}}: r{{i + 1}} \\"x\\"\\n" for i in range(50000)) + 'r50000: "a"'
terms = "start: R0\\n" + "".join(f"R{{i}}: R{{i + 1}} \\"x\\"\\n" for i in range(50000)) + 'R50000: "a"'
deep = "start: " + "(" * 60000 + '"a"' + ")" * 60000
for text in (inline, rules, terms, deep):
    print(t.refusal(t.Grammar.lark(text)))
print(t.refusal(t.Grammar.regex("(" * 60000 + "a" + ")" * 60000)))
print("alive")
"""


def test_hostile_grammars_do_not_kill_the_process() -> None:
    code = _HOSTILE.format(path=[p for p in sys.path if p.endswith("tests")] or ["tests"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "alive", done.stdout + done.stderr


def test_any_value_and_true() -> None:
    for schema in ({}, True):
        assert valid(schema, '{"a": [1, "x", null]}') and valid(schema, "3") and not valid(schema, "x")


def test_the_order_of_properties_is_kept() -> None:
    schema = {"properties": {"b": {"const": 1}, "a": {"const": 2}}, "required": ["a", "b"], "type": "object"}
    assert valid(schema, '{"b":1,"a":2}') and not valid(schema, '{"a":2,"b":1}')


# -- the others ------------------------------------------------------------------------------------------------------


def test_regular_expressions() -> None:
    assert accepts(Grammar.regex(r"[a-c]{2}/\d"), "ab/7") and not accepts(Grammar.regex(r"[a-c]{2}"), "abc")
    assert accepts(Grammar.regex("a|ab"), "ab")
    assert "unclosed group" in str(refusal(Grammar.regex("(a")))


def test_choices() -> None:
    options = ["a", "ab", 'x"\n/\\é', "yes/no"]
    for option in options:
        assert accepts(Grammar.choice(options), option), option
    assert not accepts(Grammar.choice(options), "x") and not accepts(Grammar.choice(options), "abc")
    for wrong in ([], "text", [1]):
        with pytest.raises(InvalidRequest, match="choice"):
            Grammar.choice(wrong)  # type: ignore[arg-type]


def test_lark() -> None:
    grammar = Grammar.lark('start: "a" tail\ntail: "x" | tail "y"\n')
    assert accepts(grammar, "axyy") and not accepts(grammar, "ayx")
    assert accepts(Grammar.lark('start: "n=" %json {"type": "integer"}'), "n=12")
    assert '"c"' in str(refusal(Grammar.lark('start: "a" c')))


def test_negated_expressions_do_not_let_control_tokens_in() -> None:
    constraint = compiler().compile(Grammar.lark('start: NOT\nNOT: ~/a+/ "b"?'))
    mask = constraint.mask()
    assert [constraint.allows(i) for i in range(mask.size)] == mask.tolist() and mask.sum() > 200


def test_kinds_are_told_apart() -> None:
    assert Grammar.detect('root ::= "a"').kind == "gbnf"
    assert Grammar.detect('# start: x\nroot ::= "start: "').kind == "gbnf"
    assert Grammar.detect('%llguidance {}\nstart: "a"').kind == "lark"
    assert Grammar.detect('// root ::= x\nstart : "a"').kind == "lark"
    with pytest.raises(InvalidRequest, match="neither"):
        Grammar.detect("hello")


def test_options() -> None:
    assert grammar_option() is None and grammar_option(json=False) is None
    assert grammar_option(json=True) == Grammar.json_object()
    assert grammar_option(schema={"type": "null"}) == grammar_option(schema='{"type": "null"}')
    assert grammar_option(regex="a").kind == "regex" and grammar_option(choice=["a"]).kind == "choice"  # type: ignore[union-attr]
    with pytest.raises(InvalidRequest, match="schema and regex"):
        grammar_option(schema={}, regex="a")
    for wrong in (5, "{", [1]):
        with pytest.raises(InvalidRequest, match="JSON schema"):
            grammar_option(schema=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        grammar_option(regex="")


# -- states ----------------------------------------------------------------------------------------------------------


def test_the_protocol() -> None:
    constraint = compiler().compile(Grammar.json_schema({"type": "integer"}))
    assert isinstance(constraint, MaskedConstraint)
    assert not constraint.accepting and not constraint.complete and constraint.failure is None
    assert not constraint.allows(END) and not constraint.allows(-1) and not constraint.allows(10**6)
    constraint.accept(BYTES + ord("x"))  # refused: nothing changes
    assert constraint.allows(BYTES + ord("1"))
    constraint.accept(BYTES + ord("1"))
    assert constraint.accepting and not constraint.complete and constraint.allows(END)
    constraint.accept(END)
    assert constraint.complete and not constraint.mask().any() and not constraint.allows(END)


def test_a_finished_grammar_allows_the_end_only() -> None:
    constraint = compiler().compile(Grammar.json_object())
    assert feed(constraint, b"{}") and constraint.complete
    assert set(np.flatnonzero(constraint.mask())) == set(constraint.table.eog_ids)
    assert all(constraint.allows(i) for i in constraint.table.eog_ids) and not constraint.allows(BYTES + 32)


def test_copies_are_independent_and_steps_can_be_taken_back() -> None:
    constraint = compiler().compile(Grammar.regex("ab*c"))
    assert feed(constraint, b"ab")
    other = constraint.copy()
    assert feed(other, b"c") and other.complete and not constraint.complete
    assert constraint.allowed_prefix([BYTES + ord(c) for c in "bbcx"]) == 3
    constraint.rollback(1)
    assert constraint.n_tokens == 1 and feed(constraint, b"c") and constraint.complete
    other.accept(END)
    other.rollback(1)
    assert other.complete and other.allows(END)


def test_compiled_grammars_are_remembered() -> None:
    made = Compiler(compiler()._tokenizer)
    first = made.compile(Grammar.json_schema({"type": "integer"}))
    feed(first, b"12")
    second = made.compile(Grammar.json_schema('{"type": "integer"}', param="other"))
    assert len(made._compiled) == 1 and second.n_tokens == 0 and not second.allows(END)
    for i in range(100):
        made.compile(Grammar.regex(f"a{{{i + 1}}}"))
    assert len(made._compiled) == 64
    assert TokenTable.of(made._tokenizer) is first.table


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "colour": {"enum": ["red", "blue"]},
        "n": {"type": "integer"},
    },
    "required": ["name", "colour", "n"],
    "additionalProperties": False,
}  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([SCHEMA, {"type": "object"}, None]))
def test_the_mask_is_what_may_be_asked(random: Any, schema: Any) -> None:
    """On a walk through random allowed tokens, mask, single questions, lead bytes and prefixes agree everywhere."""
    tokenizer = wordy()
    grammar = (
        Grammar.gbnf('root ::= [a-d]* "x" | "(" root ")"') if schema is None else Grammar.json_schema(schema)
    )
    constraint = Compiler(tokenizer).compile(grammar)
    for _ in range(30):
        if random.random() < 0.3:
            constraint.prepare()
        fresh = constraint.copy()
        mask = constraint.mask()
        assert mask.shape == (tokenizer.n_vocab,)
        assert [fresh.allows(i) for i in range(tokenizer.n_vocab)] == mask.tolist()
        lead = constraint.first_bytes()
        assert lead[0] and all(lead[constraint.first_byte(int(i))] for i in np.flatnonzero(mask))
        words = constraint.bitmask()
        assert all((words[i >> 5] >> (i & 31)) & 1 == mask[i] for i in range(tokenizer.n_vocab))
        allowed = np.flatnonzero(mask)
        if constraint.complete or not allowed.size:
            assert constraint.complete
            break
        constraint.accept(int(random.choice(list(allowed))))


def test_tokens_of_the_same_bytes_are_all_allowed() -> None:
    tokenizer = Tokenizer.from_metadata(synthetic_vocabs.spm(["a", "▁a", "b"]))
    constraint = Compiler(tokenizer).compile(Grammar.regex("ab"))
    same = {i for i in range(tokenizer.n_vocab) if not tokenizer.is_control(i) and tokenizer.piece(i) == b"a"}
    assert len(same) == 2 and set(np.flatnonzero(constraint.mask())) == same


def test_a_vocabulary_without_end_tokens() -> None:
    tokenizer = Tokenizer.from_metadata(synthetic_vocabs.bpe(control=()))
    tokenizer.eog_ids = frozenset()
    constraint = Compiler(tokenizer).compile(Grammar.choice(["a"]))
    constraint.accept(tokenizer.encode("a", add_special=False)[0])
    assert constraint.complete and not constraint.mask().any() and constraint.mask().size == tokenizer.n_vocab


def test_a_slow_mask_is_computed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    import ggfw.constraints.matcher as matcher

    constraint = compiler().compile(Grammar.json_object())
    constraint.prepare()
    assert constraint._job is None  # fast ones are not worth another thread
    monkeypatch.setattr(matcher, "SLOW_MASK", -1.0)
    constraint.prepare()
    assert constraint._job is not None
    assert set(np.flatnonzero(constraint.mask())) == {BYTES + ord("{")} and constraint._job is None
    constraint.prepare()
    assert constraint._job is None  # it is known already
    constraint.accept(BYTES + ord("{"))
    constraint.prepare()
    assert constraint.allows(BYTES + ord("}"))  # a question waits for the helper


# -- behind the reasoning --------------------------------------------------------------------------------------------


def _after(inside: bool, schema: Any = None) -> AfterReasoning:
    block = Reasoning("</think>", inside=inside, open="<think>")
    answer = Compiler(wordy()).compile(Grammar.json_schema(schema or {"type": "object"}))
    made = after_reasoning(answer, wordy(), block)
    assert isinstance(made, AfterReasoning) and isinstance(made, MaskedConstraint)
    return made


def _walk(constraint: AfterReasoning, ids: list[int]) -> None:
    for token in ids:
        assert constraint.allows(token), (token, wordy().piece(token))
        mask = constraint.mask()
        assert [constraint.allows(i) for i in range(wordy().n_vocab)] == mask.tolist()
        words = constraint.bitmask()
        assert all((words[i >> 5] >> (i & 31)) & 1 == mask[i] for i in range(mask.size))
        constraint.accept(token)


def test_reasoning_is_free_and_the_answer_is_not() -> None:
    tokenizer = wordy()
    encode = lambda text: tokenizer.encode(text, add_special=False)  # noqa: E731
    end = min(tokenizer.eog_ids)
    constraint = _after(inside=True)
    _walk(constraint, encode("anything, {even} <b> this </thin"))
    assert not constraint.allows(end) and not constraint.complete
    _walk(constraint, encode("k>"))
    assert (
        constraint.allows(encode("\n")[0])
        and not constraint.allows(encode("x")[0])
        and not constraint.allows(end)
    )
    other = constraint.copy()
    _walk(constraint, encode('\n\n{"a": 1}'))
    assert constraint.complete and constraint.allows(end) and not other.complete
    _walk(other, encode("\n{}"))
    assert other.complete


def test_no_token_runs_from_the_reasoning_into_the_answer() -> None:
    tokenizer = wordy()
    constraint = _after(inside=True)
    _walk(constraint, tokenizer.encode("hm </", add_special=False))
    runs_over = tokenizer.find("think>x")
    assert runs_over is not None and not constraint.allows(runs_over) and not constraint.mask()[runs_over]
    _walk(constraint, tokenizer.encode("x", add_special=False))
    assert constraint.allows(runs_over)  # no end of the block here


def test_a_block_that_the_model_may_open() -> None:
    tokenizer = wordy()
    opening = tokenizer.find("<think>")
    assert opening is not None
    direct, thinking = _after(inside=False), _after(inside=False)
    _walk(direct, tokenizer.encode("{}", add_special=False))
    assert direct.complete
    _walk(thinking, [opening, *tokenizer.encode("why? </think>\n{}", add_special=False)])
    assert thinking.complete
    answer = compiler().compile(Grammar.json_object())
    # No such token, no block, or an own constraint: nothing is wrapped.
    assert after_reasoning(answer, compiler()._tokenizer, Reasoning("</think>", False, "<think>")) is answer
    assert after_reasoning(answer, wordy(), None) is answer


def test_the_generic_dialect_knows_its_block() -> None:
    dialect = Dialect()
    assert dialect.reasoning("…<think>\n") == Reasoning("</think>", inside=True)
    assert dialect.reasoning("…<think>\n\n</think>\n\n") is None
    assert dialect.reasoning("…assistant\n") == Reasoning("</think>", inside=False, open="<think>")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}], "minItems": 2},
        {"anyOf": [{"allOf": [{"$ref": "#"}]}, {"type": "array", "items": {"$ref": "#"}, "minItems": 3}]},
        {
            "$defs": {
                "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "required": ["b"]},
                "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]},
            },
            "$ref": "#/$defs/a",
        },
    ],
)
def test_a_schema_that_demands_itself_is_refused(schema: dict[str, Any]) -> None:
    """No answer would ever satisfy it; every one would run to the end of its tokens."""
    with pytest.raises(InvalidRequest, match="leads? back to it"):
        Grammar.json_schema(schema)
    with pytest.raises(InvalidRequest, match="leads? back to it"):
        compiler().compile(Grammar.lark("start: %json " + json.dumps(schema)))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": {"$ref": "#"}, "minItems": 1},
        {"anyOf": [{"type": "array", "items": {"$ref": "#"}, "minItems": 1}, {"type": "null"}]},
        {
            "type": "object",
            "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            "required": ["a"],
        },
        {"const": {"$ref": "#"}},
    ],
)
def test_a_schema_that_may_end_is_taken(schema: dict[str, Any]) -> None:
    compiler().compile(Grammar.json_schema(schema))


def test_endless_schemas_are_found_in_time() -> None:
    """A thousand properties that all hang on the end of a chain."""
    n = 200
    links = {f"l{i}": {"$ref": f"#/$defs/l{i + 1}"} for i in range(n)}
    wide = {f"p{i}": {"$ref": "#/$defs/l0"} for i in range(1000)}
    schema: dict[str, Any] = {
        "$defs": {**links, f"l{n}": {"type": "null"}},
        "type": "object", "properties": wide, "required": list(wide),
    }  # fmt: skip
    begun = time.process_time()
    Grammar.json_schema(schema)
    schema["$defs"][f"l{n}"] = {"$ref": "#"}
    with pytest.raises(InvalidRequest):
        Grammar.json_schema(schema)
    many = {f"p{i}": {"type": "null"} for i in range(2000)}
    one = {"type": "object", "properties": many, "required": list(many)}
    Grammar.json_schema({"anyOf": [json.loads(json.dumps(one)) for _ in range(10)]})
    assert time.process_time() - begun < 2

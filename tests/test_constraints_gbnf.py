"""GBNF: what is accepted is what the grammar says, whatever its division into lexemes; hostile grammars are refused."""

from __future__ import annotations

import itertools
import re
import time
from functools import cache

import pytest
import tiny_models
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ggfw.constraints import Compiler, Grammar, GrammarConstraint
from ggfw.constraints.gbnf import to_lark
from ggfw.constraints.gbnf.nodes import Alt, Chars, Node, Ref, Repeat, Seq
from ggfw.constraints.gbnf.parse import parse
from ggfw.errors import InvalidRequest
from ggfw.tokenizer import Tokenizer

#: Ids of bytes in the tiny vocabulary begin here.
BYTES = 3


@cache
def compiler() -> Compiler:
    return Compiler(Tokenizer.from_metadata(tiny_models.vocabulary()))


def feed(constraint: GrammarConstraint, text: str | bytes) -> bool:
    """Walk through ``text`` byte by byte; False as soon as one is refused."""
    for byte in text.encode() if isinstance(text, str) else text:
        if not constraint.allows(BYTES + byte):
            return False
        constraint.accept(BYTES + byte)
    return True


def accepts(grammar: str, text: str | bytes) -> bool:
    constraint = compiler().compile(Grammar.gbnf(grammar))
    return feed(constraint, text) and constraint.accepting


def next_bytes(constraint: GrammarConstraint) -> set[int]:
    return {i - BYTES for i, allowed in enumerate(constraint.mask()) if allowed and BYTES <= i < BYTES + 256}


def refusal(grammar: str) -> str:
    begun = time.perf_counter()
    with pytest.raises(InvalidRequest) as caught:
        compiler().compile(Grammar.gbnf(grammar))
    assert time.perf_counter() - begun < 2
    assert caught.value.param == "grammar"
    return str(caught.value)


# -- a recogniser that tries everything ------------------------------------------------------------------------------


class Recogniser:
    """Which texts the rules accept, straight from their meaning: the set of places where a node may end."""

    def __init__(self, rules: dict[str, Node], text: str) -> None:
        self._rules, self._text = rules, text
        self._known: dict[tuple[Node, int], frozenset[int]] = {}

    def whole(self) -> bool:
        return len(self._text) in self.ends(Ref("root"), 0)

    def ends(self, node: Node, start: int) -> frozenset[int]:
        key = (node, start)
        if key not in self._known:
            self._known[key] = frozenset()  # a rule that comes back to itself here adds nothing
            self._known[key] = frozenset(self._find(node, start))
        return self._known[key]

    def _find(self, node: Node, start: int) -> set[int]:
        if isinstance(node, Ref):
            return set(self.ends(self._rules[node.name], start))
        if isinstance(node, Chars):
            inside = start < len(self._text) and any(a <= ord(self._text[start]) <= b for a, b in node.ranges)
            return {start + 1} if inside else set()
        if isinstance(node, Seq):
            at = {start}
            for item in node.items:
                at = {end for place in at for end in self.ends(item, place)}
            return at
        if isinstance(node, Alt):
            return {end for item in node.items for end in self.ends(item, start)}
        assert isinstance(node, Repeat)
        found, at = set(), {start}
        for n in range(len(self._text) + node.least + 2):
            if n >= node.least:
                found |= at
            if node.most is not None and n >= node.most:
                break
            at = {end for place in at for end in self.ends(node.item, place)}
        return found


TEXTS = ["".join(chars) for n in range(5) for chars in itertools.product("ab", repeat=n)]

LEAVES = st.sampled_from(['"a"', '"b"', '"ab"', '"ba"', '""', "[ab]", "[^a]", "[a]", "x", "y", "root", "."])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        several.map(" ".join),
        several.map(lambda parts: "(" + " | ".join(parts) + ")"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}"])).map(
            lambda p: f"({p[0]}){p[1]}"
        ),
    )


EXPRESSIONS = st.recursive(LEAVES, _grown, max_leaves=6)


@settings(max_examples=300, deadline=None)
@given(root=EXPRESSIONS, x=EXPRESSIONS, y=EXPRESSIONS)
def test_a_grammar_accepts_what_its_rules_say(root: str, x: str, y: str) -> None:
    grammar = f"root ::= {root}\nx ::= {x}\ny ::= {y}\n"
    try:
        compiler().compile(Grammar.gbnf(grammar))
    except InvalidRequest as error:
        assume("left-recursive" not in str(error) and "accepts no text" not in str(error))
        raise
    rules = parse(grammar, lambda _: None, "grammar")
    for text in TEXTS:
        assert accepts(grammar, text) == Recogniser(rules, text).whole(), (grammar, text)


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= ("a"*)*', ["", "aaa"], ["b"]),
        ('root ::= "x" ("" | "a")* "y"', ["xy", "xaay"], ["x", "xa", "xby"]),
        ('root ::= [a-z]* "x"', ["x", "abx", "xxx"], ["ab", ""]),
        # Recursive, and each way to end a lexeme matters.
        ('root ::= "(" root ")" | [a-z]* "x"', ["abx", "((xx))"], ["(ab)", "(x"]),
        ('root ::= "(" root ")" | "a" t | "ab" "d"\nt ::= "bc"', ["abc", "(abd)"], ["ab", "abcd"]),
        ('root ::= "[" root "]" | w ("," w)* \nw ::= [a-z]+ " "*', ["a,b", "[a ,b ]"], ["a,", "[a"]),
        ('root ::= "a" {2} | "b"{1,} | "c"{0,1} "d"', ["aa", "bbb", "d", "cd"], ["a", "ccd"]),
        ('root ::= # a comment\n  "a" |\n  "b" # another\n', ["a", "b"], ["ab"]),
        ('root ::= "a"\n  | "b"\n', ["a", "b"], ["ab"]),
        (r'root ::= "\x41\u00e9\U0001F600\"\\\n\t"', ['Aé😀"\\\n\t'], ["A"]),
        (r"root ::= [^\n\]a-c-]+", ["xyz"], ["a", "]", "-", "x\n"]),
        ("root ::= .", ["a", "é", "😀", "\n"], ["", "ab"]),
        ('root ::= "a" x\nx ::= "" | root', ["a", "aaa"], ["", "b"]),
        ('root ::= ((x)*)*\nx ::= "ab"', ["", "abab"], ["aba"]),
        ('root ::= "a" | loop\nloop ::= "b" loop', ["a"], ["b", "bb"]),
    ],
)  # fmt: skip
def test_examples(grammar: str, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


def test_an_endless_branch_is_not_offered() -> None:
    constraint = compiler().compile(Grammar.gbnf('root ::= "a" | loop\nloop ::= "b" loop'))
    assert next_bytes(constraint) == {ord("a")}


JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""


def test_json_written_in_gbnf() -> None:
    for good in ('{"a": [1, -2.5e3, {"b": null}], "c": "x\\n"}', "{}", '{\n  "a": true\n}'):
        assert accepts(JSON, good), good
    for bad in ("[]", '{"a" 1}', '{"a": 01}', '{"a": "\t"}', '{"a": 1,}'):
        assert not accepts(JSON, bad), bad


# -- character ranges byte by byte -----------------------------------------------------------------------------------


def test_characters_of_several_bytes() -> None:
    constraint = compiler().compile(Grammar.gbnf("root ::= [😀-🙏]+"))
    assert next_bytes(constraint) == {0xF0} and not constraint.accepting
    for byte, following in ((0xF0, {0x9F}), (0x9F, {0x98, 0x99})):
        constraint.accept(BYTES + byte)
        assert next_bytes(constraint) == following and not constraint.accepting
    other = constraint.copy()
    constraint.accept(BYTES + 0x98)
    assert next_bytes(constraint) == set(range(0x80, 0xC0))
    other.accept(BYTES + 0x99)
    assert next_bytes(other) == set(range(0x80, 0x90))
    assert not feed(compiler().compile(Grammar.gbnf("root ::= [😀-🙏]+")), b"\xf0\x9f\xa4")
    for c in (constraint, other):
        assert not any(c.allows(i) for i in c.table.eog_ids)
    constraint.accept(BYTES + 0x80)
    assert constraint.accepting and all(constraint.allows(i) for i in constraint.table.eog_ids)
    assert accepts(r'root ::= "\U0001F600"', "😀")


# -- tokens ----------------------------------------------------------------------------------------------------------


def test_token_elements() -> None:
    start, end = 259, 260
    constraint = compiler().compile(Grammar.gbnf(f'root ::= "a" <|im_start|> !<[{end}]> | "b" <[{start}]>'))
    assert feed(constraint, b"a")
    assert [i for i, allowed in enumerate(constraint.mask()) if allowed] == [start]
    constraint.accept(start)
    mask = constraint.mask()
    assert mask[BYTES + ord("z")] and not mask[end]
    constraint.accept(BYTES + ord("z"))
    assert constraint.complete
    assert "not a single token" in refusal('root ::= "a" <nothing at all>')


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= e\ne ::= [0-9]+ | e "+" e',
        'root ::= a "x"\na ::= b | ""\nb ::= root',
        'root ::= o root "x" | "y"\no ::= "a"?',
        'root ::= ("" | "a"*) root "b" | "c"',
    ],
)
def test_left_recursion_is_refused(grammar: str) -> None:
    assert "left-recursive" in refusal(grammar)


def test_depth_is_bounded() -> None:
    message = refusal("root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000)
    assert "60000 deep" in message and "64" in message
    assert accepts("root ::= " + "(" * 60 + '"a"' + ")" * 60, "a")
    links = "".join(f"r{i} ::= r{i + 1}\n" for i in range(5000))
    assert accepts(f'root ::= r0\n{links}r5000 ::= "a"', "a")  # other names of the same rule are no depth
    links = "".join(f'r{i} ::= r{i + 1} "x"\n' for i in range(5000))
    assert "256 deep" in refusal(f'root ::= r0\n{links}r5000 ::= "a"')
    links = "".join(f'r{i} ::= "(" r{i + 1} ")" | root "x"\n' for i in range(5000))
    assert "256 deep" in refusal(f'root ::= "-" r0\n{links}r5000 ::= "a"')
    refusal('root ::= "a"' + "*" * 60_000)


def test_a_grammar_of_exponential_length_compiles() -> None:
    doubled = "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(30))
    begun = time.perf_counter()
    constraint = compiler().compile(Grammar.gbnf(f'root ::= r0\n{doubled}r30 ::= "a"'))
    assert feed(constraint, b"a" * 50) and not constraint.accepting
    assert time.perf_counter() - begun < 2


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ("start ::= a", "no rule named 'root'"),
        ("root ::= missing", "'missing'"),
        ('root ::= "a" root', "accepts no text"),
        ("root ::= []", "accepts no text"),
        ('root ::= "a', "line 1"),
        ('root ::= "a"\nroot ::= "b"', "twice"),
        ('root ::= "a" )', ""),
        ('root ::= ("a"', ")"),
        ("root ::= * a", "repeat"),
        ("root ::= [z-a]", "empty"),
        (r'root ::= "\q"', "escape"),
        (r'root ::= "\U00110000"', "no character"),
        ('root ::= "a"{3,2}', "wrong way round"),
        ('root ::= "a"{99999999}', "too often"),
        ('root = "a"', "line 1"),
    ],
)
def test_malformed_grammars_are_refused(grammar: str, says: str) -> None:
    assert says in refusal(grammar)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='ro t:=|()[]*+?{},."\\<>!#\nab0-^', max_size=60))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    try:
        compiler().compile(Grammar.gbnf("root ::= " + text + "\n"))
    except InvalidRequest:
        pass


def test_compilation_is_fast() -> None:
    for grammar in ('root ::= ("a"*)* "1"', 'root ::= "x" ("" | "a")* "y" "1"', JSON + "# 1"):
        compiler().compile(Grammar.gbnf(grammar + " "))
        begun = time.perf_counter()
        compiler().compile(Grammar.gbnf(grammar))
        assert time.perf_counter() - begun < 0.1


def test_the_division_keeps_strings_whole() -> None:
    """A grammar of JSON must not fall apart into characters, for that would make masks slow."""
    lark = to_lark(JSON, lambda _: None)
    assert re.search(r"T\d+: /.x\{22\}/ .*\]\*?.*\* */.*x\{22\}/|T\d+: .*x\{22\}.*x\{22\}", lark), lark

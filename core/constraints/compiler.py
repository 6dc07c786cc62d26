"""Grammars -> constraints: compiled once per content, copied for each answer."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ggfw.arguments import instance
from ggfw.constraints.gbnf import to_lark
from ggfw.constraints.grammar import Grammar
from ggfw.constraints.limits import MAX_PROPERTIES, check_lark, check_size
from ggfw.constraints.matcher import GrammarConstraint, in_words
from ggfw.constraints.reasoning import single_token
from ggfw.constraints.vocabulary import TokenTable
from ggfw.errors import InvalidRequest

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from ggfw.tokenizer import Tokenizer

#: Compiled grammars that a compiler remembers: so many, and of so many bytes. The last one is remembered in any case,
#: for the choices of a request have it in common.
CACHED = 64
CACHED_BYTES = 64 << 20
#: White space between JSON tokens is what llama.cpp allows: nothing, one blank, or one or two line breaks and an
#: indentation. Small models fall into endless runs where any is allowed.
JSON_SPACE = r"\x20|\n{1,2}[\x20\t]{0,20}"
#: ``\uXXXX`` stands for any character; surrogate pairs count as one, lone surrogates are refused.
JSON_OPTIONS = {"json_allow_general_unicode_escapes": True, "whitespace_pattern": JSON_SPACE}
#: What building a lexer may cost: about half a second.
LEXER_FUEL = 500_000
#: Ways to go on that one place of a text may have; each optional property of an object is about four.
PARSER_ITEMS = 5 * MAX_PROPERTIES
#: Every tokenization of an allowed text is allowed: the mask is what it says, and not the tokens that llguidance would
#: choose where the text is certain.
NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
#: llguidance does not say what a compiled grammar takes. Measured with schemas of thousands of properties, lists of
#: 30,000 words, numbers that are multiples and nested repetitions: up to 20 bytes for each character, and as much as
#: can be built at 70 MiB a second.
_BYTES_AT_LEAST, _BYTES_PER_CHARACTER, _BYTES_PER_SECOND = 256 << 10, 20, 70 << 20
_PLACE = re.compile(r"^at \d+\(\d+\): ")
_UNIMPLEMENTED = "Unimplemented keys: ["


class Compiler:
    """Compiles grammars for one vocabulary. Thread-safe.

    The vocabulary's prefix tree is built with the first grammar.

    Args:
        tokenizer: the vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiled: OrderedDict[Grammar, tuple[GrammarConstraint, int]] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar) -> GrammarConstraint:
        """A fresh constraint for one answer.

        Raises:
            InvalidRequest: the grammar is malformed, uses what is not supported (named), exceeds a bound, or
                accepts no text at all; ``param`` is the grammar's.
        """
        instance("grammar", grammar, Grammar, "a ggfw.constraints.Grammar")
        with self._lock:
            if grammar in self._compiled:
                self._compiled.move_to_end(grammar)
                return self._compiled[grammar][0].copy()
            begin = time.thread_time()
            made = self._make(grammar)
            seconds = time.thread_time() - begin
            n_bytes = int(
                _BYTES_AT_LEAST + _BYTES_PER_CHARACTER * len(grammar.text) + _BYTES_PER_SECOND * seconds
            )
            self._compiled[grammar] = made, n_bytes
            while len(self._compiled) > 1 and (
                len(self._compiled) > CACHED or self.held_bytes > CACHED_BYTES
            ):
                self._compiled.popitem(last=False)
            return made.copy()

    @property
    def held_bytes(self) -> int:
        """What the remembered grammars take, estimated."""
        return sum(n_bytes for _, n_bytes in self._compiled.values())

    def _make(self, grammar: Grammar) -> GrammarConstraint:
        table = TokenTable.of(self._tokenizer)
        constraint = GrammarConstraint(table, self._matcher(grammar, table))
        # The first mask also fills the lexer's cache, which all copies share.
        if not constraint.mask().any() and not constraint.accepting:
            why = constraint.failure
            raise InvalidRequest(
                f"the {_NAMES[grammar.kind]} accepts no text" + (f": {why}" if why else ""), grammar.param
            )
        return constraint

    def _matcher(self, grammar: Grammar, table: TokenTable) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        check_size(grammar.text, _NAMES[grammar.kind], grammar.param)
        limits = LLParserLimits(
            verbose_errors=False, initial_lexer_fuel=LEXER_FUEL, max_items_in_row=PARSER_ITEMS
        )
        matcher = LLMatcher(table.ll, self._lark(grammar) + NO_FORCING, log_level=0, limits=limits)
        if matcher.is_error():
            raise InvalidRequest(explained(grammar, matcher.get_error()), grammar.param)
        return matcher

    def _lark(self, grammar: Grammar) -> str:
        """The grammar in llguidance's Lark dialect, its depth checked."""
        text, param = grammar.text, grammar.param
        if grammar.kind == "json_schema":
            schema = json.loads(text)
            if schema is False:
                raise InvalidRequest("the JSON schema is false, which accepts no text", param)
            schema = {} if schema is True else schema
            return "start: %json " + json.dumps({**schema, "x-guidance": JSON_OPTIONS}, ensure_ascii=False)
        if grammar.kind == "regex":
            return _from_regex(text)
        if grammar.kind == "choice":
            # One expression: as lexemes of their own, which are matched greedily, "a" would hide in "ab".
            return _from_regex("|".join(map(_escaped, json.loads(text))))
        if grammar.kind == "gbnf":
            text = to_lark(text, self._token, param)
        check_lark(text, param)
        return text

    def _token(self, text: str) -> int | None:
        return single_token(self._tokenizer, text)


_NAMES = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "lark": "Lark grammar",
    "gbnf": "GBNF grammar",
    "choice": "list of choices",
}


def _from_regex(pattern: str) -> str:
    from llguidance import LLMatcher

    source = json.loads(LLMatcher.grammar_from_regex(pattern))
    return str(source["grammars"][0]["lark_grammar"])


def _escaped(text: str) -> str:
    """A regular expression (Rust's syntax) for exactly ``text``."""
    return "".join(c if c.isalnum() else f"\\x{{{ord(c):X}}}" for c in text)


def explained(grammar: Grammar, error: str) -> str:
    """One sentence about why llguidance refused."""
    name = _NAMES[grammar.kind]
    if in_words(error) != error:
        return f"the {name} accepts no text: {in_words(error)}"
    error = error.replace("failed to compile JSON schema: ", "")
    if grammar.kind in ("json_schema", "regex", "choice"):  # places in the Lark text around it say nothing
        error = _PLACE.sub("", error)
    # No regular expression: the error may quote a megabyte of the schema that repeats this a thousand times.
    _, said, listed = error.partition(_UNIMPLEMENTED)
    listed, closed, _ = listed.partition("]")
    if said and closed:
        keywords = [key.strip().strip('"') for key in listed[:4096].split(",")[:20]]
        # A Lark grammar may hold several schemas, those of tools for instance; which one it is llguidance does not say.
        schema = json.loads(grammar.text) if grammar.kind == "json_schema" else None
        places = [f"{key!r}{_place(schema, key)}" for key in keywords]
        plural = "s" if len(places) > 1 else ""
        return (
            f"the {name} uses the keyword{plural} {', '.join(places)}, which is not supported; leave it out"
        )
    if grammar.kind == "json_schema" and error.startswith("oneOf"):
        where = _place(json.loads(grammar.text), "oneOf")
        return (
            f"the {name} uses the keyword 'oneOf'{where} with alternatives that may hold at the same time, which is "
            "not supported; use 'anyOf', or give the alternatives a property with different constants"
        )
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    if grammar.kind == "json_schema" and len(lines) > 1 and lines[0].startswith("regex parse error"):
        name += f"'s pattern {lines[1][:80]!r}{_place(json.loads(grammar.text), 'pattern', lines[1])}"
    what = next(
        (line.removeprefix("error: ") for line in lines if line.startswith("error:")),
        lines[0] if lines else "",
    )
    return f"the {name} cannot be used: {what[:300]}"


def _place(schema: Any, keyword: str, value_is: str | None = None) -> str:
    """Where ``keyword`` stands in the schema, perhaps with a certain value, for a message; level by level."""
    level: list[tuple[str, Any]] = [("$", schema)]
    while level:
        below: list[tuple[str, Any]] = []
        for path, value in level:
            if isinstance(value, Mapping):
                if keyword in value and value_is in (None, value[keyword]):
                    return "" if path == "$" else f" (at {path})"
                below += [(f"{path}.{key}", one) for key, one in value.items()]
            elif isinstance(value, list):
                below += [(f"{path}[{i}]", one) for i, one in enumerate(value)]
        level = below
    return ""

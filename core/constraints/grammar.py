"""What an answer must look like, as data: a kind and its text. Compiled by :class:`ggfw.constraints.Compiler`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any, Literal

from ggfw.constraints.limits import check_schema, check_size
from ggfw.errors import InvalidRequest
from ggfw.records import dataclass

Kind = Literal["json_schema", "regex", "lark", "gbnf", "choice"]

#: Texts to choose from; compiling 50,000 takes 80 MiB.
MAX_CHOICES = 20_000
#: Characters of a regular expression; compiling a million takes 70 MiB.
MAX_REGEX = 1 << 19
#: How llguidance's Lark dialect gives itself away: a ``start`` rule or one of its directives at the head of a line.
#: White space is told so that no run of it can be read in two ways: texts of clients must not take quadratic time.
_LARK = re.compile(r"^[ \t]*(?:%\w+\b|\??start\s*(?:\[[^\]\n]*\]\s*)?:(?!:=))", re.MULTILINE)
_GBNF = re.compile(r"^[ \t]*[\w-]+\s*::=", re.MULTILINE)


@dataclass(frozen=True)
class Grammar:
    """A constraint's source, hashable, so that compiled grammars are found again by content.

    Use the constructors; they check what can be checked without a vocabulary.

    Args:
        kind: what ``text`` is.
        text: the grammar; schemas and choices as JSON.
        param: the request parameter it came from, for error messages; not part of its identity.
    """

    kind: Kind
    text: str
    param: str = "grammar"

    def __hash__(self) -> int:
        return hash((self.kind, self.text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grammar) and (self.kind, self.text) == (other.kind, other.text)

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str, param: str = "schema") -> Grammar:
        """JSON that satisfies ``schema`` (a mapping, ``True``, or the schema's JSON text).

        The order of ``properties`` is kept: answers have them in that order.

        Raises:
            InvalidRequest: not a schema, or nested too deeply.
        """
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
                raise InvalidRequest(f"the JSON schema is not valid JSON: {why}", param) from None
        if not isinstance(schema, Mapping | bool):
            raise InvalidRequest(f"a JSON schema is an object, not {type(schema).__name__}", param)
        try:
            text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            check_schema(schema, param)  # says it better, where it sees the reason
            raise InvalidRequest(f"the JSON schema cannot be written as JSON: {error}", param) from None
        check_size(text, "JSON schema", param)  # before anything walks over it
        check_schema(schema, param)
        return cls("json_schema", text, param)

    @classmethod
    def json_object(cls, param: str = "json") -> Grammar:
        """Any JSON object."""
        return cls("json_schema", '{"type": "object"}', param)

    @classmethod
    def regex(cls, pattern: str, param: str = "regex") -> Grammar:
        """A regular expression (Rust's syntax, no look-around) for the whole answer, of `MAX_REGEX` characters."""
        pattern = _text(pattern, param)
        if len(pattern) > MAX_REGEX:
            raise InvalidRequest(
                f"{param} has {len(pattern)} characters; at most {MAX_REGEX} are allowed", param
            )
        return cls("regex", pattern, param)

    @classmethod
    def lark(cls, text: str, param: str = "grammar") -> Grammar:
        """A grammar in llguidance's Lark dialect; its first symbol is ``start``."""
        return cls("lark", _text(text, param), param)

    @classmethod
    def gbnf(cls, text: str, param: str = "grammar") -> Grammar:
        """A grammar in llama.cpp's GBNF; its first symbol is ``root``."""
        return cls("gbnf", _text(text, param), param)

    @classmethod
    def choice(cls, options: Sequence[str], param: str = "choice") -> Grammar:
        """One of several texts, :data:`MAX_CHOICES` at most.

        Raises:
            InvalidRequest: not a non-empty list of texts, or too long a one.
        """
        listed = isinstance(options, Sequence | Set) and not isinstance(options, str)
        if not listed or not options or not all(isinstance(o, str) for o in options):
            raise InvalidRequest(f"{param} must be a non-empty list of texts", param)
        if len(options) > MAX_CHOICES:
            raise InvalidRequest(
                f"{param} has {len(options)} texts; at most {MAX_CHOICES} may be chosen from", param
            )
        return cls("choice", json.dumps(list(options), ensure_ascii=False), param)

    @classmethod
    def detect(cls, text: str, param: str = "grammar") -> Grammar:
        """GBNF or Lark, by the look of it: GBNF writes ``::=``, Lark writes ``start:``.

        Raises:
            InvalidRequest: it looks like neither.
        """
        text = _text(text, param)
        if _LARK.search(text):
            return cls.lark(text, param)
        if _GBNF.search(text):
            return cls.gbnf(text, param)
        raise InvalidRequest(
            f"{param} is neither GBNF (rules like root ::= ...) nor Lark (rules like start: ...)", param
        )


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidRequest(f"{param} must be a non-empty text", param)
    return value

"""The constraint among the options of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ggfw.constraints.grammar import Grammar
from ggfw.errors import InvalidRequest


def grammar_option(
    schema: Mapping[str, Any] | bool | str | Grammar | None = None,
    grammar: str | Grammar | None = None,
    regex: str | None = None,
    json: bool = False,
    choice: Sequence[str] | None = None,
) -> Grammar | None:
    """The grammar that the options of a request ask for, or None.

    Args:
        schema: a JSON schema, or its text.
        grammar: GBNF or Lark, told apart by their look, or a made grammar.
        regex: a regular expression for the whole answer.
        json: any JSON object.
        choice: the texts to choose from.

    Raises:
        InvalidRequest: more than one of them is given, or it is malformed.
    """
    given: dict[str, Any] = {"schema": schema, "grammar": grammar, "regex": regex, "choice": choice}
    names = [name for name, value in given.items() if value is not None] + ["json"] * bool(json)
    if len(names) > 1:
        raise InvalidRequest(f"{' and '.join(names)} cannot be combined; give one of them", names[1])
    if not names:
        return None
    name = names[0]
    if name == "json":
        return Grammar.json_object()
    value = given[name]
    if isinstance(value, Grammar):
        return value
    if name == "schema":
        return Grammar.json_schema(value)
    if name == "grammar":
        return Grammar.detect(value)
    return Grammar.regex(value) if name == "regex" else Grammar.choice(value)

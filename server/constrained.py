"""The form of the answer in request bodies: OpenAI's ``response_format``, llama-server's and vLLM's fields."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from ggfw.constraints import Grammar, grammar_option
from ggfw.errors import InvalidRequest

_FORMATS = "text, json_object or json_schema"


class ConstraintFields(BaseModel):
    """The fields; None = not given."""

    model_config = ConfigDict(strict=True)

    response_format: dict[str, Any] | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | bool | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None

    def answer_grammar(self) -> Grammar | None:
        """The grammar of the answer, or None when its form is free.

        Raises:
            InvalidRequest: an unknown kind of format, a missing or malformed schema, or more than one constraint.
        """
        found: list[Grammar] = []
        if self.response_format is not None:
            found += _response_format(self.response_format)
        if self.structured_outputs is not None:
            found += _structured_outputs(self.structured_outputs)
        if self.grammar:
            found.append(Grammar.detect(self.grammar, "grammar"))
        if self.json_schema is not None:
            found.append(Grammar.json_schema(self.json_schema, "json_schema"))
        if self.guided_json is not None:
            found.append(Grammar.json_schema(self.guided_json, "guided_json"))
        if self.guided_regex is not None:
            found.append(Grammar.regex(self.guided_regex, "guided_regex"))
        if self.guided_choice is not None:
            found.append(Grammar.choice(self.guided_choice, "guided_choice"))
        if self.guided_grammar is not None:
            found.append(Grammar.detect(self.guided_grammar, "guided_grammar"))
        return one_of(*found)


def one_of(*given: Grammar | None) -> Grammar | None:
    """The only grammar among those that were given, or None.

    Raises:
        InvalidRequest: more than one.
    """
    found = [grammar for grammar in given if grammar is not None]
    if len(found) > 1:
        names = " and ".join(grammar.param for grammar in found)
        raise InvalidRequest(f"{names} cannot be combined; give one of them", found[1].param)
    return found[0] if found else None


def _response_format(given: dict[str, Any]) -> list[Grammar]:
    """OpenAI's form, with the schema in ``json_schema.schema``, and llama-server's, with ``schema`` beside ``type``."""
    param = "response_format"
    kind = given.get("type")
    if kind == "text":
        return []
    if kind == "json_object":
        schema = given.get("schema")
        return [Grammar.json_object(param) if schema is None else Grammar.json_schema(_schema(schema), param)]
    if kind == "json_schema":
        wrapper = given.get("json_schema")
        schema = wrapper.get("schema") if isinstance(wrapper, dict) else None
        if schema is None:
            schema = given.get("schema")
        if schema is None:
            raise InvalidRequest(
                "response_format of type json_schema has no schema; give it as json_schema.schema", param
            )
        return [Grammar.json_schema(_schema(schema), param)]
    if kind is None:
        raise InvalidRequest(f"response_format has no type; it must be {_FORMATS}", param)
    raise InvalidRequest(f"response_format of type {kind!r} is not supported; use {_FORMATS}", param)


def _schema(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest("the schema of response_format must be an object", "response_format")
    return value


def _structured_outputs(given: dict[str, Any]) -> list[Grammar]:
    """vLLM's form: one of json, regex, choice, grammar, json_object."""
    param = "structured_outputs"
    options = {name: value for name, value in given.items() if value is not None and value is not False}
    unknown = options.keys() - {"json", "regex", "choice", "grammar", "json_object"}
    if unknown:
        raise InvalidRequest(
            f"structured_outputs has {min(unknown)!r}; only json, json_object, regex, choice and grammar are supported",
            param,
        )
    try:
        named = grammar_option(
            schema=options.get("json"),
            regex=options.get("regex"),
            choice=options.get("choice"),
            grammar=options.get("grammar"),
            json=bool(options.get("json_object")),
        )
    except InvalidRequest as error:
        raise InvalidRequest(f"{param}: {error}", param) from None
    return [] if named is None else [Grammar(named.kind, named.text, param)]

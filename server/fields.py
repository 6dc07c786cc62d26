"""What request bodies of several families have in common. Unknown fields are ignored, known ones are honoured or
refused by name, never dropped."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator

from ggfw.errors import InvalidRequest
from ggfw.request import plugin_parameters

Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Unsigned = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: Lists whose first wrong element ends the check: else each one would be complained of.
Texts = Annotated[list[str], Field(fail_fast=True)]
Integers = Annotated[list[int], Field(fail_fast=True)]
#: More variables of a chat template.
TemplateArgs = Annotated[dict[str, Any], Field(max_length=1000)]

_PARTS = {
    "type": "array",
    "items": {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}},
}

#: A conversation. Its messages are checked where all families' are; this tells readers of the document what they are.
Messages = Annotated[
    list[Any],
    WithJsonSchema(
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["role", "content"],
                "properties": {
                    "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
                    "content": {"anyOf": [{"type": "string"}, _PARTS]},
                    "tool_call_id": {"type": "string"},
                    "tool_calls": {"type": "array", "items": {"type": "object"}},
                },
            },
        }
    ),
]

#: Tools in OpenAI's form.
ToolList = Annotated[
    list[Any],
    WithJsonSchema(
        {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "function"],
                "properties": {
                    "type": {"const": "function"},
                    "function": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string", "minLength": 1},
                            "description": {"type": "string"},
                            "parameters": {"type": "object"},
                            "strict": {"type": "boolean"},
                        },
                    },
                },
            },
        }
    ),
]


#: What the document says of fields that are checked and change nothing.
NO_EFFECT = "taken and checked, without effect on this server"
#: Fields of clients that say who asks, or how somebody else's service is to store, bill or speed up; see NO_EFFECT.
TextHint = Annotated[str | None, Field(description=NO_EFFECT)]
NumberHint = Annotated[int | None, Field(description=NO_EFFECT)]
FlagHint = Annotated[bool | None, Field(description=NO_EFFECT)]
ObjectHint = Annotated[dict[str, Any] | None, Field(description=NO_EFFECT)]


class Body(BaseModel):
    """Base of all bodies: strict types (``"5"`` is no number), unknown fields ignored.

    Attributes:
        renamed: names that errors use -> what this family calls them.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    renamed: ClassVar[dict[str, str]] = {}

    def names(self) -> dict[str, str]:
        """``renamed``, as this body used the names."""
        return {"penalty_last_n": "repeat_last_n", **self.renamed}


class SamplingFields(Body):
    """Sampling parameters that all endpoints share; None = not given. Ranges are checked by the library.

    Fields that nobody knows are ignored, those that plugins' sampler stages read are not.
    """

    model_config = ConfigDict(strict=True, extra="allow")

    temperature: Unsigned | None = None
    temp: Unsigned | None = None
    top_p: Share | None = None
    top_k: int | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    seed: int | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repeat_penalty: Unsigned | None = None
    repetition_penalty: Unsigned | None = None
    repeat_last_n: int | None = None
    logit_bias: (
        dict[str, float] | Annotated[list[tuple[int | str, float | bool]], Field(fail_fast=True)] | None
    ) = None
    samplers: Texts | str | None = None
    sampling_profile: str | None = None
    min_keep: int | None = None
    min_tokens: int | None = None
    top_n_sigma: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: Texts | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    adaptive_target: float | None = None
    adaptive_decay: float | None = None
    tfs_z: float | None = None
    penalize_newline: bool | None = None
    penalize_nl: bool | None = None
    stop_token_ids: Integers | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    include_stop_str_in_output: bool | None = None
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool | None = None

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        """llama-server's form: [[id or text, bias], ...], where false suppresses the token."""
        if isinstance(value, dict):
            wrong = next((k for k, bias in value.items() if type(bias) not in (int, float)), None)
            if wrong is not None:
                raise ValueError(f"the bias of token {wrong[:40]} must be a number")
        if not isinstance(value, list):
            return value
        for pair in value:
            if not (isinstance(pair, list) and len(pair) == 2 and _is_token(pair[0])):
                raise ValueError("a list must hold pairs of a token id, or a text, and a number or false")
            if pair[1] is not False and type(pair[1]) not in (int, float):
                raise ValueError(f"the bias of token {pair[0]!r:.40} must be a number or false")
        return [(token, -math.inf if bias is False else float(bias)) for token, bias in value]

    @field_validator("logit_bias")
    @classmethod
    def _token_ids(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for key, bias in value.items():
                if not key.isascii() or not key.isdigit():
                    raise ValueError(f"{key!r} is not a token id")
                if not -100 <= bias <= 100:
                    raise ValueError(f"the bias of token {key} must be between -100 and 100")
        return value

    def sampling(self) -> dict[str, Any]:
        """What was given, by names :func:`ggfw.request.resolve_params` knows."""
        self._refuse_what_is_not_done()
        given = self.model_dump(include=set(SamplingFields.model_fields) - _UNDONE.keys(), exclude_none=True)
        if self.logit_bias is not None:
            given["logit_bias"] = self._biases(self.logit_bias)
        if self.model_extra:
            known = plugin_parameters()
            given |= {k: v for k, v in self.model_extra.items() if k in known and v is not None}
        return given

    @staticmethod
    def _biases(given: Any) -> dict[int | str, float]:
        """Token ids, and of llama-server's form also texts, which are tokens only when the model is known."""
        if isinstance(given, dict):
            return {int(k): v for k, v in given.items()}
        out: dict[int | str, float] = {}
        for token, bias in given:
            out[token] = out.get(token, 0.0) + bias
        return out

    def _refuse_what_is_not_done(self) -> None:
        """Refuse known fields that ask for something else than what is done without them.

        Raises:
            InvalidRequest: naming the first.
        """
        for name, (harmless, hint) in _UNDONE.items():
            value = getattr(self, name)
            if value is not None and value != harmless:
                raise InvalidRequest(f"{name} is not supported by this server; {hint}", name)


def _is_token(value: Any) -> bool:
    return (type(value) is int and value >= 0) or (isinstance(value, str) and bool(value))


#: Sampling fields of other servers that are not done here -> (the value that asks for nothing, what to do instead).
_UNDONE: dict[str, tuple[Any, str]] = {
    "tfs_z": (1.0, "use min_p"),
    "penalize_newline": (True, "penalties are of all tokens; use logit_bias"),
    "penalize_nl": (True, "penalties are of all tokens; use logit_bias"),
    "stop_token_ids": ([], "give the texts of these tokens as stop"),
    "use_beam_search": (False, "ask for several choices with n"),
    "length_penalty": (1.0, "limit the answer with max_tokens"),
    "include_stop_str_in_output": (False, "the answer ends before the stop string"),
    "truncate_prompt_tokens": (None, "nothing is cut silently; send a shorter prompt"),
    "skip_special_tokens": (True, "control tokens are never part of the text"),
}


class StreamFields(Body):
    """How an answer is sent; None = not given."""

    stream: bool | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None


class ReasoningFields(Body):
    """How much the model is to think before it answers; None = as the template has it."""

    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    reasoning_budget: int | None = None
    chat_template_kwargs: TemplateArgs | None = None

    def reasoning_options(self) -> dict[str, Any]:
        """What they are in a :class:`ggfw.server.generation.Generation`."""
        return {
            "thinking": self.enable_thinking,
            "effort": self.reasoning_effort,
            "budget": self.reasoning_budget,
            "template_args": dict(self.chat_template_kwargs or {}),
        }


def refuse(body: Body, **why: str) -> None:
    """Raise for the first of the fields in ``why`` that was given a value: ``field="what to do instead"``.

    Raises:
        InvalidRequest: naming the field.
    """
    for name, hint in why.items():
        value = getattr(body, name)
        if value not in (None, False, [], ""):  # an empty object may ask for all there is
            raise InvalidRequest(f"{name} is not supported by this server; {hint}", name)

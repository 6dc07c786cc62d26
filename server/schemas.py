"""Request bodies, checked. Unknown fields are ignored; what is known but cannot be honoured is refused by name."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ggfw.request import plugin_parameters
from ggfw.server.constrained import ConstraintFields

Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Unsigned = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Body(BaseModel):
    """Base of all bodies: strict types (``"5"`` is no number), unknown fields ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


class StreamOptions(Body):
    """``stream_options``."""

    include_usage: bool | None = None


class SamplingFields(Body):
    """Sampling parameters that all endpoints share; None = not given. Ranges are checked by the library.

    Fields that nobody knows are ignored, those that plugins' sampler stages read are not.
    """

    model_config = ConfigDict(strict=True, extra="allow")

    temperature: Unsigned | None = None
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
    logit_bias: dict[str, float] | list[tuple[int, float | bool]] | None = None
    samplers: list[str] | str | None = None
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
    dry_sequence_breakers: list[str] | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    adaptive_target: float | None = None
    adaptive_decay: float | None = None

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        """llama-server's form: [[id, bias], ...], where false suppresses the token."""
        if not isinstance(value, list):
            return value
        for pair in value:
            if not (isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int and pair[0] >= 0):
                raise ValueError("a list must hold pairs of a token id and a number or false")
            if pair[1] is not False and type(pair[1]) not in (int, float):
                raise ValueError(f"the bias of token {pair[0]} must be a number or false")
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
        given = self.model_dump(include=set(SamplingFields.model_fields), exclude_none=True)
        if self.logit_bias is not None:
            given["logit_bias"] = {int(k): v for k, v in dict(self.logit_bias).items()}
        if self.model_extra:
            known = plugin_parameters()
            given |= {k: v for k, v in self.model_extra.items() if k in known and v is not None}
        return given


class ChatBody(ConstraintFields, SamplingFields):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[Any]
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str | None] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None

    @model_validator(mode="after")
    def _supported(self) -> ChatBody:
        if self.n is not None and self.n != 1:
            raise ValueError(f"n must be 1, the only number of choices this server makes, but is {self.n}")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        if (self.tools and self.tool_choice != "none") or self.functions:
            raise ValueError("tools and functions are not supported by this server; leave them out")
        return self

    @property
    def n_logprobs(self) -> int | None:
        """How many of the likeliest tokens to give with each token; None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def limit(self) -> int | None:
        """The limit on new tokens; the newer name wins."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

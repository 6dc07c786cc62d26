"""What the engine is asked to do."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import field, replace
from operator import index
from typing import TYPE_CHECKING, Any

from ggfw.arguments import as_integer
from ggfw.errors import InvalidRequest, brief
from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw.chat.dialect import Parser
    from ggfw.sampling import Constraint, Params

#: Names that other programs use for the same parameter.
ALIASES = {
    "temp": "temperature",
    "repeat_penalty": "penalty_repeat",
    "repetition_penalty": "penalty_repeat",
    "frequency_penalty": "penalty_freq",
    "presence_penalty": "penalty_present",
    "repeat_last_n": "penalty_last_n",
    "typ_p": "typical_p",
    "typical": "typical_p",
    "dynatemp_exp": "dynatemp_exponent",
    "mirostat_ent": "mirostat_tau",
    "mirostat_lr": "mirostat_eta",
}


def new_id(prefix: str = "req") -> str:
    """A fresh request id."""
    return f"{prefix}-{os.urandom(12).hex()}"


@dataclass(slots=True)
class Request:
    """One generation.

    Args:
        prompt: token ids, BOS included where the model wants one; at least one.
        params: sampling parameters; a seed of None or -1 is replaced by a fresh one at submission.
        max_tokens: tokens to draw at most; None or -1 means to the end of the context.
        stop: stop strings; the text ends before the first one. They end visible text and reasoning, not marks or calls.
        ignore_eos: never draw a token that ends the generation.
        constraint: a grammar or the like; Python judges what is drawn.
        timeout: seconds from submission after which the request fails with DeadlineExceeded; None = never.
        parser: splits the text into deltas; None = everything is text.
        special_tokens: whether the text shows control tokens.
        id: of the request, for logs.
        logprobs: how many of the likeliest tokens to give with the log-probability of each drawn token, 0 for none
            besides; None: no log-probabilities.
        cache_prompt: whether pages of earlier requests may be used, and this one's kept for later ones.
        cache_key: only requests with the same key share pages; None is a key like any other.
        of_text: whether the prompt is the encoding of a text, so that the tokens in which a model has written the same
            text may take its place, and what it has evaluated is used again.
    """

    prompt: list[int]
    params: Params
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    constraint: Constraint | None = None
    timeout: float | None = None
    parser: Parser | None = None
    special_tokens: bool = False
    id: str = field(default_factory=new_id)
    logprobs: int | None = None
    cache_prompt: bool = True
    cache_key: Hashable | None = None
    of_text: bool = False


def resolve_params(base: Params, given: dict[str, Any]) -> Params:
    """The parameters of a request: ``given`` over ``base``; None keeps the base's value.

    Args:
        base: the model's parameters (the file's recommendations over the defaults).
        given: by the names of :class:`ggfw.sampling.Params`, the aliases other programs use, or parameters of plugins'
            sampler stages.

    Raises:
        InvalidRequest: an unknown name (``param`` holds it) or an impossible value.
    """
    changes: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in given.items():
        field_name = ALIASES.get(name, name)
        known = field_name in base.__dataclass_fields__
        if not known and name not in plugin_parameters():
            names = ", ".join(n for n in base.__dataclass_fields__ if n != "extra")
            raise InvalidRequest(f"unknown sampling parameter {name!r}; known: {names}", param=name)
        if value is not None:
            (changes if known else extra)[field_name] = value
    if extra:
        changes["extra"] = {**base.extra, **changes.get("extra", {}), **extra}
    try:
        return replace(base, **changes) if changes else base
    except InvalidRequest as error:  # the caller knows the name that it gave
        said = next(
            (name for name in given if name != error.param and ALIASES.get(name) == error.param), None
        )
        if said is None or error.param in given:
            raise
        raise InvalidRequest(str(error).replace(str(error.param), said, 1), said) from None


def plugin_parameters() -> frozenset[str]:
    """Names of the request parameters that plugins' sampler stages read."""
    from ggfw.registry import default_registry

    return frozenset(name for stage in default_registry().sampler_stages.values() for name in stage.params)


def check_logprobs(value: Any) -> int | None:
    """``logprobs`` as the engine wants it: how many of the likeliest tokens to note; None for nothing.

    Raises:
        InvalidRequest: not an integer, or negative.
    """
    if value is None:
        return None
    n = as_integer(value)
    if n is None or n < 0:
        raise InvalidRequest(
            f"logprobs must be a number of tokens, 0 or more, or None, not {brief(value)}", param="logprobs"
        )
    return n


def with_seed(params: Params) -> Params:
    """``params`` with a definite seed: a fresh one where it was left open (None or -1).

    Fresh ones have 48 bits: with the number of a choice added they are still below 2^53, beyond which JavaScript's
    numbers, in which a client may send them back, have gaps.
    """
    if params.seed is None or params.seed == -1:
        return replace(params, seed=int.from_bytes(os.urandom(6), "little"))
    return params


def check_timeout(value: Any) -> float | None:
    """``timeout`` in seconds; None for no limit.

    Raises:
        InvalidRequest: not a number, or below 0.
    """
    if value is None:
        return None
    try:
        seconds = float(value) if hasattr(value, "__float__") and not isinstance(value, bool) else -1.0
    except (TypeError, ValueError, OverflowError):
        seconds = -1.0
    if not seconds >= 0:  # nor is NaN
        raise InvalidRequest(
            f"timeout must be a number of seconds, 0 or more, or None for no limit, not {brief(value)}",
            param="timeout",
        )
    return seconds


def check_max_tokens(value: Any) -> int | None:
    """``max_tokens`` as the engine wants it: None for "to the end of the context" (also written -1).

    Raises:
        InvalidRequest: not an integer, or 0, or below -1.
    """
    if value is None:
        return None
    n = as_integer(value)
    if n is None:
        raise InvalidRequest(f"max_tokens must be an integer, not {brief(value)}", param="max_tokens")
    if n == -1:
        return None
    if n < 1:
        raise InvalidRequest(
            f"max_tokens must be at least 1 (or -1 or null: to the end of the context), but is {brief(n)}",
            param="max_tokens",
        )
    return n


def token_ids(prompt: Sequence[int], param: str = "prompt") -> list[int]:
    """Token ids as a list.

    Raises:
        InvalidRequest: they are something else.
    """
    try:
        if isinstance(prompt, bytes | bytearray | memoryview):  # sequences of numbers, but meant as text
            raise TypeError
        ids = list(prompt)
        if any(isinstance(i, bool) for i in ids):  # numbers to Python only
            raise TypeError
        return [index(i) for i in ids]
    except TypeError:
        what = "a prompt is a string or a sequence" if param == "prompt" else f"{param} is a sequence"
        raise InvalidRequest(f"{what} of token ids, not {brief(prompt)}", param) from None

"""Parameters of the sampling chain: their types, ranges, defaults and names in a GGUF file."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from ggfw.errors import InvalidRequest, ModelFileError

F32_MAX = 3.4028234663852886e38
I32_MAX = 2**31 - 1

#: Keys ``general.sampling.<name>`` of a model file -> parameter.
METADATA_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "temp": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "penalty_last_n": "penalty_last_n",
        "penalty_repeat": "penalty_repeat",
    }
)


@dataclass(frozen=True)
class Params:
    """How tokens are drawn. Without arguments: llama.cpp's defaults.

    Args:
        temperature: divisor of the logits; <= 0 means greedy (the best token, without a random number).
        top_k: keep the k best; <= 0 means all.
        top_p: keep the smallest head whose probabilities reach it; >= 1 is off, 0 keeps one.
        min_p: keep what has at least this share of the best probability; <= 0 is off, at most 1.
        typical_p: locally typical sampling; >= 1 is off.
        seed: of the random generator, any 64-bit integer; None or -1 draws a fresh one. 0 is a seed.
        penalty_last_n: length of the penalty window in tokens, prompt included; 0 is off, < 0 the whole conversation.
        penalty_repeat: divides positive, multiplies other logits of tokens in the window; 1 is off (0 is read as 1).
        penalty_freq: subtracted once per occurrence in the window; 0 is off.
        penalty_present: subtracted once if the token stands in the window; 0 is off.
        logit_bias: token id -> addend (finite, or -inf to suppress the token).

    Raises:
        InvalidRequest: wrong type or value; ``param`` names the field.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    seed: int | None = None
    penalty_last_n: int = 64
    penalty_repeat: float = 1.0
    penalty_freq: float = 0.0
    penalty_present: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, _CHECKS[f.name](f.name, getattr(self, f.name)))

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken without a draw."""
        return self.temperature <= 0

    @property
    def penalises(self) -> bool:
        """Whether the penalty window is in use."""
        off = self.penalty_repeat == 1 and self.penalty_freq == 0 and self.penalty_present == 0
        return self.penalty_last_n != 0 and not off

    def for_choice(self, index: int) -> Params:
        """The parameters of choice ``index`` of several: seed + index, so that choice 0 equals a single answer."""
        if index == 0 or self.seed is None or self.seed == -1:
            return self
        return replace(self, seed=((self.seed & (2**64 - 1)) + index) & (2**64 - 1))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], base: Params | None = None) -> Params:
        """``base`` (default: :func:`defaults`) with the recommendations of a model file (``general.sampling.*``).

        Args:
            metadata: the file's key-value pairs; keys of stages that do not exist are ignored.

        Raises:
            ModelFileError: a recommendation has the wrong type or an impossible value.
        """
        found = {
            name: metadata[f"general.sampling.{key}"]
            for key, name in METADATA_KEYS.items()
            if f"general.sampling.{key}" in metadata
        }
        try:
            return replace(base if base is not None else defaults(), **found)
        except InvalidRequest as error:
            raise ModelFileError(
                f"the file's general.sampling recommendation cannot be used: {error}; correct it with ggfw.gguf"
            ) from error


def defaults() -> Params:
    """llama.cpp's defaults: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, no penalties, window 64."""
    return Params()


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) and not _is_numpy_scalar(value, "fiu"):
        raise InvalidRequest(f"{name} must be a number, not {value!r}", param=name)
    number = float(value)
    if not abs(number) <= F32_MAX:
        raise InvalidRequest(f"{name} must be a finite 32-bit float, not {value!r}", param=name)
    return number


def _integer(name: str, value: Any) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Integral)
        and not _is_numpy_scalar(value, "iu")
    ):
        raise InvalidRequest(f"{name} must be an integer, not {value!r}", param=name)
    return int(value)


def _is_numpy_scalar(value: Any, kinds: str) -> bool:
    return getattr(getattr(value, "dtype", None), "kind", "") in kinds and getattr(value, "shape", None) == ()


def _at_least_zero(name: str, value: Any) -> float:
    number = _number(name, value)
    if number < 0:
        raise InvalidRequest(f"{name} must not be negative, but is {number:g}", param=name)
    return number


def _at_most_one(name: str, value: Any) -> float:
    number = _number(name, value)
    if number > 1:
        raise InvalidRequest(f"{name} must be at most 1, but is {number:g}", param=name)
    return number


def _repeat(name: str, value: Any) -> float:
    number = _at_least_zero(name, value)
    return number if number else 1.0


def _i32(name: str, value: Any) -> int:
    number = _integer(name, value)
    if abs(number) > I32_MAX:
        raise InvalidRequest(f"{name} must fit 32 bits, but is {number}", param=name)
    return number


def _seed(name: str, value: Any) -> int | None:
    if value is None:
        return None
    number = _integer(name, value)
    if not -(2**63) <= number < 2**64:
        raise InvalidRequest(f"{name} must fit 64 bits, but is {number}", param=name)
    return number


def _bias(name: str, value: Any) -> Mapping[int, float]:
    if value is None:
        return MappingProxyType({})
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must map token ids to numbers, not be {value!r}", param=name)
    out: dict[int, float] = {}
    for token, addend in value.items():
        try:
            token = _integer(f"the token id in {name}", token)
            out[token] = -math.inf if addend == -math.inf else _number(f"{name} of token {token}", addend)
        except InvalidRequest as error:
            raise InvalidRequest(str(error), param=name) from None
        if not 0 <= token <= I32_MAX:
            raise InvalidRequest(f"{name} names token {token}, but ids start at 0", param=name)
    return MappingProxyType(out)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "temperature": _number,
    "top_k": _i32,
    "top_p": _at_least_zero,
    "min_p": _at_most_one,
    "typical_p": _at_least_zero,
    "seed": _seed,
    "penalty_last_n": _i32,
    "penalty_repeat": _repeat,
    "penalty_freq": _number,
    "penalty_present": _number,
    "logit_bias": _bias,
}

"""Checks of single sampling parameters: each takes a name and a value and gives the value in its own type.

All raise :class:`ggfw.errors.InvalidRequest` whose ``param`` is the name.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ggfw.errors import InvalidRequest, brief
from ggfw.sampling.dry import MAX_BREAKERS

F32_MAX = 3.4028234663852886e38
I32_MAX = 2**31 - 1


def _is_numpy_scalar(value: Any, kinds: str) -> bool:
    return getattr(getattr(value, "dtype", None), "kind", "") in kinds and getattr(value, "shape", None) == ()


def number(name: str, value: Any) -> float:
    """A finite number that a 32-bit float can hold."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) and not _is_numpy_scalar(value, "fiu"):
        raise InvalidRequest(f"{name} must be a number, not {brief(value)}", param=name)
    try:
        out = float(value)
    except OverflowError:  # an integer of hundreds of digits
        out = math.inf
    if not abs(out) <= F32_MAX:
        raise InvalidRequest(f"{name} must be a finite 32-bit float, not {brief(value)}", param=name)
    return out


def integer(name: str, value: Any) -> int:
    """An integer of any size."""
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Integral)
        and not _is_numpy_scalar(value, "iu")
    ):
        raise InvalidRequest(f"{name} must be an integer, not {brief(value)}", param=name)
    return int(value)


def at_least_zero(name: str, value: Any) -> float:
    """A number that is not negative."""
    out = number(name, value)
    if out < 0:
        raise InvalidRequest(f"{name} must not be negative, but is {out:g}", param=name)
    return out


def at_most_one(name: str, value: Any) -> float:
    """A number up to 1."""
    out = number(name, value)
    if out > 1:
        raise InvalidRequest(f"{name} must be at most 1, but is {out:g}", param=name)
    return out


def share(name: str, value: Any) -> float:
    """A number between 0 and 1."""
    return at_most_one(name, at_least_zero(name, value))


def decay(name: str, value: Any) -> float:
    """A factor of a moving average, 0 to 0.99."""
    out = at_least_zero(name, value)
    if out > 0.99:
        raise InvalidRequest(f"{name} must be at most 0.99, but is {out:g}", param=name)
    return out


def repeat(name: str, value: Any) -> float:
    """A divisor: not negative, 0 is read as 1."""
    out = at_least_zero(name, value)
    return out if out else 1.0


def i32(name: str, value: Any) -> int:
    """An integer of 32 bits."""
    out = integer(name, value)
    if abs(out) > I32_MAX:
        raise InvalidRequest(f"{name} must fit 32 bits, but is {brief(out)}", param=name)
    return out


def count(name: str, value: Any) -> int:
    """A 32-bit integer that is not negative."""
    out = i32(name, value)
    if out < 0:
        raise InvalidRequest(f"{name} must not be negative, but is {brief(out)}", param=name)
    return out


def mirostat(name: str, value: Any) -> int:
    """0, 1 or 2."""
    out = integer(name, value)
    if out not in (0, 1, 2):
        raise InvalidRequest(f"{name} must be 0 (off), 1 or 2, but is {brief(out)}", param=name)
    return out


def seed(name: str, value: Any) -> int | None:
    """Any 64-bit integer, signed or not, or None."""
    if value is None:
        return None
    out = integer(name, value)
    if not -(2**63) <= out < 2**64:
        raise InvalidRequest(f"{name} must fit 64 bits, but is {brief(out)}", param=name)
    return out


def bias(name: str, value: Any) -> Mapping[int, float]:
    """Token id -> addend, finite or -inf; None is empty."""
    if value is None:
        return MappingProxyType({})
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must map token ids to numbers, not be {brief(value)}", param=name)
    out: dict[int, float] = {}
    for token, addend in value.items():
        try:
            token = integer(f"the token id in {name}", token)
            out[token] = (
                -math.inf if addend == -math.inf else number(f"{name} of token {brief(token)}", addend)
            )
        except InvalidRequest as error:
            raise InvalidRequest(str(error), param=name) from None
        if not 0 <= token <= I32_MAX:
            raise InvalidRequest(f"{name} names token {brief(token)}, but ids start at 0", param=name)
    return MappingProxyType(out)


def strings(name: str, value: Any) -> tuple[str, ...]:
    """Texts that are not empty; None is none of them."""
    if value is None:
        return ()
    try:
        out = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (None,)
    except TypeError:  # an array without dimensions
        out = (None,)
    if not all(isinstance(text, str) for text in out):
        raise InvalidRequest(f"{name} must be a list of strings, not {brief(value)}", param=name)
    if "" in out:
        raise InvalidRequest(f"a string in {name} must not be empty; leave it out", param=name)
    return out


def breakers(name: str, value: Any) -> tuple[str, ...]:
    """Texts that are not empty, as many as DRY looks for."""
    out = strings(name, value)
    if len(out) > MAX_BREAKERS:
        raise InvalidRequest(f"{name} has {len(out)} texts; at most {MAX_BREAKERS} are allowed", param=name)
    return out


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    """Names -> anything."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidRequest(f"{name} must map names to values, not be {brief(value)}", param=name)
    return MappingProxyType(dict(value))

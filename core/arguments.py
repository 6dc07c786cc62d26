"""Checks of what callers of the library give: each gives the value in Python's own type, or one clear error."""

from __future__ import annotations

import os
from math import isfinite
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggfw.errors import InvalidRequest, brief

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Positions, rows and token ids are 32-bit in the native batch.
MOST = 2**31 - 1


def as_integer(value: Any) -> int | None:
    """An integer of Python's or NumPy's; None for anything else, also for True and False."""
    if type(value) is int:
        return value
    try:
        return None if type(value).__name__ in ("bool", "bool_") else index(value)
    except Exception:  # whatever an object of somebody else's raises
        return None


def integer(name: str, value: Any, least: int, most: int = MOST) -> int:
    """An integer between two bounds.

    Raises:
        InvalidRequest: something else; ``param`` is ``name``.
    """
    found = as_integer(value)
    if found is None or not least <= found <= most:
        span = f"from {least} to {most}" if most < MOST or least > 0 else f"of {least} or more"
        raise InvalidRequest(f"{name} is {brief(value)}; an integer {span} was expected", name)
    return found


def number(name: str, value: Any, least: float) -> float:
    """A finite number, not below a bound.

    Raises:
        InvalidRequest: something else; ``param`` is ``name``.
    """
    try:
        found = float(value) if hasattr(value, "__float__") and not isinstance(value, bool) else None
    except Exception:  # too large, or of a class that cannot
        found = None
    if found is None or not isfinite(found) or found < least:
        raise InvalidRequest(f"{name} is {brief(value)}; a number of at least {least:g} was expected", name)
    return found


def instance(name: str, value: Any, kind: type, what: str) -> Any:
    """An object of a class, which ``what`` says how to make.

    Raises:
        InvalidRequest: something else; ``param`` is ``name``.
    """
    if not issubclass(type(value), kind):
        raise InvalidRequest(f"{name} is {brief(value)}; {what} was expected", name)
    return value


def text(name: str, value: Any) -> str:
    """A text.

    Raises:
        InvalidRequest: something else; ``param`` is ``name``.
    """
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is {brief(value)}; a text was expected", name)
    return value


def flag(name: str, value: Any) -> bool:
    """True or False (also as 1 or 0); None is False.

    Raises:
        InvalidRequest: something else; ``param`` is ``name``.
    """
    if value is None or value is True or value is False:
        return bool(value)
    if type(value).__name__ in ("bool", "bool_") or as_integer(value) in (0, 1):
        return bool(value)
    raise InvalidRequest(f"{name} is {brief(value)}; True or False was expected", name)


def spelling(name: str, value: Any) -> str:
    """The text of a path, or of what may be one.

    Raises:
        InvalidRequest: something else; ``param`` is ``name``.
    """
    try:
        found = os.fspath(value)
    except TypeError:
        found = None
    if not isinstance(found, str):
        raise InvalidRequest(f"{name} is {brief(value)}; a path was expected", name)
    return found


def path(name: str, value: Any) -> Path:
    """A path that a file can have.

    Raises:
        InvalidRequest: something else; ``param`` is ``name``.
    """
    found = spelling(name, value)
    try:
        if b"\0" not in os.fsencode(found):
            return Path(found)
    except UnicodeError:
        pass
    raise InvalidRequest(f"{name} is {brief(value)}; no path can be spelt like that", name)


def floats(name: str, value: Any, kind: Any) -> NDArray[Any]:
    """An array of real numbers as NumPy's ``kind``.

    Raises:
        InvalidRequest: something else; ``param`` is ``name``.
    """
    import numpy as np  # here, because plugins are looked for without it

    try:
        found = np.asarray(value)
        if found.dtype.kind in "fiu" or found.dtype.name == "bfloat16":
            return np.asarray(found, kind)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidRequest(f"{name} is {brief(value)}; an array of real numbers was expected", name)

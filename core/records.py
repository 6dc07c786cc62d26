"""``dataclass`` of the standard library, with comparison, hash and representation shared by all classes.

The standard decorator compiles six functions for each class, which takes half a millisecond: for the ninety classes of
a short run a seventh of the time to its first token. Shared functions do the same from the names of the fields; three
are left to compile. (From Python 3.13 on it compiles them at once.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None, /, *, eq: bool = True, repr: bool = True, **options: Any
    ) -> type | Callable[[type], type]:
        """Make a data class; arguments and behaviour are those of :func:`dataclasses.dataclass`, ``order`` excepted."""

        def made(cls: type) -> type:
            own = cls.__dict__
            keeps_hash = "__hash__" in own and not (own["__hash__"] is None and "__eq__" in own)
            result = dataclasses.dataclass(eq=False, repr=False, **options)(cls)
            if repr and "__repr__" not in own:
                result.__repr__ = _repr
            if eq:
                fields = dataclasses.fields(result)
                result._compared = _getter(f.name for f in fields if f.compare)
                result._hashed = _getter(f.name for f in fields if (f.compare if f.hash is None else f.hash))
                if "__eq__" not in own:
                    result.__eq__ = _eq
                if not (keeps_hash or options.get("unsafe_hash")):  # which has made one
                    result.__hash__ = _hash if options.get("frozen") else None
            return result

        return made if cls is None else made(cls)


def _getter(names: Any) -> Any:
    """A function that gives the values of the named attributes as a tuple."""
    names = tuple(names)
    if len(names) > 1:
        return staticmethod(attrgetter(*names))
    return staticmethod(lambda one: tuple(getattr(one, name) for name in names))


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._hashed(self))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({shown})"

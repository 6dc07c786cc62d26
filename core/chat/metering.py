"""What operations of a chat template cost, charged to the rendering's budget before they run.

A template cannot be stopped inside a function written in C, nor inside most of those written in Python. So every
function it can reach is on a list, and has a cost that follows from the size of what goes in: steps of about a
microsecond, and bytes for what it makes. Estimates err upwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from jinja2.utils import Namespace

from ggfw.chat import limits
from ggfw.chat.tracked import Tracked

#: Bytes of an entry of a list together with a small object in it.
ENTRY = 72
#: Bytes of a short string with its marks.
PIECE = 160
#: What one field of a format string may add by its width.
FIELD = 1024

#: Methods that templates may reach, by type. Those that change a list are only for lists of the template's own.
STR_METHODS = frozenset(
    "capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha isascii"
    " isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip"
    " partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines"
    " startswith strip swapcase title upper zfill".split()
)
LIST_METHODS = frozenset(("count", "index", "copy"))
OWN_LIST_METHODS = LIST_METHODS | {"append", "extend", "insert", "pop"}
TUPLE_METHODS = frozenset(("count", "index"))
DICT_METHODS = frozenset(("get", "items", "keys", "values", "copy"))

#: Those whose time grows with the product of the two lengths: Python searches backwards naively, and looks for each
#: character among those to be stripped.
_QUADRATIC = frozenset(("rfind", "rindex", "rsplit", "rpartition", "strip", "lstrip", "rstrip"))

_VIEWS: Any = type({}.keys()) | type({}.values()) | type({}.items())
_SPACES = (
    " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_WIDTH = re.compile(r"\d{4,}")
_NESTED = re.compile(r"\{[^{}:]*:[^{}]*\{")


class Weight(NamedTuple):
    """Size of a value: values in it, bytes of its strings, and how deep it goes."""

    nodes: int
    size: int
    depth: int


def volume(text: str) -> int:
    """At most how many bytes a string takes, beside a constant."""
    return len(text) * (width(text) + isinstance(text, Tracked))


def width(text: str) -> int:
    """At most how many bytes a character of it takes."""
    return 1 if text.isascii() else min(4, str.__sizeof__(text) // len(text))


def weigh(value: Any) -> Weight:
    """Walk a value as functions that print, compare or sort it will, charging for each node on every path to it.

    Raises:
        LimitExceeded: it is too large, or too deep (which cycles are).
    """
    tick = limits.budget().tick
    if isinstance(value, str):
        n = volume(value)
        tick(1 + (n >> 7))
        return Weight(1, n + 8, 0)
    nodes = size = depth = steps = 0
    stack: list[Iterator[Any]] = [iter((value,))]
    while stack:
        for item in stack[-1]:
            nodes += 1
            steps += 1
            if steps > 63:
                tick(steps)
                steps = 0
            if isinstance(item, str):
                n = volume(item)
                size += n + 8
                steps += n >> 7
                continue
            size += 16
            inner = _inner(item)
            if inner is not None:
                stack.append(inner)
                depth = max(depth, len(stack) - 1)
                if depth > limits.MAX_DEPTH:
                    raise limits.LimitExceeded(f"it puts more than {limits.MAX_DEPTH} lists into one another")
                break
            if isinstance(item, int):
                size += item.bit_length() // 3
        else:
            stack.pop()
    tick(steps + 1)
    return Weight(nodes, size, depth)


def _inner(value: Any) -> Iterator[Any] | None:
    if value is None or isinstance(value, int | float):
        return None
    if isinstance(value, Mapping):
        return _chain(value)
    if isinstance(value, list | tuple | set | frozenset | _VIEWS):
        return iter(value)
    if isinstance(value, Namespace):
        return _chain(object.__getattribute__(value, "_Namespace__attrs"))
    return None


def _chain(value: Mapping[Any, Any]) -> Iterator[Any]:
    for k, v in value.items():
        yield k
        yield v


def given_size(value: Any) -> int:
    """About how many bytes that is which the caller gives to a template: JSON-like, and not shared."""
    if isinstance(value, str):
        return ENTRY + (len(value) if value.isascii() else 4 * len(value))
    if isinstance(value, Mapping):
        return sum(given_size(k) + given_size(v) for k, v in value.items())
    if isinstance(value, list | tuple):
        return sum(map(given_size, value))
    return ENTRY


def counted(items: Iterable[Any], size: int = 0) -> Iterator[Any]:
    """``items``, each one a step and ``size`` bytes."""
    budget = limits.budget()
    for item in items:
        budget.spend(size)
        yield item


def listed(items: Any) -> list[Any]:
    """A list of what an iterable gives, paid entry by entry."""
    if isinstance(items, list | tuple | Mapping | _VIEWS):
        limits.budget().spend(8 * len(items), 1 + (len(items) >> 5))
        return list(items)
    return list(counted(items, ENTRY))


def settled(value: Any) -> Any:
    """An argument for a function in C: iterators become lists, anything else stays."""
    return listed(value) if isinstance(value, Iterator) else value


def check_bits(n: int) -> None:
    """Refuse integers of more than so many bits."""
    if n > limits.MAX_BITS:
        raise limits.LimitExceeded(f"it computes with integers of more than {limits.MAX_BITS} bits")


def check_numbers(values: Iterable[Any], most: int = limits.MAX_NUMBER) -> None:
    """Refuse widths and counts that are too large."""
    for value in values:
        if isinstance(value, int | float) and abs(value) > most:
            raise limits.LimitExceeded(f"it asks for {value:.3g} of something")


def sorting(value: list[Any], rounds: int | None = None) -> None:
    """Charge for sorting or grouping a list's items; ``rounds`` 1: for comparing or hashing each once."""
    nodes, size, _ = weigh(value)
    rounds = rounds or len(value).bit_length()
    limits.budget().spend(size + 48 * len(value), (nodes // 2 + (size >> 8)) * rounds)


# -- operators --------------------------------------------------------------------------------------------------------


def operation(operator: str, left: Any, right: Any) -> None:
    """Charge for ``left operator right``."""
    budget = limits.budget()
    if isinstance(left, int | float) and isinstance(right, int | float):
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length()
            check_bits(left.bit_length() * abs(right) if operator == "**" else bits)
        budget.tick()
    elif operator == "+":
        size = _extent(left) + _extent(right)
        if isinstance(left, str) and isinstance(right, str) and width(left) != width(right):
            size *= 4
        budget.spend(size, 1 + (size >> 8))
    elif operator == "*":
        for sized, n in ((left, right), (right, left)):
            if isinstance(n, int):
                size = _extent(sized) * max(n, 0)
                budget.spend(size, 1 + (size >> 8))
    elif isinstance(left, _VIEWS):
        weigh(left)
        right = settled(right)
        budget.spend(ENTRY * (len(left) + weigh(right).nodes))
    else:
        budget.tick()


def _extent(value: Any) -> int:
    if isinstance(value, str):
        return volume(value)
    return 8 * len(value) if isinstance(value, list | tuple) else 0


def comparison(operator: str, left: Any, right: Any) -> None:
    """Charge for ``left operator right``."""
    budget = limits.budget()
    if operator in ("in", "notin"):
        if isinstance(right, str):
            budget.tick(1 + (len(right) >> 6))
        elif isinstance(right, Mapping):
            hashed(left)
        elif _inner(left) is not None:
            weigh(left)
            weigh(right)
        elif hasattr(right, "__len__"):
            budget.tick(1 + (len(right) >> 4) * (1 + (len(left) >> 8 if isinstance(left, str) else 0)))
    elif isinstance(left, str):
        budget.tick(1 + (len(left) >> 9 if isinstance(right, str) and len(right) > 512 else 0))
    elif _inner(left) is not None and _inner(right) is not None:
        weigh(left)
        weigh(right)
    else:
        budget.tick()


def looked_up(key: Any) -> Any:
    """``key``, by which something is to be found: it is hashed or, where nothing is found, named in a message."""
    if isinstance(key, str) and len(key) > limits.MAX_SLOW:
        raise limits.LimitExceeded(f"it looks something up by a text of {len(key)} characters")
    if isinstance(key, str | int):
        limits.budget().tick()
    else:
        weigh(key)
    return key


def hashed(key: Any) -> Any:
    """``key``, which is to be looked up or kept in a dict: tuples do not remember their hash."""
    if isinstance(key, tuple):
        weigh(key)
    return key


# -- methods ----------------------------------------------------------------------------------------------------------


def method(owner: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Charge for a method of a string, list, tuple, dict or range. Arguments are settled."""
    budget = limits.budget()
    if isinstance(owner, str):
        _str_method(owner, name, args, kwargs)
    elif name == "extend":
        budget.spend(ENTRY + 8 * sum(len(a) for a in args if hasattr(a, "__len__")))
    elif name in ("append", "insert", "pop"):
        budget.spend(ENTRY, 1 + (len(owner) >> 9 if name != "append" else 0))
    elif name == "copy":
        budget.spend(ENTRY + 24 * len(owner), 1 + (len(owner) >> 5))
    elif name in ("count", "index"):
        for value in args:
            comparison("in", value, owner)
    elif isinstance(owner, dict):
        for value in args[:1]:
            hashed(value)
        budget.tick()


def _str_method(owner: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    budget = limits.budget()
    values = (*args, *kwargs.values())
    n = volume(owner)
    budget.tick(1 + sum(len(v) >> 6 if isinstance(v, str) else weigh(v).nodes for v in values))
    if name in _QUADRATIC:
        budget.tick(len(owner) * max([0, *(len(v) for v in values if isinstance(v, str))]) >> 9)
    if name in ("split", "rsplit", "splitlines"):
        sep = kwargs.get("sep", args[0] if args else None)
        if name == "splitlines":
            pieces = sum(str.count(owner, c) for c in _LINE_ENDS)
        elif isinstance(sep, str) and sep:
            pieces = str.count(owner, sep)
        else:
            pieces = sum(str.count(owner, c) for c in (_SPACES[:10] if owner.isascii() else _SPACES))
        most = kwargs.get("maxsplit", args[1] if len(args) > 1 else -1)
        if name != "splitlines" and isinstance(most, int) and most >= 0:
            pieces = min(pieces, most)
        budget.spend(n + PIECE * (pieces + 1), 1 + (n >> 6) + 2 * pieces)
    elif name == "replace":
        old, new = (*args, *kwargs.values(), "", "")[:2]
        if isinstance(old, str) and isinstance(new, str):
            found = str.count(owner, old)
            size = (len(owner) + found * len(new)) * (2 if owner.isascii() and new.isascii() else 5)
            budget.spend(size, 1 + (size >> 6) + found)
    elif name == "join":
        items = values[0] if values else ()
        if hasattr(items, "__len__"):
            size = volume(owner) * len(items)
            size += (
                len(items) if isinstance(items, str) else sum(volume(v) for v in items if isinstance(v, str))
            )
            budget.spend(2 * size, 1 + (size >> 8) + len(items))
    elif name in ("center", "ljust", "rjust", "zfill"):
        check_numbers(values)
        budget.spend(n + 5 * max([0, *(v for v in values if isinstance(v, int))]))
    elif name == "expandtabs":
        check_numbers(values)
        tab = max([8, *(abs(v) for v in values if isinstance(v, int))])
        size = 2 * n + 5 * tab * str.count(owner, "\t")
        budget.spend(size, 1 + (size >> 5))
    elif name in ("lower", "upper", "title", "capitalize", "swapcase", "casefold"):
        budget.spend(n if owner.isascii() else 3 * n, 1 + (n >> 5))
    elif name in ("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "partition", "rpartition"):
        budget.spend(n + PIECE, 1 + (n >> 6))
    else:
        budget.tick(1 + (n >> 5))


# -- formatting -------------------------------------------------------------------------------------------------------


def formatting(template: str, values: Any, mark: str) -> None:
    """Charge for ``template % values`` (``mark`` is ``%``) or ``template.format(values)`` (``{``).

    Raises:
        LimitExceeded: also if a width is huge or variable.
    """
    if _WIDTH.search(template) or (mark == "%" and "*" in template):
        raise limits.LimitExceeded("it formats with a huge or variable width")
    if mark == "{" and _NESTED.search(template.replace("{{", "").replace("}}", "")):
        raise limits.LimitExceeded("it formats with a variable width")
    fields = str.count(template, mark)
    size = weigh(values).size
    once = mark == "%" and isinstance(values, tuple)
    # Where a value is no string, or is shown by its repr, its characters may become escapes.
    flat = all(isinstance(v, str | int | float) for v in (values if isinstance(values, tuple) else (values,)))
    size *= 1 if flat and "%r" not in template and "%a" not in template and "!" not in template else 4
    size = volume(template) + size * (1 if once else max(fields, 1)) + FIELD * fields
    limits.budget().spend(size, 1 + (size >> 8) + 2 * fields)

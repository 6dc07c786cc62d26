"""Filters and tests of chat templates: those that templates use, each charged before it runs.

What is not listed here does not exist: Jinja then says that it knows no such filter.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from jinja2 import Undefined, nodes
from jinja2.defaults import DEFAULT_FILTERS, DEFAULT_TESTS
from jinja2.environment import Environment
from jinja2.runtime import Context

from ggfw.chat import limits
from ggfw.chat.metering import (
    ENTRY,
    check_bits,
    check_numbers,
    comparison,
    counted,
    formatting,
    listed,
    method,
    operation,
    settled,
    sorting,
    volume,
    weigh,
    width,
)
from ggfw.chat.tracked import Tracked, is_foreign, join, make, marks_of, plain, to_plain, track

Function = Callable[..., Any]
_SURROUNDINGS = (Environment, Context, nodes.EvalContext)


def shown(value: Any) -> str:
    """What ``{{ value }}`` prints."""
    if isinstance(value, str):
        limits.budget().tick()
        return value
    if value is None or isinstance(value, bool | int | float | Undefined):
        limits.budget().tick()
        return str(value)
    weight = weigh(value)
    limits.budget().spend(4 * weight.size, weight.nodes)
    text = str(to_plain(value))
    return Tracked(text) if is_foreign(value) else text


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: no HTML escapes, no ASCII escapes, keys in their own order."""
    columns = len(indent) if isinstance(indent, str) else indent or 0
    if columns > 64:
        raise limits.LimitExceeded("it indents JSON by more than 64 columns")
    if separators is not None and any(len(s) > 16 for s in separators):
        raise limits.LimitExceeded("it separates JSON by more than 16 characters")
    value = settled(value)
    nodes, size, depth = weigh(value)
    limits.budget().spend(6 * size + nodes * (32 + max(columns, 0) * depth), 2 * nodes)
    text = json.dumps(
        to_plain(value), ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return Tracked(text) if is_foreign(value) else text


def from_json(text: str) -> Any:
    """The value that a JSON text stands for; as foreign as the text."""
    limits.budget().spend(32 * volume(text), 1 + (len(text) >> 2))
    value = json.loads(plain(text))
    return track(value) if isinstance(text, Tracked) else value


def joined(texts: Iterable[Any], sep: str = "") -> str:
    """The parts as one string."""
    budget = limits.budget()
    parts: list[str] = []
    chars, wide, marked = 0, width(sep), isinstance(sep, Tracked)
    for value in texts:
        text = shown(value)
        chars += len(text) + len(sep)
        wide = max(wide, width(text))
        marked = marked or isinstance(text, Tracked)
        parts.append(text)
    size = chars * (wide + marked)
    budget.spend(size + 8 * len(parts), 1 + (size >> 8))
    return join(parts, sep)


class Safe(Tracked):
    """What the filter ``safe`` makes of the template's own text: HTML, to which other text is added escaped.

    Prompts are no HTML, but a template that says ``safe`` gets what the reference library, or rather Jinja, does with
    it. Text that was given to the template, and text in front, stay as they are: escaping them could only do harm.
    """

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, str):
            return NotImplemented
        text = join((self, _escaped(other)))
        return Safe(text, marks_of(text))


def _safe(value: Any) -> str:
    text = shown(value)
    return text if isinstance(text, Tracked) else Safe(text, bytes(len(text)))


def _escaped(text: str) -> str:
    if isinstance(text, Safe):
        return text
    text = text if isinstance(text, Tracked) else Tracked(text, bytes(len(text)))
    for char, escape in (("&", "&amp;"), (">", "&gt;"), ("<", "&lt;"), ("'", "&#39;"), ('"', "&#34;")):
        if char in text:
            method(text, "replace", (char, escape), {})
            text = text.replace(char, escape)
    return text


# -- filters of our own -----------------------------------------------------------------------------------------------


def _join(value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    if attribute is not None:
        _check_attribute(attribute)
        value = (_item(v, attribute) for v in value)
    return joined(value, shown(d))


def _item(value: Any, attribute: str) -> Any:
    for name in str(attribute).split("."):
        value = value[int(name)] if name.isdigit() else value.get(name, "") if hasattr(value, "get") else ""
    return value


def _replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    text, old, new = shown(value), shown(old), shown(new)
    method(text, "replace", (old, new), {})
    tracked = text if isinstance(text, Tracked) else Tracked(text, bytes(len(text)))
    out = tracked.replace(old, new, -1 if count is None else count)
    return make(out, marks_of(out))


def _of_string(name: str) -> Function:
    """The filter that is a method of strings."""

    def call(value: Any, *args: Any) -> str:
        text = shown(value)
        method(text, name, args, {})
        if any(map(is_foreign, args)) and not isinstance(text, Tracked):
            text = Tracked(text, bytes(len(text)))
        return getattr(text, name)(*args)  # type: ignore[no-any-return]

    return call


def _trim(value: Any, chars: str | None = None) -> str:
    return _of_string("strip")(value, *(() if chars is None else (chars,)))  # type: ignore[no-any-return]


def _list(value: Any) -> list[Any]:
    return listed(value)


def _sum(environment: Any, iterable: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    total = start
    for item in counted(iterable):
        value = item if attribute is None else _item(item, _check_attribute(attribute))
        operation("+", total, value)
        total = total + value
    return total


_sum.jinja_pass_arg = DEFAULT_FILTERS["sum"].jinja_pass_arg  # type: ignore[attr-defined]


def _to_number(name: str) -> Function:
    function = DEFAULT_FILTERS[name]

    def call(value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, str) and len(value) > 4096:
            raise limits.LimitExceeded(f"it reads a number of {len(value)} characters")
        weigh(value)
        result = function(to_plain(value), *args, **kwargs)
        check_bits(result.bit_length() if isinstance(result, int) else 0)
        return result

    return call


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise TypeError("can't handle positional and keyword arguments at the same time")
    return percent(shown(value), kwargs or args)


def percent(template: str, values: Any) -> str:
    """``template % values``. Plain ``%s`` and ``%d`` keep the marks; other conversions give a foreign result."""
    formatting(template, values, "%")
    given = values if isinstance(values, tuple) else (values,)
    foreign = is_foreign(template) or is_foreign(values)
    if not foreign or isinstance(values, dict):
        text = plain(template) % to_plain(values)
        return Tracked(text) if foreign else text
    own = template if isinstance(template, Tracked) else Tracked(template, bytes(len(template)))
    parts = plain(template).split("%")
    out: list[str] = [own[: len(parts[0])]]
    at, rest, i = len(parts[0]), list(reversed(given)), 1
    while i < len(parts):
        kind = parts[i][:1]
        if kind in ("s", "d", "i") and rest:
            value = rest.pop()
            out.append(shown(value if kind == "s" else int(value)))
            out.append(own[at + 2 : at + 1 + len(parts[i])])
            at, i = at + 1 + len(parts[i]), i + 1
        elif not kind and i + 1 < len(parts):  # %%
            out += ["%", own[at + 2 : at + 2 + len(parts[i + 1])]]
            at, i = at + 2 + len(parts[i + 1]), i + 2
        else:
            return Tracked(plain(template) % to_plain(values))
    return join(out) if not rest else Tracked(plain(template) % to_plain(values))


# -- Jinja's filters, behind a check ----------------------------------------------------------------------------------


def _check_attribute(attribute: Any) -> Any:
    if not isinstance(attribute, str):
        weigh(attribute)
    elif len(attribute) > 256:
        raise limits.LimitExceeded("it asks for an attribute whose name has more than 256 characters")
    return attribute


def _before_sorting(value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = value if isinstance(value, dict) else listed(value)
    sorting(list(value.items()) if isinstance(value, dict) else value)
    return value


def _before_one_look(value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = listed(value)
    sorting(value, 1)
    return value


def _before_each(value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    for name in args[:1]:
        _check_attribute(name)
    return value if isinstance(value, str | dict | list | tuple | Undefined) else counted(value)


def _before_parts(value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    numbers = [*args, *kwargs.values()]
    check_numbers(numbers)
    n = max([0, *(v for v in numbers if isinstance(v, int))])
    limits.budget().spend(8 * n, 1 + n)
    return listed(value)


def _before_slow(value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Whatever works on words."""
    text = shown(value)
    if len(text) > limits.MAX_SLOW:
        raise limits.LimitExceeded(f"it works on the words of a text of {len(text)} characters")
    limits.budget().spend(PER_WORD * len(text), 1 + len(text))
    return text


def _before_indent(value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    text = shown(value)
    by = kwargs.get("width", args[0] if args else 4)
    check_numbers([by])
    by = len(by) if isinstance(by, str) else abs(by) if isinstance(by, int) else 0
    method(text, "splitlines", (), {})
    lines = str.count(text, "\n") + 1
    limits.budget().spend(5 * len(text) + 5 * by * lines, lines)
    return text


def _before_text(value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    text = shown(value)
    check_numbers([*args, *kwargs.values()])
    limits.budget().spend(8 * volume(text), 1 + (len(text) >> 5))
    return text


def _before_reverse(value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if isinstance(value, str):
        limits.budget().spend(volume(value), 1 + (len(value) >> 6))
        return value
    return listed(value)


def _before_round(value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    check_numbers([*args, *kwargs.values()], 300)
    return _no_text(value)  # which Jinja would multiply by a power of ten


def _no_text(value: Any) -> Any:
    """A number, or something undefined, which says so itself."""
    if not isinstance(value, int | float | Undefined):
        raise TypeError(f"a number was expected, not {type(value).__name__}")
    return value


def _before_short(value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return value


#: Bytes that a list of words takes for each character.
PER_WORD = 64
#: What is done first for each of Jinja's filters that keeps the marks of what it hands on.
_FOLLOWED: dict[str, Function] = {
    **dict.fromkeys(("sort", "dictsort", "groupby"), _before_sorting),
    **dict.fromkeys(("unique", "min", "max"), _before_one_look),
    **dict.fromkeys(("map", "select", "reject", "selectattr", "rejectattr"), _before_each),
    **dict.fromkeys(("batch", "slice"), _before_parts),
    **dict.fromkeys(("first", "last", "count", "length", "d", "default", "items", "abs"), _before_short),
    "reverse": _before_reverse,
    "round": _before_round,
}
#: The same for those that make a new string, which is foreign if anything that went in is.
_MADE: dict[str, Function] = {
    **dict.fromkeys(("title", "wordcount"), _before_slow),
    **dict.fromkeys(("e", "escape", "truncate"), _before_text),
    "indent": _before_indent,
}
_OWN: dict[str, Function] = {
    "tojson": tojson,
    "from_json": from_json,
    "join": _join,
    "replace": _replace,
    "string": shown,
    "safe": _safe,
    "list": _list,
    "sum": _sum,
    "format": _format,
    "trim": _trim,
    "int": _to_number("int"),
    "float": _to_number("float"),
    **{name: _of_string(name) for name in ("lower", "upper", "capitalize", "center")},
}


def _checked(function: Function, before: Function, made: bool) -> Function:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        limits.budget().tick()
        given = list(args)
        head = [given.pop(0)] if given and isinstance(given[0], _SURROUNDINGS) else []
        if "attribute" in kwargs:
            _check_attribute(kwargs["attribute"])
        for value in (*given[1:], *kwargs.values()):
            if not isinstance(value, str | int):
                weigh(value)
        if given:
            given[0] = before(given[0], given[1:], kwargs)
        if not made:
            result = function(*head, *given, **kwargs)
            if isinstance(result, Iterator):
                return counted(result, ENTRY)
            return result
        foreign = any(map(is_foreign, (*given, *kwargs.values())))
        result = function(*head, *map(to_plain, given), **to_plain(kwargs))
        if not isinstance(result, str):
            return result
        return Tracked(result) if foreign else plain(result)

    return call


FILTERS: dict[str, Function] = {
    **{name: _checked(DEFAULT_FILTERS[name], before, False) for name, before in _FOLLOWED.items()},
    **{name: _checked(DEFAULT_FILTERS[name], before, True) for name, before in _MADE.items()},
    **_OWN,
}


# -- tests ------------------------------------------------------------------------------------------------------------

#: The operators of comparisons, by Jinja's names for them.
COMPARISONS: dict[str, Function] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda a, b: a in b,
    "notin": lambda a, b: a not in b,
}


def _comparing(name: str) -> Function:
    def call(left: Any, right: Any) -> Any:
        right = settled(right)
        comparison(name, left, right)
        return COMPARISONS[name](left, right)

    return call


def _cased(name: str) -> Function:
    def call(value: Any) -> bool:
        text = shown(value)
        method(text, name, (), {})
        return bool(getattr(text, name)())

    return call


_COMPARING = {
    "eq": ("==", "eq", "equalto"),
    "ne": ("!=", "ne"),
    "lt": ("<", "lt", "lessthan"),
    "lteq": ("<=", "le"),
    "gt": (">", "gt", "greaterthan"),
    "gteq": (">=", "ge"),
    "in": ("in",),
}
_CHEAP = (
    "boolean callable defined false float integer iterable mapping none number sameas sequence string true undefined"
).split()
TESTS: dict[str, Function] = {
    **{name: DEFAULT_TESTS[name] for name in _CHEAP},  # type: ignore[misc]
    **{alias: _comparing(name) for name, aliases in _COMPARING.items() for alias in aliases},
    # Not Jinja's: ``%`` after a text would format it.
    "divisibleby": lambda value, num: _no_text(value) % _no_text(num) == 0,
    "even": lambda value: _no_text(value) % 2 == 0,
    "odd": lambda value: _no_text(value) % 2 == 1,
    "lower": _cased("islower"),
    "upper": _cased("isupper"),
}

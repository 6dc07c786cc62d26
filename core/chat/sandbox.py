"""The Jinja environment in which chat templates of model files run.

Same surroundings as in the library the templates were written for (block trimming, loop controls, ``generation``,
``raise_exception``, ``strftime_now``, plain ``tojson``), in an immutable sandbox, with limits on time and size, and
with every string tracked (:mod:`ggfw.chat.tracked`).
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import update_wrapper, wraps
from typing import Any

from jinja2 import TemplateError, Undefined, nodes
from jinja2.compiler import CodeGenerator
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ggfw.chat import limits
from ggfw.chat.tracked import GivenList, Tracked, is_foreign, join, marks_of, plain, to_plain


class Refusal(TemplateError):
    """``raise_exception`` was called: the template itself says what is wrong with the messages."""


class Generation(Extension):
    """``{% generation %}…{% endgeneration %}`` marks the assistant's words for training; here it only prints them."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Give the body as it is."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Code(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:
        self.write("environment.joined((")
        for arg in node.nodes:
            self.visit(arg, frame)
            self.write(", ")
        self.write("))")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """See the module."""

    code_generator_class = _Code
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControls, Generation], finalize=shown
        )
        self.concat = self.joined  # type: ignore[assignment]
        self.globals.pop("lipsum", None)
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = strftime_now
        self.filters = {
            name: _guarded(name, FILTERS.get(name, f)) for name, f in {**self.filters, **FILTERS}.items()
        }

    # -- repetition

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            loop.iter = nodes.Call(nodes.EnvironmentAttribute("counted"), [loop.iter], [], None, None)
        template.set_environment(self)
        return template

    @staticmethod
    def counted(items: Any) -> Iterator[Any]:
        """What every loop runs over: ``items``, each one counted."""
        budget = limits.budget()
        for item in items:
            budget.tick()
            yield item

    # -- making strings

    @staticmethod
    def joined(parts: Iterable[Any]) -> str:
        """``~``, blocks and macros: the parts as one string."""
        texts = [shown(p) for p in parts]
        limits.budget().spend(sum(map(len, texts)))
        return join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """``+ * ** %`` with their results' sizes checked first."""
        budget = limits.budget()
        if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            budget.spend(_size(left, len(left) + len(right)))
        elif operator == "*":
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() + right.bit_length())
            else:
                for sized, n in ((left, right), (right, left)):
                    if isinstance(n, int) and hasattr(sized, "__len__"):
                        budget.spend(_size(sized, len(sized) * max(n, 0)))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))
        elif operator == "%" and isinstance(left, str):
            return _percent(left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``"…".format(…)``: sandboxed, with its widths checked, and its result as foreign as its arguments."""
        inner = super().wrap_str_format(value)
        if inner is None:
            return None
        template = value.__self__

        def checked(*args: Any, **kwargs: Any) -> str:
            _check_widths(template, (args, kwargs))
            limits.budget().spend(len(template) + sum(len(shown(v)) for v in (*args, *kwargs.values())))
            foreign = is_foreign(template) or is_foreign(args) or is_foreign(kwargs)
            text = inner(*to_plain(args), **to_plain(kwargs))
            return Tracked(text) if foreign else plain(text)

        return update_wrapper(checked, inner)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function or method of the template's world."""
        limits.budget().tick()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str) and isinstance(__obj, types.BuiltinMethodType | types.MethodType):
            _check_method(owner, __obj.__name__, args, kwargs)
            if not isinstance(owner, Tracked) and (is_foreign(list(args)) or is_foreign(kwargs)):
                # A method of the template's own string with foreign arguments: follow the marks there too.
                __obj = getattr(Tracked(owner, bytes(len(owner))), __obj.__name__)
                args = tuple(list(a) if isinstance(a, types.GeneratorType) else a for a in args)
        return super().call(__context, __obj, *args, **kwargs)

    # -- reaching things

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Lists that the template made itself may grow; those it was given may not."""
        if attr in ("append", "extend", "insert", "pop") and type(obj) is list:
            return True
        if isinstance(obj, str) and attr in ("translate", "maketrans", "encode"):
            return False
        return super().is_safe_attribute(obj, attr, value)


def shown(value: Any) -> str:
    """What ``{{ value }}`` prints."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool | int | float | Undefined):
        return str(value)
    text = str(to_plain(value))
    return Tracked(text) if is_foreign(value) else text


def raise_exception(message: str) -> None:
    """The templates' way to refuse."""
    raise Refusal(plain(str(message)))


def strftime_now(format: str) -> str:
    """The current local time, by a ``strftime`` pattern."""
    return datetime.now().strftime(plain(format))


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: no HTML escapes, no ASCII escapes, keys in their own order."""
    if isinstance(indent, int) and indent > 64:
        raise limits.LimitExceeded("it indents JSON by more than 64 columns")
    value = list(value) if isinstance(value, types.GeneratorType) else value
    text = json.dumps(
        to_plain(value), ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return Tracked(text) if is_foreign(value) else text


def _join_filter(value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    if attribute is not None:
        value = [_item(v, attribute) for v in value]
    texts = [shown(v) for v in value]
    limits.budget().spend(sum(map(len, texts)) + len(d) * len(texts))
    return join(texts, d)


def _item(value: Any, attribute: str) -> Any:
    for name in str(attribute).split("."):
        value = value[int(name)] if name.isdigit() else value.get(name, "") if hasattr(value, "get") else ""
    return value


def _replace_filter(value: Any, old: str, new: str, count: int | None = None) -> str:
    text, old, new = shown(value), shown(old), shown(new)
    _check_method(text, "replace", (old, new), {})
    tracked = text if isinstance(text, Tracked) else Tracked(text, bytes(len(text)))
    out = tracked.replace(old, new, -1 if count is None else count)
    return out if isinstance(out, Tracked) and 1 in out._marks else plain(out)


class Safe(Tracked):
    """What the filter ``safe`` makes of the template's own text: HTML, to which other text is added escaped.

    Prompts are no HTML, but a template that says ``safe`` gets what the reference library, or rather Jinja, does with
    it. Text that was given to the template, and text in front, stay as they are: escaping them could only do harm.
    """

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, str):
            return NotImplemented
        limits.budget().spend(len(other) + 5 * sum(str.count(other, c) for c in "&<>'\""))
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
        text = text.replace(char, escape) if char in text else text
    return text


#: Filters of our own: they replace Jinja's.
FILTERS: dict[str, Callable[..., Any]] = {
    "tojson": tojson,
    "join": _join_filter,
    "replace": _replace_filter,
    "string": shown,
    "safe": _safe,
    "from_json": lambda text: json.loads(plain(text)),
}

#: Jinja's filters that only hand strings on, or use methods of theirs that keep the marks.
_FOLLOWED = frozenset(
    "abs attr batch capitalize count d default dictsort first float groupby int items last length list lower map max"
    " min random reject rejectattr reverse round select selectattr slice sort sum trim unique upper".split()
)
_SIZED = frozenset("batch center indent slice truncate wordwrap".split())


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that counts, and whose result is foreign if anything that went in was."""

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        budget = limits.budget()
        budget.tick()
        if name in _SIZED:
            _check_numbers(args, kwargs)
        if name == "format":
            _check_widths(args[0], (args, kwargs))
        if name in _FOLLOWED or name in FILTERS:
            result = function(*args, **kwargs)
            if isinstance(result, str | list):
                budget.spend(_size(result, len(result)))
            return result
        values = [list(a) if isinstance(a, types.GeneratorType) else a for a in args]
        # The first argument may be the environment or a context, which is not ours to convert.
        foreign = any(is_foreign(v) for v in [*values, *kwargs.values()] if not isinstance(v, _SURROUNDINGS))
        values = [v if isinstance(v, _SURROUNDINGS) else to_plain(v) for v in values]
        result = function(*values, **to_plain(kwargs))
        if isinstance(result, str):
            budget.spend(len(result))
            return Tracked(result) if foreign else plain(result)
        return result

    return guarded


_SURROUNDINGS = (ChatEnvironment, Context, nodes.EvalContext, Undefined)
_WIDTH = re.compile(r"\d{4,}")
_PERCENT = re.compile(r"%([sdi%])")


def _size(kind: Any, n: int) -> int:
    """``n`` characters, or list entries of 8 bytes."""
    return n if isinstance(kind, str) else 8 * n


def _check_bits(n: int) -> None:
    if n > limits.MAX_BITS:
        raise limits.LimitExceeded(f"it computes with integers of more than {limits.MAX_BITS} bits")


def _check_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > limits.MAX_NUMBER:
            raise limits.LimitExceeded(f"it asks for {value} of something")


def _check_widths(template: Any, values: Any) -> None:
    """Refuse format strings with huge widths, and numbers that could be one."""
    args, kwargs = values
    if _WIDTH.search(str(template)) or "*" in str(template):
        raise limits.LimitExceeded("it formats with a huge or variable width")
    if "{" in str(template):
        _check_numbers(args, kwargs)


def _check_method(owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The size of what a string's method will make."""
    budget = limits.budget()
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        _check_numbers(args, kwargs)
        if name == "expandtabs":
            budget.spend(len(owner) * max([8, *(a for a in args if isinstance(a, int))]))
    elif name == "replace" and len(args) >= 2 and all(isinstance(a, str) for a in args[:2]):
        budget.spend(len(owner) + str.count(owner, args[0]) * len(args[1]))
    elif name == "join" and args and isinstance(args[0], list | tuple | str):
        budget.spend(sum(len(v) + len(owner) for v in args[0] if isinstance(v, str)))
    else:
        budget.spend(len(owner))


def _percent(template: str, values: Any) -> str:
    """``template % values``. Plain ``%s`` and ``%d`` keep the marks; other conversions give a foreign result."""
    given = values if isinstance(values, tuple) else (values,)
    _check_widths(template, ((), {}))
    limits.budget().spend(len(template) + sum(len(shown(v)) for v in given))
    foreign = is_foreign(template) or is_foreign(values)
    own = Tracked(template, bytes(len(template))) if not isinstance(template, Tracked) else template
    found = list(_PERCENT.finditer(plain(template)))
    simple = not isinstance(values, dict) and plain(template).count("%") == sum(
        2 if m[1] == "%" else 1 for m in found
    )
    if not foreign or not simple or sum(m[1] != "%" for m in found) != len(given):
        text = plain(template) % to_plain(values)
        return Tracked(text) if foreign else text
    out: list[str] = []
    at, rest = 0, list(given)
    for m in found:
        out.append(own[at : m.start()])
        out.append("%" if m[1] == "%" else shown(rest.pop(0) if m[1] == "s" else int(rest.pop(0))))
        at = m.end()
    return join([*out, own[at:]])


__all__ = ["ChatEnvironment", "GivenList", "Refusal", "shown", "tojson"]

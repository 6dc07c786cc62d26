"""The Jinja environment in which chat templates of model files run.

Same surroundings as in the library the templates were written for (block trimming, loop controls, ``generation``,
``raise_exception``, ``strftime_now``, plain ``tojson``), in an immutable sandbox, with limits on time and size, and
with every string tracked (:mod:`ggfw.chat.tracked`).

Filters, tests and methods are those on lists (:mod:`ggfw.chat.filters`, :mod:`ggfw.chat.metering`); they and all
operators are charged to a budget before they run. Loops, macros and blocks are charged for what stands in them. Nothing
is computed while a template is compiled.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import update_wrapper
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls
from jinja2.lexer import TokenStream
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ggfw.chat import limits, metering
from ggfw.chat.filters import COMPARISONS, FILTERS, TESTS, Safe, joined, percent, shown, tojson
from ggfw.chat.tracked import GivenList, Tracked, is_foreign, plain, to_plain


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
    """Code in which everything that can take long goes through the environment."""

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:
        self._through("joined", node.nodes, frame, "((", ", ", "))")

    def visit_Compare(self, node: nodes.Compare, frame: Any) -> None:
        self.write("environment.compared(")
        self.visit(node.expr, frame)
        self.write(", (")
        for operand in node.ops:
            self.write(f"({operand.op!r}, ")
            self.visit(operand.expr, frame)
            self.write("), ")
        self.write("))")

    def visit_Getitem(self, node: nodes.Getitem, frame: Any) -> None:
        if not isinstance(node.arg, nodes.Slice):
            return super().visit_Getitem(node, frame)
        nothing = nodes.Const(None)
        parts = [p or nothing for p in (node.arg.start, node.arg.stop, node.arg.step)]
        return self._through("sliced", [node.node, *parts], frame)

    def visit_Dict(self, node: nodes.Dict, frame: Any) -> None:
        self.write("{")
        for item in node.items:
            self._through("key", [item.key], frame)
            self.write(": ")
            self.visit(item.value, frame)
            self.write(", ")
        self.write("}")

    def visit_Call(self, node: nodes.Call, frame: Any, forward_caller: bool = False) -> None:
        if isinstance(node.node, nodes.EnvironmentAttribute):
            return self._through(node.node.name, node.args, frame)
        return super().visit_Call(node, frame, forward_caller=forward_caller)

    def _through(
        self, name: str, args: list[Any], frame: Any, begin: str = "(", between: str = ", ", end: str = ")"
    ) -> None:
        self.write(f"environment.{name}{begin}")
        for arg in args:
            self.visit(arg, frame)
            self.write(between)
        self.write(end)


@pass_context
def _finalize(context: Any, value: Any) -> str:
    """What an output prints. It wants the context so that Jinja does not call it while it compiles."""
    return shown(value)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """See the module."""

    code_generator_class = _Code
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControls, Generation],
            finalize=_finalize,
            optimized=False,
        )
        self.concat = self.joined  # type: ignore[assignment]
        self.globals.pop("lipsum", None)
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = strftime_now
        self.filters = dict(FILTERS)
        self.tests = dict(TESTS)

    joined = staticmethod(joined)
    key = staticmethod(metering.hashed)

    # -- reading templates

    def _tokenize(
        self, source: str, name: str | None, filename: str | None = None, state: str | None = None
    ) -> TokenStream:
        def few() -> Iterator[Any]:
            for n, token in enumerate(stream):
                if n > limits.MAX_TOKENS:
                    raise TemplateSyntaxError(f"more than {limits.MAX_TOKENS} tokens", token.lineno)
                yield token

        stream = super()._tokenize(source, name, filename, state)
        return TokenStream(few(), name, filename)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for node in template.find_all(nodes.EvalContextModifier):
            raise TemplateSyntaxError("chat templates cannot switch escaping", node.lineno)
        _charge_bodies(template)
        found: list[Any] = list(template.find_all((nodes.Call, nodes.Filter, nodes.Test)))
        for call in found:
            if call.dyn_args is not None:
                call.dyn_args = _call("spread", [call.dyn_args])
        template.set_environment(self)
        return template

    @staticmethod
    def counted(items: Any) -> Iterator[Any]:
        """What every loop runs over: ``items``, each one counted."""
        return metering.counted(items)

    @staticmethod
    def passed(steps: int, size: int) -> str:
        """A body that is run once more: its share of steps, and bytes of outputs and literals in it."""
        limits.budget().spend(size, steps)
        return ""

    @staticmethod
    def spread(args: Any) -> list[Any]:
        """What ``*args`` of a call stands for."""
        return metering.listed(args)

    # -- operators

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """All operators between two values, with their results' sizes checked first."""
        if operator == "%" and isinstance(left, str):
            return percent(left, right)
        metering.operation(operator, left, right)
        if operator == "+" and isinstance(left, Safe) and isinstance(right, str):
            limits.budget().spend(6 * metering.volume(right), 1 + (len(right) >> 4))
        return super().call_binop(context, operator, left, right)

    @staticmethod
    def compared(left: Any, pairs: tuple[tuple[str, Any], ...]) -> Any:
        """``left < right < …`` and the like."""
        result: Any = True
        for operator, right in pairs:
            right = metering.settled(right)
            metering.comparison(operator, left, right)
            result = COMPARISONS[operator](left, right)
            if not result:
                return result
            left = right
        return result

    @staticmethod
    def sliced(value: Any, start: Any, stop: Any, step: Any) -> Any:
        """``value[start:stop:step]``."""
        part = slice(start, stop, step)
        if isinstance(value, str | list | tuple):
            n = len(range(*part.indices(len(value))))
            wide = 1 if isinstance(value, str) and value.isascii() else 8
            limits.budget().spend(n * (wide + isinstance(value, Tracked)), 1 + (n >> 7))
        return value[part]

    def getitem(self, obj: Any, argument: Any) -> Any:
        """``obj[argument]``."""
        return super().getitem(obj, metering.looked_up(argument))

    # -- calls

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``"…".format(…)``: sandboxed, with its size checked, and its result as foreign as its arguments."""
        inner = super().wrap_str_format(value)
        if inner is None:
            return None
        template = value.__self__

        def checked(*args: Any, **kwargs: Any) -> str:
            metering.formatting(template, (*args, *kwargs.values()), "{")
            foreign = is_foreign(template) or is_foreign(args) or is_foreign(kwargs)
            text = inner(*to_plain(args), **to_plain(kwargs))
            return Tracked(text) if foreign else plain(text)

        return update_wrapper(checked, inner)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function or method of the template's world."""
        limits.budget().tick()
        if isinstance(__obj, Macro):
            return super().call(__context, __obj, *args, **kwargs)
        if isinstance(__obj, LoopContext):
            return super().call(__context, __obj, *map(metering.counted, args))
        owner = getattr(__obj, "__self__", None)
        args = tuple(metering.settled(a) for a in args)
        kwargs = {k: metering.settled(v) for k, v in kwargs.items()}
        if isinstance(__obj, types.BuiltinMethodType | types.MethodType) and isinstance(owner, _BUILT_IN):
            name = __obj.__name__
            if isinstance(owner, str) and name == "join" and args:
                args = (args[0] if isinstance(args[0], list | tuple) else metering.listed(args[0]), *args[1:])
            metering.method(owner, name, args, kwargs)
            if isinstance(owner, str) and not isinstance(owner, Tracked):
                if is_foreign(args) or is_foreign(kwargs):
                    # A method of the template's own string with foreign arguments: follow the marks there too.
                    __obj = getattr(Tracked(owner, bytes(len(owner))), name)
        else:
            for value in (*args, *kwargs.values()):
                metering.weigh(value)
        return super().call(__context, __obj, *args, **kwargs)

    # -- reaching things

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Methods on the lists. Lists that the template made itself may grow; those it was given may not."""
        if isinstance(obj, str):
            return attr in metering.STR_METHODS
        if isinstance(obj, list):
            return attr in (metering.OWN_LIST_METHODS if type(obj) is list else metering.LIST_METHODS)
        if isinstance(obj, tuple):
            return attr in metering.TUPLE_METHODS or attr in ("grouper", "list")
        if isinstance(obj, dict):
            return attr in metering.DICT_METHODS
        if obj is None or isinstance(obj, type | int | float | range):
            return False
        return super().is_safe_attribute(obj, attr, value)


_BUILT_IN = (str, list, tuple, dict)


def _call(name: str, args: list[Any], lineno: int = 1) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None, lineno=lineno)


def _charge_bodies(node: nodes.Node) -> tuple[int, int]:
    """Let each body that can be run again charge for itself; the nodes, and entries of outputs and literals, inside."""
    count, entries = 1, 0
    for child in node.iter_child_nodes():
        inner = _charge_bodies(child)
        count, entries = count + inner[0], entries + inner[1]
    if isinstance(node, nodes.Output):
        entries += len(node.nodes)
    elif isinstance(node, nodes.List | nodes.Tuple | nodes.Dict):
        entries += 8 + 4 * len(node.items)
    elif isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block):
        if isinstance(node, nodes.For):
            node.iter = _call("counted", [node.iter])
        charge = _call("passed", [nodes.Const(1 + count // 16), nodes.Const(8 * entries)])
        node.body.insert(0, nodes.ExprStmt(charge, lineno=node.lineno))
    return count, entries


def raise_exception(message: str) -> None:
    """The templates' way to refuse."""
    raise Refusal(plain(shown(message)))


def strftime_now(format: str) -> str:
    """The current local time, by a ``strftime`` pattern."""
    if len(format) > 256:
        raise limits.LimitExceeded("it writes the time by a pattern of more than 256 characters")
    text = datetime.now().strftime(plain(format))
    return Tracked(text) if isinstance(format, Tracked) else text


__all__ = ["ChatEnvironment", "GivenList", "Refusal", "SecurityError", "Tracked", "shown", "tojson"]

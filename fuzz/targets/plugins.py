"""Plugins and their metadata: entry points, hooks and descriptors with nonsense in them."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

from fuzz.choices import Choices
from fuzz.target import Target
from ggfw.descriptors import KINDS
from ggfw.errors import GgfwError
from ggfw.hookspecs import hookimpl
from ggfw.registry import Registry


class _Odd:
    """An object on which every attribute is odd."""

    def __init__(self, c: Choices) -> None:
        self._c = c

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._c.chance(30):
            raise RuntimeError("no")
        return self._c.json(1)


def _value(c: Choices) -> Any:
    kind = c.below(9)
    if kind == 0:
        return lambda *a, **k: c.json(1)
    if kind == 1:
        return _Odd(c)
    if kind == 2:
        return "os:getcwd"
    if kind == 3:
        return "no.such.module:thing"
    if kind == 4:
        return ["llama", c.text(4)]
    return c.json(2)


def _raises(error: type[BaseException]) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        raise error("no")

    return function


def _descriptor(c: Choices, kind: str) -> Any:
    cls = KINDS[kind]
    fields = {name: _value(c) for name in cls.__dataclass_fields__ if name != "kind" and not c.chance(20)}
    if c.chance(70):
        fields["name"] = c.pick(("toy", "llama", "Q4_0", "native", "x" * 500, "a/b", ""))
    if c.chance(30) and "match" in cls.__dataclass_fields__:
        fields["match"] = _raises(c.pick((ValueError, RecursionError, MemoryError)))
    try:
        return cls(**fields)
    except TypeError:
        return c.json(1)


def target() -> Target:
    """See the module."""

    def run(data: bytes) -> None:
        c = Choices(data)
        names = []
        points = []
        for i in range(c.between(1, 3)):
            module = ModuleType(f"_fuzz_plugin_{i}")
            if not c.chance(10):
                module.GGFW_PLUGIN_API = 1 if not c.chance(10) else c.json(0)  # type: ignore[attr-defined]
            for kind in KINDS:
                if c.chance(40):
                    name = f"ggfw_register_{kind if not c.chance(5) else 'nonsense'}"
                    results = [_descriptor(c, kind) for _ in range(c.below(3))]
                    answer: Any = results if not c.chance(15) else _value(c)
                    error = c.pick((None, None, None, ValueError, SystemExit, RecursionError))

                    def hook(answer: Any = answer, error: Any = error) -> Any:
                        if error:
                            raise error("no")
                        return answer

                    def plain() -> Any:
                        return None

                    plain.__name__ = name
                    made = hookimpl(_no_arguments(hook, name))
                    setattr(module, name, made)
            sys.modules[module.__name__] = module
            names.append(module.__name__)
            points.append(
                EntryPoint(c.pick((f"p{i}", "architectures.llama", c.text(5))), module.__name__, "ggfw")
            )
        if c.chance(20):
            points.append(EntryPoint("bad", c.pick(("no.such", "os:nothing", ":", "", "a b", "..")), "ggfw"))
        try:
            registry = Registry.load(points, environ={})
            rows = registry.rows()
            assert rows
            for row in rows:
                assert isinstance(row.name, str) and isinstance(row.reason, str)
            metadata = {"general.architecture": "llama", "tokenizer.chat_template": "x"}
            for ask in (
                lambda: registry.architecture_for(metadata), lambda: registry.dialect_for(metadata), registry.backend,
                lambda: registry.quant_format_by_type(c.below(40)), lambda: list(registry.sampler_stages),
            ):  # fmt: skip
                try:
                    ask()
                except GgfwError:
                    pass
        finally:
            for name in names:
                sys.modules.pop(name, None)

    return Target(run, [bytes(range(256)), bytes(range(255, -1, -1))])


def _no_arguments(hook: Any, name: str) -> Any:
    """A function without parameters, as the specification wants it."""

    def function() -> Any:
        return hook()

    function.__name__ = function.__qualname__ = name
    return function

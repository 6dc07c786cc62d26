"""Each of the seven hooks: what raises, hangs, never ends or gives nonsense is a row, and everything else works."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cli_support import COMMAND
from test_faults_plugins import install

from ggfw.hookspecs import PLUGIN_API, hookimpl
from ggfw.registry import Registry

KINDS = (
    "architectures", "quant_formats", "kernel_backends", "chat_dialects", "skills", "model_sources", "sampler_stages",
)  # fmt: skip


class Hostile:
    """An object of which nothing can be asked."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"nobody may ask for {name}")

    def __repr__(self) -> str:
        raise RuntimeError("nobody may see it")


class Endless:
    """Says of itself that it is a descriptor, and of every attribute that it is another one of these."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Endless()


def raises() -> Any:
    raise ValueError("a plugin's own error")


def exits() -> Any:
    raise SystemExit(0)


def overflows() -> Any:
    return overflows()


class Unreadable(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("nobody may see it")


def unreadable() -> Any:
    raise Unreadable


class Leaving:
    """An object that ends whoever asks it for anything."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(0)


class LeavingError(Exception):
    """An error that ends whoever shows it."""

    def __str__(self) -> str:
        raise SystemExit(0)


def leaves() -> Any:
    raise LeavingError


class _NoName(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("nobody may know it")


class Nameless(metaclass=_NoName):
    """An object whose class does not give its name."""


def half_way() -> Iterator[Any]:
    yield 3
    raise ValueError("a plugin's own error")


def never_ends() -> Iterator[Any]:
    while True:
        yield None


def gives(value: Any) -> Callable[[], Any]:
    return lambda: value


WRONG: dict[str, Callable[[], Any]] = {
    "raises": raises, "an error that cannot be read": unreadable,
    "exits": exits, "recursion": overflows, "half way": half_way, "never ends": never_ends,
    "nothing": gives(None), "a number": gives(3), "text": gives("nonsense"), "bytes": gives(b"\xff"),
    "numbers": gives([1, 2.5, None]), "a mapping": gives({"a": 1}), "itself": lambda: [lambda: None],
    "a class": gives([dict]), "hostile objects": gives([Hostile()]), "a hostile list": lambda: Hostile(),
    "leaving objects": gives([Leaving()]), "an error that leaves": leaves, "no name": gives([Nameless()]),
    "endless objects": gives([Endless()]), "lists in lists": gives([[[]]]),
}  # fmt: skip


@pytest.fixture(scope="module")
def doors() -> list[EntryPoint]:
    return [ep for ep in entry_points(group="ggfw") if ep.value.startswith("ggfw.plugins")]


@pytest.fixture(scope="module")
def rows_of_ours(doors: list[EntryPoint]) -> list[tuple[str, str, str]]:
    return sorted((row.kind, row.name, row.state) for row in Registry.load(doors, {}).rows())


def plugin(monkeypatch: pytest.MonkeyPatch, hooks: dict[str, Callable[[], Any]]) -> EntryPoint:
    """A plugin with these hooks."""
    module = ModuleType("bad_plugin")
    module.GGFW_PLUGIN_API = PLUGIN_API  # type: ignore[attr-defined]
    for kind, what in hooks.items():
        hook = calling(what)
        hook.__name__ = f"ggfw_register_{kind}"
        setattr(module, hook.__name__, hookimpl(hook))
    monkeypatch.setitem(sys.modules, "bad_plugin", module)
    return EntryPoint("bad", "bad_plugin", "ggfw")


def calling(what: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: what()


@pytest.mark.parametrize("what", list(WRONG))
def test_nonsense_of_every_hook(
    monkeypatch: pytest.MonkeyPatch,
    doors: list[EntryPoint],
    rows_of_ours: list[tuple[str, str, str]],
    what: str,
) -> None:
    """All seven hooks of one plugin are wrong at once: a row for each of them, and not one less of ours."""
    begin = time.process_time()
    registry = Registry.load([*doors, plugin(monkeypatch, dict.fromkeys(KINDS, WRONG[what]))], {})
    rows = registry.rows()
    bad = [row for row in rows if row.plugin == "bad"]
    assert {row.state for row in bad} == {"failed"} and all(row.reason for row in bad), bad
    if all(row.stage == "hook" for row in bad):
        assert sorted(row.reason.split(":")[0] for row in bad) == sorted(f"ggfw_register_{k}" for k in KINDS)
    else:
        assert {row.kind for row in bad} == set(KINDS)
    ours = sorted((row.kind, row.name, row.state) for row in rows if row.plugin != "bad")
    assert ours == rows_of_ours
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_hook_that_hangs_is_named(
    monkeypatch: pytest.MonkeyPatch, doors: list[EntryPoint], kind: str
) -> None:
    monkeypatch.setattr("ggfw.discovery.SLOW", 0.02)
    told, go_on = threading.Event(), threading.Event()
    said: list[str] = []

    def warn(message: str, *args: Any, **kw: Any) -> None:
        said.append(message)
        told.set()

    def hangs() -> Any:
        assert told.wait(20), "nobody said what hangs"
        go_on.set()
        return []

    monkeypatch.setattr(warnings, "warn", warn)
    Registry.load([*doors, plugin(monkeypatch, {kind: hangs})], {})
    assert go_on.is_set() and "the plugin bad" in said[0] and "GGFW_DISABLE_PLUGINS=bad" in said[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_whose_hook_hangs_can_be_left_out(kind: str, tmp_path: Path) -> None:
    """The command line says which it is within seconds, and works without it."""
    code = (
        "import time\nfrom ggfw.hookspecs import hookimpl\nGGFW_PLUGIN_API = 1\n"
        f"@hookimpl\ndef ggfw_register_{kind}():\n    time.sleep(1000)\n"
    )
    env = install(tmp_path, code)
    process = subprocess.Popen([*COMMAND, "plugins", "list"], stderr=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stderr is not None
        assert "GGFW_DISABLE_PLUGINS=ggfw-bad" in process.stderr.readline()
    finally:
        process.kill()
        process.wait()
    done = subprocess.run(
        [*COMMAND, "plugins", "list"], capture_output=True, text=True, timeout=60,
        env={**env, "GGFW_DISABLE_PLUGINS": "ggfw-bad"},
    )  # fmt: skip
    assert done.returncode == 0 and "disabled" in done.stdout

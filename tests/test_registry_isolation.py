"""A broken plugin is a row with its stage and its error, and costs nothing else: eight ways to be broken, and more.

A folder with ``x.py`` and ``x-0.1.dist-info`` on ``sys.path`` is a distribution, so no package has to be installed.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from ggfw.discovery import Row
from ggfw.errors import PluginError
from ggfw.registry import Registry

GOOD = """
    from ggfw.descriptors import ArchitectureSpec
    from ggfw.hookspecs import hookimpl

    GGFW_PLUGIN_API = 1

    @hookimpl
    def ggfw_register_architectures():
        return [ArchitectureSpec(name="toy", gguf_names=("toy",), load="nowhere:Toy")]
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Make a distribution out of a module's text."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(module: str, text: str, entry: str | None = None, version: str = "0.1") -> None:
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(text))
        info = tmp_path / f"{module}-{version}.dist-info"
        info.mkdir()
        name = module.replace("_", "-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[ggfw]\n{entry or module} = {module}\n")

    yield make
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Registry]:
    """Load a registry from the distributions of ``install`` alone, or together with the built-in ones."""

    def make(environ: dict[str, str] | None = None, builtin: bool = False) -> Registry:
        def wanted(ep: EntryPoint) -> bool:  # nothing else that happens to be installed here
            assert ep.dist is not None
            ours = builtin and ep.dist.metadata["Name"] == "ggfw"
            return ours or Path(str(ep.dist.locate_file(""))).resolve() == tmp_path.resolve()

        doors = [ep for ep in entry_points(group="ggfw") if wanted(ep)]
        return Registry.load(doors, environ or {})

    return make


def row(registry: Registry, plugin: str, name: str | None = None) -> Row:
    found = [r for r in registry.rows() if r.plugin == plugin and (name is None or r.name == name)]
    assert len(found) == 1, found
    return found[0]


BROKEN = {
    "import_error": ("import torch_not_here", "failed", "import", "ModuleNotFoundError: No module named"),
    "system_exit": ("raise SystemExit(3)", "failed", "import", "SystemExit: 3"),
    "bad_argument": (
        """
        from ggfw.hookspecs import hookimpl
        GGFW_PLUGIN_API = 1
        @hookimpl
        def ggfw_register_architectures(nonsense):
            return []
        """,
        "failed",
        "validate",
        "nonsense",
    ),
    "unknown_hook": (
        """
        from ggfw.hookspecs import hookimpl
        GGFW_PLUGIN_API = 1
        @hookimpl
        def ggfw_register_architecture():
            return []
        """,
        "failed",
        "validate",
        "no such hook: ggfw_register_architecture; did you mean ggfw_register_architectures?",
    ),
    "old_api": (
        GOOD.replace("API = 1", "API = 0"),
        "incompatible",
        "validate",
        "plugin API 0, this ggfw speaks 1",
    ),
    "raising_hook": (
        """
        from ggfw.hookspecs import hookimpl
        GGFW_PLUGIN_API = 1
        @hookimpl
        def ggfw_register_architectures():
            raise RuntimeError("boom at hook call")
        """,
        "failed",
        "hook",
        "ggfw_register_architectures: RuntimeError: boom at hook call",
    ),
    "no_api": (
        GOOD.replace("GGFW_PLUGIN_API = 1", ""),
        "incompatible",
        "validate",
        "states no GGFW_PLUGIN_API",
    ),
    "no_hook": ("GGFW_PLUGIN_API = 1", "failed", "validate", "implements no hook"),
    "syntax_error": ("def (", "failed", "import", "SyntaxError"),
    "half_way": (
        """
        from ggfw.hookspecs import hookimpl
        GGFW_PLUGIN_API = 1
        @hookimpl
        def ggfw_register_skills():
            yield 1 / 0
        """,
        "failed",
        "hook",
        "ZeroDivisionError",
    ),
    "returns_none": (
        """
        from ggfw.hookspecs import hookimpl
        GGFW_PLUGIN_API = 1
        @hookimpl
        def ggfw_register_skills():
            pass
        """,
        "failed",
        "hook",
        "TypeError",
    ),
    "wrapper": (
        """
        from ggfw.hookspecs import hookimpl
        GGFW_PLUGIN_API = 1
        @hookimpl(wrapper=True)
        def ggfw_register_skills():
            return (yield)
        """,
        "failed",
        "validate",
        "is a wrapper",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_plugin_is_a_row_and_costs_nothing_else(
    case: str, install: Install, load: Callable[..., Registry]
) -> None:
    text, state, stage, reason = BROKEN[case]
    install("aaa_first", GOOD.replace("toy", "first"))
    install(f"broken_{case}", text)
    install("zzz_last", GOOD.replace("toy", "last"))
    registry = load()
    broken = row(registry, f"broken_{case}")
    assert (broken.state, broken.stage) == (state, stage)
    assert reason in broken.reason and "\n" not in broken.reason
    assert (broken.version, broken.distribution) == ("0.1", f"broken-{case.replace('_', '-')}")
    assert list(registry.architectures) == ["first", "last"]
    assert registry.broken() == [broken]


def test_all_broken_at_once_beside_the_builtins(install: Install, load: Callable[..., Registry]) -> None:
    alone = load(builtin=True)
    for case, (text, *_) in BROKEN.items():
        install(f"broken_{case}", text)
    install("good", GOOD)
    registry = load(builtin=True)
    assert set(registry.architectures) == {*alone.architectures, "toy"}
    assert [r for r in registry.rows() if r.distribution == "ggfw"] == alone.rows()
    assert {r.plugin for r in registry.broken()} >= {f"broken_{case}" for case in BROKEN}


def test_stolen_name_leaves_the_owner_in_place(install: Install, load: Callable[..., Registry]) -> None:
    install("aaa_thief", GOOD.replace('name="toy"', 'name="stolen"'), entry="kernel_backends.generic")
    registry = load(builtin=True)
    thief = [r for r in registry.rows() if r.distribution == "aaa-thief"]
    assert [(r.state, r.stage) for r in thief] == [("failed", "name")]
    assert "belongs to the distribution ggfw" in thief[0].reason
    assert "generic" in registry.kernel_backends and "stolen" not in registry.architectures
    assert "aaa_thief" not in sys.modules


def test_optional_hook_of_a_later_version_is_fine(install: Install, load: Callable[..., Registry]) -> None:
    later = """
        @hookimpl(optionalhook=True)
        def ggfw_register_tokenizers():
            return []
    """
    install("both", textwrap.dedent(GOOD) + textwrap.dedent(later))
    head = GOOD.partition("    @hookimpl")[0]
    install("only_later", textwrap.dedent(head) + textwrap.dedent(later))
    registry = load()
    assert row(registry, "both").state == "ok"
    assert row(registry, "only_later").state == "ok" and "nothing here" in row(registry, "only_later").reason
    assert not registry.broken()


WRONG = {
    "'toy'": "returned str, expected ArchitectureSpec",
    "ArchitectureSpec(name='to y', gguf_names=('a',), load='m:C')": "the name 'to y' does not match",
    "ArchitectureSpec(name='toy', gguf_names='a', load='m:C')": "gguf_names must be",
    "ArchitectureSpec(name='toy', gguf_names=('a',), load='m.C')": "expected a callable or 'package.module:Name'",
    "ArchitectureSpec(name=3, gguf_names=('a',), load='m:C')": "the name 3 does not match",
    "ArchitectureSpec(name='toy', gguf_names=('a',), load='m:C', priority='high')": "priority is 'high'",
    "ArchitectureSpec(name='toy', gguf_names=('a',), load='m:C', summary=None)": "summary is None",
    "ArchitectureSpec(name='toy', gguf_names=('a',), load='m:C', match=5)": "match is 5; expected a callable",
    "Skill(name='toy', description='x', load='m:C')": "returned Skill, expected ArchitectureSpec",
    "Odd(name='toy', gguf_names=('a',), load='m:C')": "its check failed: RuntimeError: odd",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_descriptor_costs_only_itself(
    wrong: str, install: Install, load: Callable[..., Registry]
) -> None:
    odd = """
    class Odd(ArchitectureSpec):
        def problems(self):
            raise RuntimeError("odd")
    """
    text = textwrap.dedent(GOOD).replace("import ArchitectureSpec", "import ArchitectureSpec, Skill")
    text = text.replace("@hookimpl", textwrap.dedent(odd) + "\n@hookimpl")
    text = text.replace("return [", f"return [{wrong}, ").replace('name="toy"', 'name="good"')
    install("mixed", text)
    registry = load()
    assert list(registry.architectures) == ["good"]
    (bad,) = registry.broken()
    assert (bad.kind, bad.stage) == ("architectures", "descriptor")
    assert WRONG[wrong] in bad.reason


def test_lists_of_the_user(install: Install, load: Callable[..., Registry]) -> None:
    install("one", GOOD.replace('"toy"', '"a"'))
    install("two", GOOD.replace('"toy"', '"b"'))
    builtin = set(load(builtin=True).kernel_backends)

    def names(**environ: str) -> list[str]:
        registry = load(environ, builtin=True)
        assert set(registry.kernel_backends) >= builtin - {"generic"}
        return [name for name in registry.architectures if name in ("a", "b")]

    assert names() == ["a", "b"]
    assert names(GGFW_PLUGINS="two") == ["b"]
    assert names(GGFW_PLUGINS="") == []
    assert names(GGFW_DISABLE_PLUGINS="two") == ["a"]
    assert names(GGFW_DISABLE_PLUGINS=" one , b ") == []
    registry = load({"GGFW_DISABLE_PLUGINS": "one,kernel_backends.generic"}, builtin=True)
    assert row(registry, "one").state == "disabled"
    assert row(registry, "kernel_backends.generic").reason == "named in GGFW_DISABLE_PLUGINS"
    assert "generic" not in registry.kernel_backends
    assert load({"GGFW_PLUGINS": "two"}).rows()[-1].reason == "not named in GGFW_PLUGINS"


def test_a_disabled_plugin_is_not_imported(install: Install, load: Callable[..., Registry]) -> None:
    install("never_seen", GOOD)
    assert not load({"GGFW_DISABLE_PLUGINS": "never-seen"}).architectures
    assert "never_seen" not in sys.modules


def test_strict_makes_a_broken_plugin_an_error(install: Install, load: Callable[..., Registry]) -> None:
    install("fine", GOOD)
    assert load({"GGFW_STRICT_PLUGINS": "1"}).architectures
    install("broken", "import torch_not_here")
    assert load({"GGFW_STRICT_PLUGINS": "0"}).architectures
    with pytest.raises(PluginError, match="broken .*torch_not_here.*GGFW_DISABLE_PLUGINS"):
        load({"GGFW_STRICT_PLUGINS": "1"})
    assert load({"GGFW_STRICT_PLUGINS": "1", "GGFW_DISABLE_PLUGINS": "broken"}).architectures


def test_keyboard_interrupt_passes(install: Install, load: Callable[..., Registry]) -> None:
    install("slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load()


def test_a_plugin_that_asks_for_the_registry_while_imported(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ggfw import registry as module

    monkeypatch.setattr(module, "_default", None)
    install("curious", "from ggfw.registry import default_registry\ndefault_registry()")
    registry = module.default_registry()
    assert "must not use the registry while it is imported" in row(registry, "curious").reason
    assert module.default_registry() is registry

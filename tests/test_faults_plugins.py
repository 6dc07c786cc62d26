"""Plugins that hang, raise, or give nonsense at any point at which ggfw asks them something.

What each stage of discovery makes of broken ones is in test_registry_isolation.py; here are those that get further.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import COMMAND
from tiny_models import write_llama

import ggfw
from ggfw import quants
from ggfw.catalogue import fetch_reference
from ggfw.chat.dialect import make
from ggfw.chat.skills import Skills
from ggfw.descriptors import (
    ArchitectureSpec,
    ChatDialect,
    KernelBackend,
    ModelSource,
    QuantFormat,
    SamplerStage,
    Skill,
)
from ggfw.entry_points import _load
from ggfw.errors import BackendError, GgfwError, PluginError, SourceError
from ggfw.graph import Architecture
from ggfw.registry import Registry
from ggfw.sampling import Params
from ggfw.sampling.setup import SamplerSetup
from ggfw.testing import registry_with, tiny_gguf


def install(folder: Path, code: str, name: str = "ggfw_bad") -> dict[str, str]:
    """A distribution with one plugin; gives the environment that finds it."""
    package = folder / "site"
    info = package / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (package / f"{name}.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ggfw]\nbad = {name}\n")
    return {**os.environ, "PYTHONPATH": str(package)}


def run(env: dict[str, str], *args: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *args], capture_output=True, text=True, timeout=timeout, env=env)


HANGS = "import time\ntime.sleep(1000)\n"


def test_one_that_hangs_at_import_can_be_left_out(tmp_path: Path) -> None:
    """Leaving the plugin out by name must not import it."""
    done = run({**install(tmp_path, HANGS), "GGFW_DISABLE_PLUGINS": "ggfw-bad"}, "plugins", "list")
    assert done.returncode == 0 and "ggfw-bad" in done.stdout and "disabled" in done.stdout, done.stderr


def test_one_that_hangs_at_import_is_named(tmp_path: Path) -> None:
    env = install(tmp_path, "import ggfw.discovery, time\ntime.sleep(1000)\n")
    code = (
        "import ggfw.discovery as d; d.SLOW = 0.3; from ggfw.cli.main import main; main(['plugins', 'list'])"
    )
    process = subprocess.Popen([COMMAND[0], "-c", code], stderr=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stderr is not None
        told = process.stderr.readline()
        assert "the plugin bad of the package ggfw-bad has been loading for 0.3 s" in told, told
        assert "GGFW_DISABLE_PLUGINS=ggfw-bad" in told
    finally:
        process.kill()
        process.wait()


def test_one_that_is_quick_is_not_named(tmp_path: Path) -> None:
    done = run(install(tmp_path, "GGFW_PLUGIN_API = 1\n"), "plugins", "list")
    assert done.returncode == 0 and "loading for" not in done.stderr


def raises(*args: Any, **kw: Any) -> Any:
    raise ValueError("a plugin's own error")


def nonsense(*args: Any, **kw: Any) -> Any:
    return ["nonsense"]


def registry_of(monkeypatch: pytest.MonkeyPatch, kind: str, *descriptors: Any) -> Registry:
    """A registry of the built-ins and one plugin."""
    import sys
    from importlib.metadata import entry_points
    from types import ModuleType

    from ggfw.hookspecs import PLUGIN_API, hookimpl

    module = ModuleType("bad_plugin")
    module.GGFW_PLUGIN_API = PLUGIN_API  # type: ignore[attr-defined]

    def hook() -> Any:
        return descriptors

    hook.__name__ = f"ggfw_register_{kind}"
    setattr(module, hook.__name__, hookimpl(hook))
    monkeypatch.setitem(sys.modules, "bad_plugin", module)
    doors = [ep for ep in entry_points(group="ggfw") if ep.value.startswith("ggfw.plugins")]
    return Registry.load([*doors, EntryPoint("bad", "bad_plugin", "ggfw")], {})


BAD = {
    "order of a stage": ("sampler_stages", SamplerStage(name="s", order=[], load=raises)),  # type: ignore[arg-type]
    "order that is no number": ("sampler_stages", SamplerStage(name="s", order=float("nan"), load=raises)),  # type: ignore[arg-type]
    "parameters of a stage": ("sampler_stages", SamplerStage(name="s", order=1, load=raises, params=["a"])),  # type: ignore[arg-type]
    "description of a skill": ("skills", Skill(name="s", description=3, load=raises)),  # type: ignore[arg-type]
    "ABI of a backend": ("kernel_backends", KernelBackend(name="b", probe=raises, library=raises, abi="x")),  # type: ignore[arg-type]
    "match of a dialect": ("chat_dialects", ChatDialect(name="d", match=3, load=raises)),  # type: ignore[arg-type]
    "names of an architecture": ("architectures", ArchitectureSpec(name="a", gguf_names=[3], load=raises)),  # type: ignore[list-item]
    "names in a generator": ("architectures", ArchitectureSpec(name="a", gguf_names=(n for n in "a"), load=raises)),  # type: ignore[arg-type]
    "executor of a backend": ("kernel_backends", KernelBackend(name="b", probe=raises, library=raises, executor=3)),  # type: ignore[arg-type]
    "tools of a skill": ("skills", Skill(name="s", description="d", load=raises, tools=5)),  # type: ignore[arg-type]
    "no descriptor": ("model_sources", 3),
    "load of a source": ("model_sources", ModelSource(name="x", load=3)),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("what", list(BAD))
def test_descriptors_of_the_wrong_types_are_rows(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    kind, descriptor = BAD[what]
    registry = registry_of(monkeypatch, kind, descriptor)
    assert "gopherllm" in registry.sampler_stages and registry.architectures["llama"]
    broken = [row for row in registry.rows() if row.plugin == "bad"]
    assert len(broken) == 1 and broken[0].state == "failed" and broken[0].reason, broken


def leaves(*args: Any, **kw: Any) -> Any:
    raise SystemExit(0)


class LeavingNumber:
    """What ends whoever makes a number of it."""

    def __int__(self) -> int:
        raise SystemExit(0)


@pytest.mark.parametrize("bad", [raises, nonsense, leaves, lambda *_: LeavingNumber()])
def test_functions_that_are_asked_later(monkeypatch: pytest.MonkeyPatch, bad: Any) -> None:
    """A probe or a match that fails or answers nonsense chooses nobody, and takes nothing from others."""
    registry = registry_of(monkeypatch, "kernel_backends", KernelBackend(name="zz", probe=bad, library=bad))
    assert registry.backends()[0].name != "zz" and registry.rows("kernel_backends")
    missing = KernelBackend(name="zz", probe=lambda: 0, library=bad, missing=bad)
    registry = registry_of(monkeypatch, "kernel_backends", missing)
    assert [row.state for row in registry.rows("kernel_backends") if row.name == "zz"] == ["available"]
    registry = registry_of(monkeypatch, "chat_dialects", ChatDialect(name="zz", match=bad, load=bad))
    assert registry.dialect_for({"tokenizer.chat_template": "<|im_start|><tool_call>"}).name != "zz"
    registry = registry_of(
        monkeypatch, "architectures", ArchitectureSpec(name="zz", gguf_names=["zz"], load=bad, match=bad)
    )
    assert registry.architecture_for({"general.architecture": "llama"}).name == "llama"


@pytest.mark.parametrize("bad", ["raise ValueError('mine')", "return 'nonsense'"])
def test_a_stage_that_fails_ends_its_request_with_an_error(tmp_path: Path, bad: str) -> None:
    code = f"""
from ggfw.descriptors import SamplerStage
from ggfw.hookspecs import hookimpl
GGFW_PLUGIN_API = 1
class Stage:
    name, order, limit = "bad", 50, None
    def apply(self, *a, **k): {bad}
    __call__ = apply
def make(params): return Stage()
@hookimpl
def ggfw_register_sampler_stages(): return [SamplerStage(name="bad", order=50, load=make, params={{"bad": 0}})]
"""
    env = install(tmp_path, code)
    begin = time.monotonic()
    done = run(
        env, "run", str(write_llama(tmp_path / "m.gguf")), "hello", "--raw", "--max-tokens", "2",
        "--samplers", "bad;temperature",
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert done.stderr.count("ggfw: error:") == 1 and time.monotonic() - begin < 60
    assert "bad" in done.stderr and "no sampler stage" not in done.stderr, done.stderr


@pytest.mark.parametrize("bad", [raises, nonsense, leaves])
def test_a_backend_that_cannot_say_where_its_libraries_are_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, bad: Any
) -> None:
    """Whatever its score says: others have libraries that work."""
    best = KernelBackend(name="zz", probe=lambda: 10**6, library=bad, executor=bad, bindings=bad)
    registry = registry_of(monkeypatch, "kernel_backends", best)
    with ggfw.load(tiny_gguf(), registry=registry) as model:
        assert model.info["backend"] != "zz" and len(model.greedy([1, 5], 2)) == 2
    (row,) = [row for row in registry.rows("kernel_backends") if row.name == "zz"]
    assert row.state == "failed" and row.reason
    with pytest.raises(BackendError, match="zz"):
        ggfw.load(tiny_gguf(), registry=registry, backend="zz")


@pytest.mark.parametrize("bad", [raises, nonsense, leaves])
@pytest.mark.parametrize("where", ["class", "instance", "build", "module"])
def test_an_architecture_that_fails_is_an_error_that_names_it(where: str, bad: Any) -> None:
    load: Any = {
        "class": bad,
        "instance": type("Bad", (Architecture,), {"__init__": bad}),
        "build": type("Bad", (Architecture,), {"build": bad}),
        "module": "a_module_that_is_not_there:Bad",
    }[where]
    spec = ArchitectureSpec(name="zz-arch", gguf_names=("zz",), load=load)
    with pytest.raises(GgfwError, match="zz-arch|a_module_that_is_not_there"):
        ggfw.load(tiny_gguf("zz"), registry=registry_with(spec))


@pytest.mark.parametrize("bad", [raises, leaves])
def test_a_format_that_fails_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch, bad: Any) -> None:
    q8 = quants.get("Q8_0")
    sound = QuantFormat(
        name="ZZ_8",
        ggml_type=1234,
        block_size=32,
        type_size=34,
        dequantize=q8.dequantize,
        quantize=q8.quantize,
    )
    monkeypatch.setattr("ggfw.registry._default", registry_with(sound))
    data = tiny_gguf(fmt=sound)
    monkeypatch.setattr("ggfw.registry._default", registry_with(replace(sound, dequantize=bad, quantize=bad)))
    for backend in (None, "reference"):
        with pytest.raises(GgfwError, match="ZZ_8"), ggfw.load(data, backend=backend) as model:
            model.logits([1])
    with pytest.raises(GgfwError, match="ZZ_8"):
        quants.quantize("ZZ_8", np.zeros((1, 32)))


@pytest.mark.parametrize("bad", [raises, leaves, nonsense, lambda *_: "text", lambda *_: None])
@pytest.mark.parametrize("where", ["load", "resolve"])
def test_a_source_that_fails_is_an_error_that_names_it(where: str, bad: Any, tmp_path: Path) -> None:
    load = bad if where == "load" else type("Bad", (), {"__init__": lambda *_: None, "resolve": bad})
    registry = registry_with(ModelSource(name="zz", load=load))
    with pytest.raises(SourceError, match="zz"):
        fetch_reference("zz:model", tmp_path, registry)


def test_a_probe_that_gives_nonsense_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = KernelBackend(name="zz", probe=lambda: 2.5, library=lambda: "")  # type: ignore[arg-type, return-value]
    (row,) = [r for r in registry_of(monkeypatch, "kernel_backends", backend).rows() if r.name == "zz"]
    assert row.state == "failed" and "it gives 2.5; a whole number was expected" in row.reason


@pytest.mark.parametrize("bad", [raises, leaves])
def test_a_skill_or_stage_or_dialect_that_leaves(bad: Any) -> None:
    skill = Skill(name="zz", description="d", load=bad)
    text, loaded = Skills([skill]).answer('{"name": "zz"}')
    assert loaded is None and "could not be loaded" in text
    with pytest.raises(PluginError, match="zz"):
        make(ChatDialect(name="zz", match=lambda _: 0, load=type("Bad", (), {"__init__": bad})))
    with pytest.raises(PluginError, match="zz"):
        SamplerSetup(Params(), stages=(SamplerStage(name="zz", order=1, load=bad),)).sampler()


@pytest.mark.parametrize(
    "value",
    ["a" + " " * 20_000 + "x", "a:b" + " " * 20_000 + "x", "a" * 50_000 + "!", "a :b" + " [" * 20_000],
)
def test_entry_points_are_read_in_linear_time(value: str) -> None:
    begin = time.process_time()
    with pytest.raises(ImportError, match="names no module"):
        _load(value)
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("value", ["json:loads", "json : loads", "json:loads [extra]", "json:loads[a, b] "])
def test_entry_points_in_all_forms(value: str) -> None:
    assert _load(value) is json.loads
    assert _load(value.partition(":")[0]) is json

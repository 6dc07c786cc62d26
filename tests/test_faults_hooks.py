"""Plugins that pass discovery and go wrong when they are used: each kind, raising and giving nonsense.

What they are asked for is an error of ggfw's own that names them, and what does not need them goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_faults_plugins import nonsense, raises, registry_of
from tiny_models import write_llama

import ggfw
from ggfw.chat.dialect import Dialect
from ggfw.chat.skills import Skills
from ggfw.descriptors import ArchitectureSpec, ChatDialect, KernelBackend, QuantFormat, SamplerStage, Skill
from ggfw.errors import GgfwError

Bad = Callable[..., Any]
BAD = pytest.mark.parametrize("bad", [raises, nonsense])


class Nothing:
    """A part that has none of the methods it should have."""


class Raising:
    """A part of which everything that is asked for raises."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return raises


PARTS = pytest.mark.parametrize(
    "part",
    [raises, nonsense, lambda *a, **k: Nothing(), lambda *a, **k: Raising(), lambda *a, **k: None],
    ids=[
        "load raises",
        "load gives a list",
        "load gives nothing usable",
        "all methods raise",
        "load gives None",
    ],
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("model") / "m.gguf", n_layer=1, n_ctx=64)


@PARTS
def test_architectures(monkeypatch: pytest.MonkeyPatch, path: Path, part: Bad) -> None:
    spec = ArchitectureSpec(name="mine", gguf_names=["llama"], load=part, priority=100)
    registry = registry_of(monkeypatch, "architectures", spec)
    with pytest.raises(GgfwError, match="mine|bad"):
        ggfw.load(path, threads=1, ctx=64, registry=registry)
    ggfw.load(path, threads=1, ctx=64).close()


class RaisingParser(Dialect):
    """A dialect whose parser raises at the first word."""

    def parser(self, *args: Any, **kw: Any) -> Any:
        return Raising()


def test_a_parser_that_raises(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    spec = ChatDialect(name="mine", match=lambda facts: 10**6, load=RaisingParser, priority=100)
    monkeypatch.setattr("ggfw.registry._default", registry_of(monkeypatch, "chat_dialects", spec))
    with ggfw.load(path, threads=1, ctx=64) as model:
        with pytest.raises((GgfwError, ValueError), match="own error"):
            model.chat([{"role": "user", "content": "a"}], max_tokens=2, ignore_eos=True)
        for _ in range(3):
            assert model.generate("a", max_tokens=1, ignore_eos=True).usage.completion_tokens == 1


@PARTS
def test_dialects(monkeypatch: pytest.MonkeyPatch, path: Path, part: Bad) -> None:
    spec = ChatDialect(name="mine", match=lambda facts: 10**6, load=part, priority=100)
    registry = registry_of(monkeypatch, "chat_dialects", spec)
    monkeypatch.setattr("ggfw.registry._default", registry)
    with ggfw.load(path, threads=1, ctx=64) as model:
        with pytest.raises(GgfwError, match="mine|bad"):
            model.chat([{"role": "user", "content": "a"}], max_tokens=2)
        assert model.generate("a", max_tokens=1).usage.completion_tokens == 1


@pytest.mark.parametrize("probe", [lambda: 10**9, lambda: True], ids=["eager", "true"])
@pytest.mark.parametrize(
    "library", [raises, nonsense, lambda: "/no/such/library.so", lambda: __file__, lambda: ""],
    ids=["raises", "list", "missing", "no library", "empty"],
)  # fmt: skip
def test_backends(monkeypatch: pytest.MonkeyPatch, path: Path, library: Bad, probe: Bad) -> None:
    spec = KernelBackend(name="mine", probe=probe, library=library, priority=10**6)
    registry = registry_of(monkeypatch, "kernel_backends", spec)
    with pytest.raises(GgfwError, match="mine|no library|library"):
        ggfw.load(path, threads=1, ctx=64, registry=registry, backend="mine")


@BAD
def test_quant_formats(monkeypatch: pytest.MonkeyPatch, bad: Bad) -> None:
    """A format of a plugin that replaces one of ours, and cannot do what it says."""
    file = Path(__file__).parent / "data" / "quants" / "q-llama-Q8_0.gguf"
    if not file.exists():
        file = next((Path(__file__).parent / "data" / "quants").glob("*Q8_0*.gguf"))
    spec = QuantFormat(name="Q8_0", ggml_type=8, block_size=32, type_size=34, dequantize=bad, priority=100)
    monkeypatch.setattr("ggfw.registry._default", registry_of(monkeypatch, "quant_formats", spec))
    try:
        model = ggfw.load(file, threads=1, ctx=64, backend="reference")
    except GgfwError:
        return
    with model:
        try:
            assert model.generate("a", max_tokens=1).usage.completion_tokens == 1
        except GgfwError:
            pass


class Stage:
    """A stage that does what it is told to."""

    name, order, limit = "mine", 50, None

    def __init__(self, answer: Bad) -> None:
        self.answer = answer

    def apply(self, *args: Any) -> Any:
        return self.answer(*args)


@pytest.mark.parametrize(
    "answer",
    [raises, nonsense, lambda *a, **k: None, lambda *a, **k: 3, lambda c, *a, **k: (time.sleep(0.2), c)[1]],
    ids=["raises", "list", "None", "3", "slow"],
)
def test_stages(monkeypatch: pytest.MonkeyPatch, path: Path, answer: Bad) -> None:
    """Only the request that asked for the stage has to do with it."""
    spec = SamplerStage(name="mine", order=50, load=lambda *a, **k: Stage(answer), params={"mine": 0})
    monkeypatch.setattr("ggfw.registry._default", registry_of(monkeypatch, "sampler_stages", spec))
    with ggfw.load(path, threads=1, ctx=64) as model:
        try:
            model.generate("a", max_tokens=2, samplers=["mine", "temperature"])
        except GgfwError as error:
            assert "sampler stage mine" in str(error)
        for _ in range(2):
            assert model.generate("a", max_tokens=2, ignore_eos=True).usage.completion_tokens == 2


@BAD
def test_skills(bad: Bad) -> None:
    """The model is told, as of any mistake of a tool."""
    told, loaded = Skills([Skill(name="mine", description="A skill.", load=bad)]).answer('{"name": "mine"}')
    assert told.startswith("Error: ") and "mine" in told and loaded is None

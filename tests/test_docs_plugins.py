"""The architecture that docs/plugins.md shows runs, natively and on the reference, with the same tokens."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from ggfw.gguf import GGUF, gguf_bytes
from ggfw.hookspecs import PLUGIN_API
from ggfw.library import Model
from ggfw.model import LoadedModel
from ggfw.registry import Registry

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "plugins.md"


class Door:
    """An entry point that the page's modules stand behind, beside the built-in ones."""

    group, name, value, dist = "ggfw", "toy", "ggfw_arch_toy", None

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def load(self) -> types.ModuleType:
        return self._module


def blocks(word: str) -> str:
    """The page's only Python block that has ``word``."""
    (found,) = [b for b in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S) if word in b]
    return found


def module(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    made = types.ModuleType(name)
    exec(compile(text, f"{PAGE.name}:{name}", "exec"), made.__dict__)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def test_the_page_s_architecture_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import entry_points

    module("ggfw_arch_toy_graph", blocks("class Toy"), monkeypatch)
    plugin = module("ggfw_arch_toy", blocks("ggfw_register_architectures():\n    return [Arch"), monkeypatch)
    assert plugin.GGFW_PLUGIN_API == PLUGIN_API
    registry = Registry.load([*entry_points(group="ggfw"), Door(plugin)], {})  # type: ignore[list-item]
    assert registry.architectures["toy"].gguf_names == ("toy",)
    with GGUF.open(ROOT / "tests" / "data" / "models" / "llama.gguf") as gguf:
        metadata = {k.replace("llama.", "toy.", 1): v for k, v in gguf.metadata.items()}
        data = gguf_bytes({**metadata, "general.architecture": "toy"}, gguf.tensors.items())
    tokens = []
    for backend in ("reference", None):
        with Model(LoadedModel.load(data, registry=registry, backend=backend)) as model:
            tokens.append(model.generate("hello", max_tokens=8, temperature=0).token_ids)
    assert len(tokens[0]) == 8 and tokens[0] == tokens[1]


def test_the_page_s_tables_are_those_of_the_code() -> None:
    import subprocess

    said = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "plugin_tables.py"), "--check"], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr


def test_the_page_names_every_hook_and_every_contributed_package() -> None:
    from ggfw.descriptors import KINDS

    text = PAGE.read_text("utf-8")
    assert all(f"ggfw_register_{kind}() -> Iterable[{cls.__name__}]" in text for kind, cls in KINDS.items())
    packages = [
        p.parent.name
        for p in (ROOT / "contrib").glob("*/pyproject.toml")
        if "entry-points.ggfw" in p.read_text()
    ]
    assert packages and all(name in text for name in packages)

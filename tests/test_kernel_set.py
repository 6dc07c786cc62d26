"""Which libraries a kernel set opens when one of them cannot be opened."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ggfw.errors import BackendError
from ggfw.execute.kernel_set import KernelSet
from ggfw.registry import Registry

PLUGIN = """
from ggfw.descriptors import KernelBackend
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

@hookimpl
def ggfw_register_kernel_backends():
    return [KernelBackend(name="boastful", probe=lambda: 1000, library=lambda: "/no/such/library.so")]
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The built-in backends, and one that promises most and has no library."""
    (tmp_path / "boastful_backend.py").write_text(PLUGIN)
    info = tmp_path / "boastful_backend-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: boastful-backend\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[ggfw]\nboastful = boastful_backend\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Registry.load(environ={})
    sys.modules.pop("boastful_backend", None)


def test_a_backend_that_cannot_be_opened_costs_nobody_else_anything(registry: Registry) -> None:
    assert registry.backends()[0].name == "boastful"
    kernels = KernelSet(registry=registry)
    assert kernels.name != "boastful" and kernels.find("linear", 0) is not None
    (row,) = [row for row in registry.rows("kernel_backends") if row.name == "boastful"]
    assert (row.state, row.stage) == ("failed", "load") and "/no/such/library.so" in row.reason
    assert "boastful" not in [d.name for d in registry.backends()]


def test_an_explicit_choice_that_cannot_be_opened_is_an_error(registry: Registry) -> None:
    with pytest.raises(BackendError, match="boastful"):
        KernelSet("boastful", registry)

"""Ops of a plugin's own: the page's example keeps its state, and mistakes are errors that name the op."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggfw
from ggfw.descriptors import resolve
from ggfw.errors import GraphError, PluginError
from ggfw.graph import StateSpec, custom, register_op
from ggfw.registry import default_registry
from ggfw.testing import tiny_gguf

PAGE = Path(__file__).parents[1] / "docs" / "plugins.md"


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom, "_OPS", {})


def model_with(monkeypatch: pytest.MonkeyPatch, name: str, backend: str | None, **attrs: Any) -> ggfw.Model:
    """A Llama whose embeddings go through the op."""

    def build(self: Any, g: Any, hp: Any, w: Any, run: Any) -> None:
        x = g.op(name, g.embed(w["token_embd"]), **attrs)
        h = g.rms_norm(g.select_outputs(x), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w["output"]))

    spec = default_registry().architecture_for({"general.architecture": "llama"})
    monkeypatch.setattr(resolve(spec.load), "build", build)
    return ggfw.load(tiny_gguf(), backend=backend)


@pytest.mark.parametrize("backend", [None, "reference"])
def test_the_example_of_the_page(ops: None, monkeypatch: pytest.MonkeyPatch, backend: str | None) -> None:
    (code,) = [
        b for b in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S) if "decaying" in b
    ]
    exec(code, {})
    ids = [5, 6, 7, 8, 9]
    with model_with(monkeypatch, "decaying_mean", backend, decay=0.5) as model:
        whole = model.logits(ids)
        pieces = model.logits(ids, chunk=2)
        other = model.logits([9, *ids[1:]])
    np.testing.assert_allclose(pieces, whole, atol=1e-4)
    assert np.abs(other[-1] - whole[-1]).max() > 1e-3, "the first token is still felt at the last"


@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            lambda x, segments, positions: x[:, :3],
            r"op 'odd' returned shape \(\d+, 3\); \(\d+, 64\) was expected",
        ),
        (lambda x, segments, positions: None, r"op 'odd' returned shape \(\)"),
        (lambda x, segments, positions: 1 / 0, "op 'odd' raised ZeroDivisionError"),
        (lambda x: x, "op 'odd' raised TypeError"),
    ],
)
def test_mistakes_name_the_op(
    ops: None, monkeypatch: pytest.MonkeyPatch, backend: str | None, body: Any, said: str
) -> None:
    register_op("odd", lambda x: x, numpy=body)
    with model_with(monkeypatch, "odd", backend) as model, pytest.raises(ggfw.GgfwError, match=said):
        model.generate("abc", max_tokens=2)


def test_a_state_needs_all_rows(ops: None, monkeypatch: pytest.MonkeyPatch) -> None:
    register_op("kept", lambda x: x, state=lambda x: StateSpec(x), numpy=lambda x, segments, positions: x)

    def build(self: Any, g: Any, hp: Any, w: Any, run: Any) -> None:
        h = g.op("kept", g.select_outputs(g.embed(w["token_embd"])))
        g.output(hidden=h, logits=g.linear(h, w["output"]))

    spec = default_registry().architecture_for({"general.architecture": "llama"})
    monkeypatch.setattr(resolve(spec.load), "build", build)
    with pytest.raises(GraphError, match="'kept' keeps a state.*before select_outputs"):
        ggfw.load(tiny_gguf())


@pytest.mark.parametrize("shape", [5, (0,), (2.0,), None])
def test_a_state_has_a_shape(shape: Any) -> None:
    with pytest.raises(PluginError, match="shape"):
        StateSpec(shape)

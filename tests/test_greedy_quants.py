"""Greedy tokens of small quantised files: the native executor says what float32 arithmetic on the same weights says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ggfw

QUANTS = Path(__file__).parent / "data" / "quants"
FILES = sorted([*QUANTS.glob("q-llama*.gguf"), *QUANTS.glob("q-mixtral*.gguf")])


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_greedy_tokens(path: Path) -> None:
    said = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    with ggfw.load(path) as model:
        for name, want in said["greedy"].items():
            assert list(model.greedy(said["prompts"][name], len(want))) == want

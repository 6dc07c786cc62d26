"""Every reference model of tests/data, on both executors: whole, in chunks, alone, together, and greedy tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests_support import check_logits

import ggfw

DATA = Path(__file__).parent / "data"
MODELS = sorted(path.stem for path in (DATA / "models").glob("*.gguf"))
QUANTS = sorted(path.stem for path in (DATA / "quants").glob("*.gguf"))
EXECUTORS = ["reference", "native"]


@cache
def fixture(name: str) -> Any:
    return check_logits().load(name, root=str(DATA))


@pytest.fixture(scope="module", params=[(name, executor) for name in MODELS + QUANTS for executor in EXECUTORS],
                ids=lambda p: "-".join(p))  # fmt: skip
def loaded(request: pytest.FixtureRequest) -> Iterator[tuple[Any, ggfw.Model]]:
    name, executor = request.param
    fx = fixture(name)
    backend = None if executor == "native" else executor
    with ggfw.load(fx.gguf, backend=backend, ctx=256, n_parallel=5, threads=2) as model:
        yield fx, model


def judge(fx: Any, logits: dict[str, np.ndarray], greedy: dict[str, list[int]] | None = None) -> None:
    report = check_logits().compare(fx, logits, greedy, root=str(DATA))
    assert report["ok"], report


@pytest.mark.parametrize("chunk", [None, 1, 3, 7, 64])
def test_one_by_one(loaded: tuple[Any, ggfw.Model], chunk: int | None) -> None:
    fx, model = loaded
    judge(fx, {name: model.logits(ids, chunk=chunk) for name, ids in fx.prompts.items()})


@pytest.mark.parametrize("chunk", [None, 7])
def test_together(loaded: tuple[Any, ggfw.Model], chunk: int | None) -> None:
    fx, model = loaded
    rows = model.logits_many(list(fx.prompts.values()), together=True, chunk=chunk)
    judge(fx, dict(zip(fx.prompts, rows, strict=True)))


def test_greedy_tokens(loaded: tuple[Any, ggfw.Model]) -> None:
    """F32 files: equal to the reference. Quantised ones: equal to our own exact logits up to small margins."""
    fx, model = loaded
    for name, expected in fx.greedy.items():
        got = model.greedy(fx.prompts[name], len(expected))
        if not fx.quantised:
            assert got == expected


@pytest.mark.parametrize("name", [name for name in MODELS if not fixture(name).quantised])
def test_company_and_chunks_change_no_bit_on_f32_files(name: str) -> None:
    fx = fixture(name)
    with ggfw.load(fx.gguf, ctx=256, n_parallel=5, threads=2) as model:
        alone = [model.logits(ids) for ids in fx.prompts.values()]
        for chunk in (None, 1, 7):
            together = model.logits_many(list(fx.prompts.values()), together=True, chunk=chunk)
            assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))

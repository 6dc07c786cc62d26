"""Every reference model of tests/data, on both executors: whole, in chunks, alone, together, and greedy tokens.

Of embedding models the hidden states and pooled vectors, always whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests_support import check_logits

import ggfw
from ggfw.evaluate import evaluate, pooled
from ggfw.execute.batch import Wants
from ggfw.gguf import GGUF
from ggfw.tokenizer import Tokenizer

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


def rows(fx: Any, model: ggfw.Model, *, together: bool, chunk: int | None = None) -> dict[str, np.ndarray]:
    """Logits of every prompt's positions; of embedding models the hidden states of those with a reference."""
    wants = Wants.LOGITS if fx.logits else Wants.HIDDEN
    prompts = list(fx.prompts.values())
    found = model.engine.run(evaluate(model.loaded, prompts, wants, chunk=chunk, together=together)).result()
    named = dict(zip(fx.prompts, found, strict=True))
    return {name: r for name, r in named.items() if fx.logits or f"token_embd/{name}" in fx.embeddings}


@pytest.mark.parametrize("chunk", [None, 1, 3, 7, 64])
def test_one_by_one(loaded: tuple[Any, ggfw.Model], chunk: int | None) -> None:
    fx, model = loaded
    judge(fx, rows(fx, model, together=False, chunk=chunk))


@pytest.mark.parametrize("chunk", [None, 7])
def test_together(loaded: tuple[Any, ggfw.Model], chunk: int | None) -> None:
    fx, model = loaded
    judge(fx, rows(fx, model, together=True, chunk=chunk))


@pytest.mark.parametrize("together", [False, True])
def test_pooled(loaded: tuple[Any, ggfw.Model], together: bool) -> None:
    """One vector per prompt, as the file says (here always the mean), not normalised."""
    fx, model = loaded
    prompts = list(fx.prompts.values())
    vectors = model.engine.run(pooled(model.loaded, prompts, together=together)).result()
    named = dict(zip(fx.prompts, vectors, strict=True))
    wanted = [key for key in fx.arrays if key.startswith("pooled_mean/") and not fx.quantised]
    judge(fx, {key: named[key.removeprefix("pooled_mean/")] for key in wanted})


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
        alone = rows(fx, model, together=False)
        for chunk in (None, 1, 7):
            together = rows(fx, model, together=True, chunk=chunk)
            assert all(np.array_equal(alone[name], together[name]) for name in alone)


@pytest.mark.parametrize("name", MODELS)
def test_texts_become_the_reference_s_tokens(name: str) -> None:
    fx = fixture(name)
    with GGUF.open(fx.gguf) as gguf:
        tokenizer = Tokenizer.from_metadata(gguf.metadata)
    for case in fx.info.get("texts", []):
        assert tokenizer.encode(case["text"], parse_special=True) == case["ids"]
        assert tokenizer.encode(case["text"], add_special=False) == case["ids_plain"]


def test_the_reference_data_stay_small() -> None:
    files = [path for path in DATA.rglob("*") if path.is_file() and "real" not in path.parts]
    assert sum(path.stat().st_size for path in files) < 40_000_000

"""One arithmetic for every kind of row: whole prompts, chunks, token by token, company and threads, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggfw.execute.batch import Batch, Segment, Wants
from ggfw.model import LoadedModel

DATA = Path(__file__).parent / "data"
MODELS = [
    *sorted((DATA / "models").glob("*.gguf")),
    *(
        DATA / "quants" / f"q-{name}.gguf"
        for name in ("llama-Q4_K", "llama-small-Q4_1", "mixtral-small-Q8_0")
    ),
    *(DATA / "quants" / f"q-{name}.gguf" for name in ("nemotron_h_moe-Q4_K_M", "gpt-oss-MXFP4_MOE")),
]
LENGTH = 45


def tokens_of(model: LoadedModel, seed: int, n: int = LENGTH) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, model.n_vocab, n)]


def run(model: LoadedModel, prompts: list[list[int]], chunk: int, *, prompt: bool) -> list[np.ndarray]:
    """Logits of all prompts, in steps of ``chunk`` tokens of each, as prompt rows or as decode rows."""
    sequences = [model.cache.sequence() for _ in prompts]
    rows: list[list[np.ndarray]] = [[] for _ in prompts]
    try:
        for begin in range(0, max(map(len, prompts)), chunk):
            segments, owners = [], []
            for i, ids in enumerate(prompts):
                part = ids[begin : begin + chunk]
                if part:
                    segments.append(Segment(sequences[i], part, n_outputs=len(part), prompt=prompt))
                    owners.append(i)
            logits = model.executor.step(Batch(segments, Wants.LOGITS)).logits
            assert logits is not None
            at = 0
            for i, segment in zip(owners, segments, strict=True):
                rows[i].append(logits[at : at + len(segment.tokens)].copy())
                at += len(segment.tokens)
    finally:
        for sequence in sequences:
            sequence.close()
    return [np.concatenate(r) for r in rows]


def load(path: Path, **options: Any) -> LoadedModel:
    return LoadedModel.load(path, ctx=128, n_parallel=4, ubatch=256, **options)


def check(path: Path, **options: Any) -> None:
    with_threads = {}
    for threads in (1, 2):
        model = load(path, threads=threads, **options)
        try:
            if not model.architecture.chunkable or not model.n_vocab:
                pytest.skip("prompts of this architecture are read whole")
            prompts = [tokens_of(model, seed, LENGTH - 6 * seed) for seed in range(3)]
            whole = with_threads[threads] = run(model, prompts[:1], LENGTH, prompt=True)[0]
            for chunk in (1, 3, 7):
                np.testing.assert_array_equal(run(model, prompts[:1], chunk, prompt=True)[0], whole)
                np.testing.assert_array_equal(run(model, prompts[:1], chunk, prompt=False)[0], whole)
            for chunk in (4, LENGTH):
                np.testing.assert_array_equal(run(model, prompts, chunk, prompt=True)[0], whole)
        finally:
            model.close()
    np.testing.assert_array_equal(with_threads[1], with_threads[2])


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_every_way_to_the_same_bits(path: Path) -> None:
    check(path, deterministic=True)


@pytest.mark.parametrize("path", [p for p in MODELS if p.parent.name == "quants"], ids=lambda p: p.stem)
@pytest.mark.parametrize("activations", ["int8", "f32"])
def test_with_other_activations(path: Path, activations: str) -> None:
    check(path, deterministic=True, activations=activations)


@pytest.mark.parametrize(
    "path",
    [p for p in sorted((DATA / "models").glob("*.gguf")) if p.stem != "gpt-oss"],  # whose experts are MXFP4
    ids=lambda p: p.stem,
)
def test_float_files_without_the_option(path: Path) -> None:
    check(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_a_real_model(name: str, request: pytest.FixtureRequest) -> None:
    check(request.getfixturevalue(f"{name}_path"), deterministic=True)

"""The same model on both executors, whole and in pieces, alone and in company."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ggfw.errors import GgfwError
from ggfw.evaluate import evaluate
from ggfw.execute.batch import Wants
from ggfw.library import Model
from ggfw.model import REFERENCE, LoadedModel
from ggfw.registry import Registry

__all__ = ["PROMPTS", "compare_executors", "open_model", "rows"]

#: Token ids that tiny vocabularies have; lengths that cross no, one and several chunks.
PROMPTS = ([1, 5, 70, 33, 9, 200, 41], [1, 8, 8, 90], [1, 17, 60, 3, 2, 250, 11, 12, 77, 5, 42], [1])


def open_model(data: Any, registry: Registry, backend: str | None = None, **options: Any) -> Model:
    """A model with an engine, of two threads and room for all of :data:`PROMPTS` at once.

    Args:
        data: the file's bytes, or its path.
        registry: the plugins that may serve it.
        backend: see :func:`ggfw.load`.
    """
    return Model(
        LoadedModel.load(
            data, registry=registry, backend=backend, threads=2, n_parallel=len(PROMPTS), **options
        )
    )


def rows(model: Model, *, together: bool = False, chunk: int | None = None) -> list[np.ndarray]:
    """Logits of every position of :data:`PROMPTS`; of models without logits the hidden states."""
    loaded = model.loaded
    n_vocab = loaded.n_vocab or loaded.tokenizer.n_vocab
    prompts = [[i % n_vocab for i in ids] for ids in PROMPTS]
    wants = Wants.LOGITS if loaded.n_vocab else Wants.HIDDEN
    return model.engine.run(evaluate(loaded, prompts, wants, chunk=chunk, together=together)).result()


def compare_executors(
    data: Any, registry: Registry, bound: float, backend: str | None = None, **options: Any
) -> Mapping[str, Any]:
    """Check that the native executor computes what the exact one does.

    Args:
        data: the file.
        registry: the plugins that may serve it.
        bound: largest relative L2 error.
        backend: the kernel backend of the native run; None: the best one.

    Returns:
        ``error``, and ``ops``: (op, format) of every native step.

    Raises:
        AssertionError: it differs, or one of them fails.
    """
    with open_model(data, registry, REFERENCE) as exact:
        wanted = rows(exact)
    try:
        model = open_model(data, registry, backend, **options)
    except GgfwError as exc:
        raise AssertionError(f"the native executor does not load the tiny model: {exc}") from exc
    with model:
        got = rows(model)
        executor: Any = model.loaded.executor  # the native one, which has a plan
        steps = executor.plan.steps
    found = error(got, wanted)
    assert all(np.isfinite(row).all() for row in got), "the native executor gives values that are not finite"
    assert found <= bound, (
        f"native and exact results differ by {found:.2g} (relative L2), at most {bound:g} is expected; "
        "`ggfw verify` names the first step"
    )
    ops = {
        (step.op, step.weights[0].ggml_type if step.weights else None) for step in steps if step.node is None
    }
    return {"error": found, "ops": ops}


def error(got: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """Relative L2 distance of rows to those that are wanted."""
    a, b = (np.concatenate(part).astype(np.float64) for part in (got, wanted))
    assert a.shape == b.shape, f"results have the shape {a.shape}, expected {b.shape}"
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))

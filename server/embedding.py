"""Embeddings for all families: token ids in, vectors and counts out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sanic import Request

from ggfw.errors import InvalidRequest, QueueFull
from ggfw.evaluate import normalised, pooled, pooling_kind
from ggfw.library import Model
from ggfw.server.pool import Lease
from ggfw.server.state import State, served

#: Inputs one request may have.
MAX_INPUTS = 2048

#: What :func:`ggfw.evaluate.pooled` calls the token ids of an input.
_OF_IDS = ("ids", "messages")

Input = str | Sequence[int]


@dataclass
class Embedded:
    """Vectors of one request.

    Args:
        vectors: (n,) float32 each.
        n_tokens: of all inputs together.
    """

    vectors: list[NDArray[np.float32]]
    n_tokens: int


def inputs_of(given: Any, param: str = "input") -> list[Input]:
    """The inputs of a request: a text, token ids, or a list of either.

    Raises:
        InvalidRequest: something else, nothing, or too many.
    """
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        raise InvalidRequest(f"{param} must be a text, a list of texts, or token ids", param)
    if all(type(i) is int for i in given):
        return [given]
    if len(given) > MAX_INPUTS:
        raise InvalidRequest(f"{param} has {len(given)} inputs; at most {MAX_INPUTS} are taken", param)
    for n, one in enumerate(given):
        ids = isinstance(one, list) and one and all(type(i) is int for i in one)
        if not (isinstance(one, str) or ids):
            raise InvalidRequest(f"{param}[{n}] must be a text or token ids", param)
    return list(given)


async def embed(
    request: Request,
    lease: Lease,
    inputs: Sequence[Input],
    *,
    dimensions: int | None = None,
    truncate: bool = False,
    param: str = "input",
) -> Embedded:
    """Embed each input; leaving early stops after the one under way.

    Args:
        request, lease: who asks, and the model that is asked.
        dimensions: only the first so many, at length 1 again.
        truncate: cut inputs that are longer than the context instead of refusing them.
        param: what errors call the inputs.

    Raises:
        InvalidRequest, ContextLengthExceeded: see :func:`ggfw.evaluate.pooled`.
        QueueFull: too many requests embed already.
    """
    state, model, start = served(request), lease.model, time.perf_counter()
    n_embd = int(getattr(model.hparams, "n_embd", 0) or 0)
    if dimensions is not None and not 1 <= dimensions <= (n_embd or dimensions):
        raise InvalidRequest(f"dimensions must be between 1 and {n_embd}, but is {dimensions}", "dimensions")
    with evaluating(state, model), state.waited_for(request, lease.id):
        lists = await asyncio.to_thread(_encode, model, inputs)
        if truncate:
            lists = [ids[: model.n_ctx] for ids in lists]
        vectors = []
        for n, ids in enumerate(lists):
            try:
                vectors.append(await _vector(model, ids, dimensions))
            except InvalidRequest as error:
                if error.param in _OF_IDS:
                    error.param = f"{param}[{n}]" if len(lists) > 1 else param
                raise
    n_tokens = sum(map(len, lists))
    state.embedded(request, lease.id, len(lists), n_tokens, (time.perf_counter() - start) * 1e3)
    return Embedded(vectors, n_tokens)


@contextlib.contextmanager
def evaluating(state: State, model: Model) -> Iterator[None]:
    """Count a request among those that evaluate given tokens, which do not wait in the engine's queue.

    Raises:
        QueueFull: there are too many already.
    """
    most = model.engine.scheduler.n_parallel + model.engine.max_queue
    if state.evaluating.get(id(model), 0) >= most:
        raise QueueFull(f"{most} requests evaluate given tokens already; try again later", 1.0)
    state.evaluating[id(model)] = state.evaluating.get(id(model), 0) + 1
    try:
        yield
    finally:
        state.evaluating[id(model)] -= 1


def _encode(model: Model, inputs: Sequence[Input]) -> list[list[int]]:
    return [model.tokenizer.encode(one) if isinstance(one, str) else list(one) for one in inputs]


async def _vector(model: Model, ids: list[int], dimensions: int | None) -> NDArray[np.float32]:
    future = model.engine.run(pooled(model.loaded, [ids], together=False))
    (vector,) = await asyncio.wrap_future(future)
    if dimensions is not None:
        vector = vector[:dimensions]
    return vector if pooling_kind(model.loaded) == "rank" else normalised(vector)

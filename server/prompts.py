"""How likely the tokens of a given prompt are, for completions that are to echo it with its log-probabilities."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator
from typing import Any

from ggfw.cache import OutOfPages
from ggfw.engine import WAIT
from ggfw.errors import ContextLengthExceeded, InvalidRequest
from ggfw.execute.batch import Batch, Segment
from ggfw.library import Model
from ggfw.model import LoadedModel
from ggfw.sampling import TokenLogprob
from ggfw.sampling.logprobs import token_logprob

#: Rows of a prompt per step: what is worked out of each, over the whole vocabulary, delays all others meanwhile.
ROWS = 16


async def prompt_logprobs(model: Model, ids: list[int], n_top: int) -> list[TokenLogprob]:
    """Evaluate a prompt beside what runs, and tell of each token how likely it was; of the first, nan.

    Args:
        ids: of the prompt, at least one.
        n_top: alternatives per token.

    Raises:
        InvalidRequest: no token, one that is none of the vocabulary, or a model that writes no text.
        ContextLengthExceeded: they do not fit the context.
    """
    loaded = model.loaded
    if not loaded.n_vocab or not loaded.architecture.chunkable:
        raise InvalidRequest(f"{model.name} makes embeddings and has no logits", "model")
    if not ids:
        raise InvalidRequest("the prompt has no tokens; at least one is needed", "prompt")
    if len(ids) > model.n_ctx:
        raise ContextLengthExceeded(len(ids), model.n_ctx)
    wrong = next((id for id in ids if not 0 <= id < loaded.n_vocab), None)
    if wrong is not None:
        raise InvalidRequest(f"token id {wrong} is not in the vocabulary of {loaded.n_vocab}", "prompt")
    return await asyncio.wrap_future(model.engine.run(_evaluated(loaded, ids, n_top)))


def _evaluated(model: LoadedModel, ids: list[int], n_top: int) -> Generator[Any, None, list[TokenLogprob]]:
    sequence = model.cache.sequence()
    try:
        while True:
            try:
                sequence.reserve(len(ids))
                break
            except OutOfPages:
                yield WAIT
        out = [TokenLogprob(ids[0], math.nan, (), "text")]
        most = min(ROWS, model.executor.max_rows, model.executor.max_outputs)
        for start in range(0, len(ids), most):
            tokens = ids[start : start + most]
            rows = model.executor.step(Batch([Segment(sequence, tokens, len(tokens), True)])).logits
            assert rows is not None
            for row, token in zip(rows, ids[start + 1 : start + 1 + most], strict=False):
                found = token_logprob(row, token, n_top)
                out.append(TokenLogprob(found.id, found.logprob, found.top, "text"))
            yield None
        return out
    finally:
        sequence.close()

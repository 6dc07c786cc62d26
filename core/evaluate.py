"""Evaluating given tokens: logits of every position, hidden states, embeddings; jobs for ``Engine.run``."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ggfw.arguments import as_integer, integer
from ggfw.cache import OutOfPages
from ggfw.cache import Sequence as CacheSequence
from ggfw.engine import WAIT
from ggfw.errors import ContextLengthExceeded, InvalidRequest, UnsupportedError, brief
from ggfw.execute.batch import Batch, Segment, Wants
from ggfw.graph.pooling import pooling
from ggfw.request import token_ids

if TYPE_CHECKING:
    from ggfw.model import LoadedModel

F32 = NDArray[np.float32]


def evaluate(
    model: LoadedModel,
    prompts: Sequence[Sequence[int]],
    wants: Wants = Wants.LOGITS,
    *,
    chunk: int | None = None,
    together: bool = True,
) -> Generator[Any, None, list[F32]]:
    """Run ``prompts`` and collect one row per token.

    Args:
        model: the loaded model.
        prompts: token ids; each becomes a sequence of its own, starting at position 0.
        wants: LOGITS, HIDDEN or POOLED.
        chunk: rows of one sequence per step; default: as many as a step may have.
        together: sequences in the same steps, as one ragged batch, as many as the cache has room for; else one after
            the other.

    Returns:
        (through StopIteration) per prompt (n_tokens, n_vocab or n_embd) float32; POOLED: (1, n).

    Raises:
        InvalidRequest: an empty prompt, a bad id, or a chunk below 1.
        ContextLengthExceeded: a prompt is longer than the context.
    """
    try:
        checked = [token_ids(ids, "ids") for ids in prompts]
    except TypeError:
        raise InvalidRequest(f"{brief(prompts)} is no sequence of prompts of token ids", "prompts") from None
    if chunk is not None:
        chunk = integer("chunk", chunk, 1)
    if wants & Wants.LOGITS and not model.n_vocab:
        raise InvalidRequest(f"{model.name} makes embeddings and has no logits", param="model")
    for ids in checked:
        _check(model, ids)
    out: list[F32] = []
    while len(out) < len(checked):
        group = checked[len(out) :] if together else checked[len(out) : len(out) + 1]
        out += yield from _evaluate_group(model, group, wants, chunk)
    return out


def _check(model: LoadedModel, ids: list[int]) -> None:
    if not ids:
        raise InvalidRequest("there are no tokens to evaluate; at least one is needed", param="ids")
    if len(ids) > model.n_ctx:
        raise ContextLengthExceeded(len(ids), model.n_ctx)
    n_vocab = model.n_vocab or model.tokenizer.n_vocab
    for i in ids:
        if not 0 <= i < n_vocab:
            raise InvalidRequest(f"token id {brief(i)} is not in the vocabulary of {n_vocab}", param="ids")


def _reserve(model: LoadedModel, group: list[list[int]]) -> list[CacheSequence]:
    """A sequence with room for all of it, per prompt, for as many of the first ones as the cache has room for now."""
    taken: list[CacheSequence] = []
    for ids in group:
        try:
            sequence = model.cache.sequence()
        except OutOfPages:
            break
        try:
            sequence.reserve(len(ids))
        except OutOfPages:
            sequence.close()
            break
        taken.append(sequence)
    return taken


def _evaluate_group(
    model: LoadedModel, group: list[list[int]], wants: Wants, chunk: int | None
) -> Generator[Any, None, list[F32]]:
    """Rows of the first prompts of a group, as many as the cache has room for side by side; at least one's."""
    executor = model.executor
    most = min(executor.max_rows, executor.max_outputs)
    whole = not model.architecture.chunkable
    if whole:
        longest = max(map(len, group), default=0)
        if longest > most:
            raise ContextLengthExceeded(longest, most)
        chunk = None
    while not (sequences := _reserve(model, group)):
        yield WAIT
    group = group[: len(sequences)]
    out: list[F32] = [np.empty((0, 0), np.float32) for _ in group]
    done = [0] * len(group)
    try:
        while True:
            segments: list[Segment] = []
            who: list[int] = []
            room = most
            for index, ids in enumerate(group):
                left = len(ids) - done[index]
                n = min(left, room, chunk or left)
                if n < 1 or (whole and n < left):
                    continue
                tokens = ids[done[index] : done[index] + n]
                segments.append(Segment(sequences[index], tokens, n, True))
                who.append(index)
                room -= n
            if not segments:
                break
            result = executor.step(Batch(segments, wants))
            if wants & Wants.POOLED:  # of whole prompts: the architecture is not chunkable
                assert result.pooled is not None
                for row, index in enumerate(who):
                    out[index] = result.pooled[row : row + 1].copy()
                    done[index] = len(group[index])
                yield None
                continue
            rows = result.logits if wants & Wants.LOGITS else result.hidden
            assert rows is not None
            at = 0
            for index, segment in zip(who, segments, strict=True):
                n = segment.n_outputs
                if not done[index]:
                    out[index] = np.empty((len(group[index]), rows.shape[1]), np.float32)
                out[index][done[index] : done[index] + n] = rows[at : at + n]
                done[index] += n
                at += n
            yield None
    finally:
        for sequence in sequences:
            sequence.close()
    return out


def greedy(
    model: LoadedModel, ids: Sequence[int], n: int, *, ignore_eos: bool = True, chunk: int | None = None
) -> Generator[Any, None, list[int]]:
    """The ``n`` best tokens one after the other, by plain argmax (lowest id on a tie).

    Raises:
        ContextLengthExceeded: the prompt does not fit the context.
        InvalidRequest: ``n`` is below 1, or more than the context has room for.
    """
    prompt = token_ids(ids, "ids")
    _check(model, prompt)
    most = model.n_ctx + 1 - len(prompt)
    wanted = as_integer(n)
    if wanted is None or not 1 <= wanted <= most:
        raise InvalidRequest(
            f"{brief(n)} tokens behind a prompt of {len(prompt)} were asked for; the context of {model.n_ctx} has room "
            f"for 1 to {most} (--ctx)",
            param="n",
        )
    n = wanted
    executor = model.executor
    while not (taken := _reserve(model, [prompt + [0] * max(n - 1, 0)])):
        yield WAIT
    sequence = taken[0]
    out: list[int] = []
    try:
        step = (
            min(chunk or executor.max_rows, executor.max_rows)
            if model.architecture.chunkable
            else len(prompt)
        )
        logits = None
        for start in range(0, len(prompt), step):
            tokens = prompt[start : start + step]
            last = start + step >= len(prompt)
            logits = executor.step(Batch([Segment(sequence, tokens, int(last), True)])).logits
            yield None
        while True:
            assert logits is not None
            out.append(int(np.argmax(logits[-1])))
            if len(out) >= n or (not ignore_eos and model.tokenizer.is_eog(out[-1])):
                return out
            logits = executor.step(Batch([Segment(sequence, out[-1:])])).logits
            yield None
    finally:
        sequence.close()


def pooled(
    model: LoadedModel, prompts: Sequence[Sequence[int]], *, chunk: int | None = None, together: bool = True
) -> Generator[Any, None, list[F32]]:
    """Run ``prompts`` and make one vector of each, as the model says: its own pooling and what stands after it.

    Models that generate text say how (``{arch}.pooling_type``), or nothing: then it is the mean.

    Args:
        chunk, together: see :func:`evaluate`.

    Returns:
        (through StopIteration) per prompt (n,) float32, not normalised.

    Raises:
        UnsupportedError: the file is a reranker, and its architecture describes no classifier.
        InvalidRequest, ContextLengthExceeded: as :func:`evaluate` does.
    """
    kind = pooling_kind(model)
    wants = Wants.HIDDEN if model.graph.pooled is None else Wants.POOLED
    found = yield from evaluate(model, prompts, wants, chunk=chunk, together=together)
    if wants & Wants.POOLED:
        return [rows[0] for rows in found]
    return [pool(hidden, kind) for hidden in found]


def pooling_kind(model: LoadedModel) -> str:
    """Return how a model makes one vector of its hidden states: mean, first, last, or rank (scores of a classifier).

    Raises:
        ModelFileError: the file's number stands for nothing.
        UnsupportedError: rank, and the architecture describes no classifier.
    """
    kind = pooling(model.hparams) or "mean"
    if kind == "rank" and model.graph.pooled is None:
        raise UnsupportedError(
            f"{model.name} is a reranker, and the architecture {model.hparams.architecture} describes no classifier"
        )
    return kind


def pool(hidden: F32, kind: str) -> F32:
    """Return one vector (n_embd,) of the hidden states (n_tokens, n_embd); ``kind`` is mean, first or last."""
    if kind == "mean":
        return hidden.mean(axis=0, dtype=np.float64).astype(np.float32)
    return hidden[0 if kind == "first" else -1]


def normalised(vector: F32) -> F32:
    """Return ``vector`` at length 1; as it is where its norm is at most 1e-8."""
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / norm).astype(np.float32) if norm > 1e-8 else vector

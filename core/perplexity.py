"""Perplexity of a text, and how far a model's distributions are from those of another that were saved.

As llama.cpp's ``perplexity`` tool does it: the text is cut into chunks of the context's length, BOS takes the place of
each one's first token where the model wants it, and the second half of each chunk counts, so that every counted token
has a long context.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from math import exp, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ggfw.arguments import integer
from ggfw.errors import InvalidRequest
from ggfw.logprob_file import LogprobReader, LogprobWriter
from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw.library import Model

#: Positions whose float64 copies of the vocabulary are made at once.
_ROWS = 64


@dataclass(frozen=True)
class Divergence:
    """Distance from a saved base, over the counted tokens.

    Args:
        mean_kl, kl_error: mean of KL(base || model) in nats, and its standard error.
        max_kl, kl_99: largest, and 99th percentile.
        top1_same: share of positions with the same likeliest token.
        base_perplexity: of the base on the same tokens.
    """

    mean_kl: float
    kl_error: float
    max_kl: float
    kl_99: float
    top1_same: float
    base_perplexity: float


@dataclass(frozen=True)
class Perplexity:
    """What :func:`perplexity` found.

    Args:
        value, error: the perplexity, and its standard error.
        n_tokens: tokens that counted.
        n_chunks: chunks of the text.
        divergence: where there was a base.
    """

    value: float
    error: float
    n_tokens: int
    n_chunks: int
    divergence: Divergence | None = None


def perplexity(
    model: Model,
    text: str,
    *,
    ctx: int = 512,
    max_chunks: int | None = None,
    save: str | os.PathLike[str] | None = None,
    base: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> Perplexity:
    """Measure the perplexity of ``text``.

    Args:
        model: a loaded model with a context of at least ``ctx``.
        text: at least one chunk long; what is left after the last whole chunk does not count.
        ctx: tokens of a chunk.
        max_chunks: chunks at most; None: all.
        save: file to write the log-probabilities to, as a base for later (float16, 2 bytes per token of the
            vocabulary and position).
        base: file another run has saved for the same text, vocabulary and ``ctx``.
        progress: called after each chunk with its number, how many there are, and the perplexity so far.

    Raises:
        InvalidRequest: the text is too short, or the base belongs to something else.
    """
    ctx = integer("ctx", ctx, 0)
    max_chunks = None if max_chunks is None else integer("max_chunks", max_chunks, 0)
    chunks = _chunks(model, text, ctx, max_chunks)
    first = ctx // 2  # the first position whose next token counts
    counted = np.array([chunk[first + 1 :] for chunk in chunks], np.int32)  # (n_chunks, ctx - first - 1)
    tally = _Tally()
    with ExitStack() as files:
        n_vocab = model.loaded.n_vocab
        reader = base and files.enter_context(LogprobReader(Path(base), counted, ctx, n_vocab))
        writer = save and files.enter_context(LogprobWriter(Path(save), counted, ctx, n_vocab))
        for number, chunk in enumerate(chunks):
            rows = model.logits(chunk)[first:-1]  # (ctx - first - 1, n_vocab)
            for begin in range(0, len(rows), _ROWS):
                logprobs = _log_softmax(rows[begin : begin + _ROWS])
                if writer:
                    writer.write(logprobs)
                theirs = reader.read(len(logprobs)) if reader else None
                tally.add(logprobs, counted[number, begin : begin + _ROWS], theirs)
            if progress is not None:
                progress(number + 1, len(chunks), tally.value)
    return tally.result(len(chunks))


def _chunks(model: Model, text: str, ctx: int, most: int | None) -> list[list[int]]:
    """The chunks of a text, each ``ctx`` tokens long."""
    tokenizer = model.tokenizer
    ids = tokenizer.encode(text)
    if ctx < 8 or len(ids) < ctx:
        raise InvalidRequest(
            f"the text has {len(ids)} tokens and a chunk {ctx}; give a longer text, or a --ctx of 8 up to its length",
            "text",
        )
    bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    n_chunks = min(len(ids) // ctx, most or len(ids))
    return [bos + ids[i * ctx + len(bos) : (i + 1) * ctx] for i in range(n_chunks)]


class _Tally:
    """What is known of every counted token so far."""

    def __init__(self) -> None:
        self._nll: list[NDArray[Any]] = []
        self._base_nll: list[NDArray[Any]] = []
        self._kl: list[NDArray[Any]] = []
        self._same: list[NDArray[Any]] = []

    def add(self, logprobs: NDArray[Any], tokens: NDArray[np.int32], base: NDArray[Any] | None) -> None:
        """Count rows of log-probabilities (n, n_vocab), their right tokens (n,) and the base's rows."""
        self._nll.append(-np.take_along_axis(logprobs, tokens[:, None], 1)[:, 0])
        if base is not None:
            p = np.exp(base)
            self._kl.append((p * (base - logprobs)).sum(1))
            self._same.append(base.argmax(1) == logprobs.argmax(1))
            self._base_nll.append(-np.take_along_axis(base, tokens[:, None], 1)[:, 0])

    @property
    def value(self) -> float:
        """The perplexity so far."""
        return exp(float(np.concatenate(self._nll).mean()))

    def result(self, n_chunks: int) -> Perplexity:
        """The whole."""
        nll = np.concatenate(self._nll)
        found = None
        if self._kl:
            kl = np.concatenate(self._kl)
            found = Divergence(
                mean_kl=float(kl.mean()),
                kl_error=_error(kl),
                max_kl=float(kl.max()),
                kl_99=float(np.quantile(kl, 0.99)),
                top1_same=float(np.concatenate(self._same).mean()),
                base_perplexity=exp(float(np.concatenate(self._base_nll).mean())),
            )
        return Perplexity(self.value, self.value * _error(nll), len(nll), n_chunks, found)


def _error(values: NDArray[Any]) -> float:
    """Standard error of the mean."""
    return float(values.std(ddof=1) / sqrt(len(values))) if len(values) > 1 else 0.0


def _log_softmax(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    x = rows.astype(np.float64)
    x -= x.max(1, keepdims=True)
    x -= np.log(np.exp(x).sum(1, keepdims=True))
    return x

"""The batch of one step, and what a step gives back: the contract between scheduler and executors.

A batch is ragged: *segments* of consecutive rows, each of one sequence. Executors order segments themselves (decode
rows first) and hand results back in the order of the batch.
"""

from __future__ import annotations

from dataclasses import field
from enum import IntFlag
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw.cache import Sequence
    from ggfw.execute.cache_memory import CacheMemory
    from ggfw.sampling import SamplerSetup


class Wants(IntFlag):
    """What a step has to compute for its output rows."""

    LOGITS = 1
    HIDDEN = 2
    POOLED = 4


@dataclass(slots=True)
class Segment:
    """Consecutive rows of one sequence.

    Args:
        sequence: where its cache lives; rows start at position ``sequence.n_positions``.
        tokens: ids of the rows.
        n_outputs: that many of its last rows want logits (or hidden states).
        prompt: True for rows of a prompt, False for decode (and verify) rows: the kind decides the kernels' route.
        sampler: a native sampler from :meth:`Executor.new_sampler` for the last row, or None (a *host* row: the
            caller picks from ``StepResult.logits``).
        embeddings: (n_rows, n_embd) float32 instead of looking tokens up, or None.
        n_draft: that many of the last tokens are guesses, to be verified: each is an output, and so is the row before
            them (``n_outputs == n_draft + 1``). A native sampler draws from row after row while it draws the next
            row's guess. The sequence advances by the other rows; the caller finds out which guesses turned out right,
            and advances it by those (``sequence.advance(n, n)``).
    """

    sequence: Sequence
    tokens: list[int]
    n_outputs: int = 1
    prompt: bool = False
    sampler: Any = None
    embeddings: np.ndarray | None = None
    n_draft: int = 0


@dataclass(slots=True)
class Batch:
    """Segments that run together in one step; a sequence occurs at most once."""

    segments: list[Segment]
    wants: Wants = Wants.LOGITS


@dataclass(slots=True)
class StepResult:
    """What one step computed. Arrays are views that stay valid until the executor's next step.

    Attributes:
        logits: (n_outputs, n_vocab) float32, outputs of the segments one after the other; None unless wanted.
        hidden: (n_outputs, n_embd) float32 after the final norm; None unless wanted.
        pooled: (n_segments, n_embd) float32; None unless wanted.
        sampled: per segment the id its native sampler picked, a negative sampler status (non-finite logits), or None
            for a host row.
        followers: by the index of a segment with drafts, what its native sampler drew after ``sampled``: as many more
            as drafts turned out right, perhaps with a negative status as the last.
    """

    logits: np.ndarray | None = None
    hidden: np.ndarray | None = None
    pooled: np.ndarray | None = None
    sampled: list[int | None] = field(default_factory=list)
    followers: dict[int, list[int]] = field(default_factory=dict)


class Executor(Protocol):
    """Runs the graph of one model for ragged batches. One thread at a time may call :meth:`step`."""

    name: str
    n_vocab: int
    max_rows: int  # rows one batch may have
    max_outputs: int  # output rows one batch may have

    @property
    def memory(self) -> CacheMemory:
        """The bytes of pages and states, for whoever copies them between steps."""

    def step(self, batch: Batch) -> StepResult:
        """Run one step and advance every segment's ``sequence.n_positions`` by its rows, drafts excepted.

        Raises:
            GenerationError: the step was aborted.
            InvalidRequest: a token id is out of range, or the batch exceeds ``max_rows`` / ``max_outputs``.
        """

    def abort(self) -> None:
        """Ask a running step (of another thread) to stop as soon as it can."""

    def new_sampler(self, setup: SamplerSetup, prompt: list[int]) -> Any:
        """Return a native sampler that has seen ``prompt``, or None where there is none.

        Called only for setups without a ``host_reason``. With ``setup.n_logprobs`` its ``take_logprob()`` gives, after
        a step, the :class:`ggfw.sampling.TokenLogprob` of the token that was drawn.
        """

    def close(self) -> None:
        """Free everything; later calls fail."""

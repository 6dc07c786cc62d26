"""Edits: the stages at the head of the chain that change the logits of few, known ids.

Logit bias and the repetition penalties touch a handful of ids of a large row. Each edit therefore names the ids it
touches and says whether it can raise a logit; when none can, the chain looks only at the best k + u entries of the
row (u = number of touched ids) instead of copying it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np

from ggfw.sampling.arithmetic import F32, NEG_INF, Ids


class Edit(Protocol):
    """A stage that changes the logits of the ids it names, each without looking at the others.

    Like every stage it may have ``seed(ids)`` and ``accept(token)``: the sampler calls them with the prompt and with
    each token that entered the text.
    """

    name: str
    order: int

    def touched(self) -> Iterable[int]:
        """The distinct ids whose logits it changes now."""
        ...

    def only_lowers(self) -> bool:
        """Whether no logit is ever raised."""
        ...

    def edit(self, ids: Ids, logits: F32) -> F32:
        """New logits (n,) float32 of the ids (n,); those of untouched ids as they were."""
        ...


class LogitBias:
    """Add a constant to the logits of chosen ids; -inf suppresses a token.

    Args:
        bias: id -> float32 addend, -inf or finite.
    """

    name = "logit_bias"
    order = 100

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._bias = dict(bias)
        self._lowers = all(b <= 0 for b in self._bias.values())

    def touched(self) -> Iterable[int]:
        return self._bias

    def only_lowers(self) -> bool:
        return self._lowers

    def edit(self, ids: Ids, logits: F32) -> F32:
        hit = [i for i, t in enumerate(ids.tolist()) if t in self._bias]
        if not hit:
            return logits
        out = logits.copy()
        out[hit] += np.asarray([self._bias[t] for t in ids[hit].tolist()], dtype=np.float32)
        return out


class MinTokens:
    """Suppress the tokens that end the generation until ``n`` tokens have been accepted.

    Args:
        n: tokens that must come first; the prompt does not count.
        end_ids: ids that end the generation.
    """

    name = "min_tokens"
    order = 150

    def __init__(self, n: int, end_ids: Iterable[int]) -> None:
        self._left = n
        self._end_ids = frozenset(end_ids)

    def accept(self, token: int) -> None:
        """Count a token."""
        self._left -= 1

    def touched(self) -> Iterable[int]:
        return self._end_ids if self._left > 0 else ()

    def only_lowers(self) -> bool:
        return True

    def edit(self, ids: Ids, logits: F32) -> F32:
        if self._left <= 0:
            return logits
        ends = np.fromiter((t in self._end_ids for t in ids.tolist()), dtype=bool, count=ids.size)
        return np.where(ends, NEG_INF, logits)


class Window:
    """The last ``last_n`` accepted ids with their counts; ``last_n`` < 0 keeps the whole conversation, 0 nothing."""

    def __init__(self, last_n: int) -> None:
        self.last_n = last_n
        self.counts: dict[int, int] = {}
        self._recent: deque[int] = deque()  # empty when unbounded: nothing ever leaves

    def push(self, token: int) -> None:
        """Take ``token`` in and, when full, let the oldest go."""
        if self.last_n == 0:
            return
        if self.last_n > 0:
            if len(self._recent) == self.last_n:
                oldest = self._recent.popleft()
                left = self.counts[oldest] - 1
                if left:
                    self.counts[oldest] = left
                else:
                    del self.counts[oldest]
            self._recent.append(token)
        self.counts[token] = self.counts.get(token, 0) + 1

    def copy(self) -> Window:
        """An independent window with the same content."""
        out = Window(self.last_n)
        out.counts = dict(self.counts)
        out._recent = self._recent.copy()
        return out


class Penalties:
    """Repetition, frequency and presence penalties over the window (prompt included).

    For an id that stands n times in it: ``l > 0: l / repeat, else l * repeat``; then ``l -= n * freq + present``.
    Source: mechanics of llama.cpp's and golem's penalties; all in float32.
    """

    name = "penalties"
    order = 200

    def __init__(self, window: Window, repeat: float, freq: float, present: float) -> None:
        self.window = window
        self._repeat, self._freq, self._present = np.float32(repeat), np.float32(freq), np.float32(present)

    def touched(self) -> Iterable[int]:
        return self.window.counts

    def only_lowers(self) -> bool:
        return bool(self._repeat >= 1 and self._freq >= 0 and self._present >= 0)

    def edit(self, ids: Ids, logits: F32) -> F32:
        get = self.window.counts.get
        n = np.asarray([get(t, 0) for t in ids.tolist()], dtype=np.float32)
        scaled = np.where(logits > 0, logits / self._repeat, logits * self._repeat)
        return np.where(n > 0, scaled - (n * self._freq + self._present), logits)

"""The sampler: a row of logits goes in, a token comes out.

Order (golem's and llama.cpp's): edits (logit bias, penalties) -> top-k -> typical-p -> top-p -> min-p -> [one left:
returned, no random number] -> temperature -> softmax -> draw. ``temperature <= 0`` is greedy: edits and the
constraint still apply, nothing is drawn. A best logit of +inf is certain: its lowest id is returned, nothing is
drawn.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from ggfw.errors import NonFiniteLogits
from ggfw.sampling.arithmetic import F32, NEG_INF, Ids, as_row, normalised, select_best
from ggfw.sampling.constraint import Constraint, allowed_ids
from ggfw.sampling.edits import Edit, LogitBias, Penalties, Window
from ggfw.sampling.params import Params
from ggfw.sampling.rng import MASK64, Pcg
from ggfw.sampling.stages import (
    Candidates,
    MinP,
    Stage,
    StageContext,
    Temperature,
    TopK,
    TopP,
    Typical,
    sorted_candidates,
)

#: The width of the search under a constraint grows by this factor until enough candidates are allowed.
WIDENING = 4


def build_stages(params: Params) -> list[Stage]:
    """The active stages behind the edits for ``params``, in their order; [] for greedy sampling."""
    if params.is_greedy:
        return []
    stages: list[Stage] = []
    if params.top_k > 0:
        stages.append(TopK(params.top_k))
    if params.typical_p < 1:
        stages.append(Typical(params.typical_p))
    if params.top_p < 1:
        stages.append(TopP(params.top_p))
    if params.min_p > 0:
        stages.append(MinP(params.min_p))
    stages.append(Temperature(params.temperature))
    return stages


class Sampler:
    """Draws the tokens of one sequence; owns its random generator and its penalty window. Not thread-safe.

    Args:
        params: the parameters; default :func:`ggfw.sampling.defaults`.
        stages: further stages, placed by their ``order``.
    """

    def __init__(self, params: Params | None = None, stages: Iterable[Stage] = ()) -> None:
        self.params = params if params is not None else Params()
        seed = self.params.seed
        #: The seed in use, 0 .. 2^64 - 1, also when the parameters left it open.
        self.rng_seed: int = secrets.randbits(64) if seed is None or seed == -1 else seed & MASK64
        self.rng = Pcg.from_seed(self.rng_seed)
        self.constraint: Constraint | None = None
        self._extra = tuple(stages)
        self._wire(Window(self.params.penalty_last_n if self.params.penalises else 0))

    def _wire(self, window: Window) -> None:
        """Build edits and stages around ``window``."""
        p = self.params
        self.window = window
        self._edits: list[Edit] = []
        if p.logit_bias:
            self._edits.append(LogitBias(p.logit_bias))
        if p.penalises:
            self._edits.append(Penalties(window, p.penalty_repeat, p.penalty_freq, p.penalty_present))
        # sorted() is stable: at equal order built-in stages stay before further ones.
        self._stages = sorted([*build_stages(p), *self._extra], key=lambda s: s.order)
        self._only_lowers = all(e.only_lowers() for e in self._edits)
        self._width = 1 if p.is_greedy else (self._stages[0].limit if self._stages else None)

    def copy(self) -> Sampler:
        """An independent sampler that goes on exactly like this one; the constraint is not taken along."""
        out = Sampler.__new__(Sampler)
        out.params, out.rng_seed, out.rng, out.constraint = self.params, self.rng_seed, self.rng.copy(), None
        out._extra = self._extra
        out._wire(self.window.copy())
        return out

    def constrain(self, constraint: Constraint | None) -> None:
        """Attach a constraint; None removes it."""
        self.constraint = constraint

    def seed(self, ids: Iterable[int]) -> None:
        """Push the prompt into the penalty window; the constraint does not see it."""
        for token in ids:
            self.window.push(int(token))

    def accept(self, token: int) -> None:
        """Say that ``token`` entered the text: it goes into the penalty window and into the constraint."""
        self.window.push(int(token))
        if self.constraint is not None:
            self.constraint.accept(int(token))

    def pick(self, row: ArrayLike) -> int:
        """One token for a row of raw logits (n_vocab,) float32, which is not written to; an empty row gives 0.

        With a constraint: draw as usual, ask once; on refusal draw again among the allowed tokens. If nothing in
        the vocabulary is allowed, the refused token is returned (the caller may ask and stop).

        Raises:
            NonFiniteLogits: after bias and penalties no logit is above -inf.
        """
        logits = as_row(row)
        if logits.size == 0:
            return 0
        with np.errstate(all="ignore"):  # infinities are dealt with where they arise
            token = self._draw(self._filter(self._head(logits), logits.size))
            if self.constraint is None or self.constraint.allows(token):
                return token
            allowed = self._allowed_head(logits, self.constraint)
            return token if allowed is None else self._draw(self._filter(allowed, logits.size))

    def distribution(self, row: ArrayLike) -> tuple[Ids, F32]:
        """What :meth:`pick` draws from, without the constraint: ids (n,) best first, probabilities (n,) float32."""
        logits = as_row(row)
        if logits.size == 0:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        with np.errstate(all="ignore"):
            c = self._filter(self._head(logits), logits.size)
            return c.ids, normalised(c.logits) if c.ids.size > 1 else np.ones(1, np.float32)

    # -- the head of the chain: from the row to the candidates that the first stage needs ----------

    def _touched(self) -> set[int]:
        return set().union(*(e.touched() for e in self._edits))

    def _edited(self, ids: Ids, logits: F32) -> F32:
        for e in self._edits:
            logits = e.edit(ids, logits)
        return logits

    def _edited_row(self, row: F32) -> F32:
        """A copy of the row with the touched ids edited, NaN (inf - inf) replaced by -inf."""
        ids = np.asarray([t for t in self._touched() if 0 <= t < row.size], dtype=np.int64)
        out = row.copy()
        values = self._edited(ids, row[ids])
        out[ids] = np.where(np.isnan(values), NEG_INF, values)
        return out

    def _head(self, row: F32) -> Candidates:
        """The best candidates after the edits, as many as the first stage needs."""
        n = row.size
        width = self._width or n
        if not self._edits:
            ids = select_best(row, width)
            return sorted_candidates(ids, row[ids])
        if self._only_lowers:
            # At least `width` of the best width + u raw entries are untouched, and nothing outside can rise.
            ids = select_best(row, width + len(self._touched()))
            c = sorted_candidates(ids, self._edited(ids, row[ids]))
        else:
            edited = self._edited_row(row)
            ids = select_best(edited, width)
            c = sorted_candidates(ids, edited[ids])
        if c.ids.size == 0:
            raise NonFiniteLogits(
                f"all {n} logits are -inf after logit bias and penalties; bias fewer tokens"
            )
        return c.head(width)

    def _allowed_head(self, row: F32, constraint: Constraint) -> Candidates | None:
        """The same under the constraint: ever wider heads of the row until enough is allowed; None if nothing is."""
        n = row.size
        base = row if self._only_lowers else self._edited_row(row)
        n_touched = len(self._touched()) if self._only_lowers else 0
        width = self._width or n
        target = width + n_touched
        looked_at = width
        while True:
            ids = allowed_ids(constraint, select_best(base, looked_at))
            if ids.size >= target or looked_at >= n:
                break
            looked_at = min(n, looked_at * WIDENING)
        c = sorted_candidates(ids, self._edited(ids, base[ids]) if self._only_lowers else base[ids])
        return c.head(width) if c.ids.size else None

    # -- the tail: from the candidates to the token ------------------------------------------------

    def _filter(self, c: Candidates, n_vocab: int) -> Candidates:
        if c.logits[0] == np.inf:
            return c.head(1)
        context = StageContext(self.rng, self.window, n_vocab)
        for stage in self._stages:
            c = stage.apply(c, context)
        return c

    def _draw(self, c: Candidates) -> int:
        """The first candidate whose cumulated probability exceeds the drawn number; the last absorbs rounding."""
        if c.ids.size == 1:
            return int(c.ids[0])
        cumulated = np.add.accumulate(normalised(c.logits))
        r = np.float32(self.rng.float64())
        return int(c.ids[min(int(np.searchsorted(cumulated, r, side="right")), c.ids.size - 1)])

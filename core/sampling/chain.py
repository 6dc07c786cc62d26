"""The sampler: a row of logits goes in, a token comes out.

Order (golem's and llama.cpp's): edits (logit bias, penalties, DRY) -> top-n-sigma -> top-k -> typical-p -> top-p ->
min-p -> XTC -> [one left: returned, no random number] -> temperature -> softmax -> draw; ``samplers`` changes it.
``temperature <= 0`` is greedy: edits and the constraint still apply, nothing is drawn. A best logit of +inf is
certain: its lowest id is returned, nothing is drawn.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ggfw.errors import GgfwError, NonFiniteLogits, PluginError, kind_and_text
from ggfw.sampling.arithmetic import F32, NEG_INF, Ids, as_row, normalised, select_best
from ggfw.sampling.build import SamplerVocab, build_edits, build_stages, place, split_edits
from ggfw.sampling.constraint import Constraint, allowed_ids
from ggfw.sampling.edits import Edit, Window
from ggfw.sampling.params import Params
from ggfw.sampling.rng import MASK64, Pcg
from ggfw.sampling.stages import Candidates, Stage, StageContext, sorted_candidates

#: The width of the search under a constraint grows by this factor until enough candidates are allowed.
WIDENING = 4


class Sampler:
    """Draws the tokens of one sequence; owns its random generator and its penalty window. Not thread-safe.

    Args:
        params: the parameters; default :func:`ggfw.sampling.defaults`.
        stages: further stages or edits, for this sampler alone; placed where ``params.samplers`` names them, else by
            their ``order``.
        vocab: which tokens end the generation (for ``min_tokens``) and which are DRY's breakers.
    """

    def __init__(
        self,
        params: Params | None = None,
        stages: Iterable[Stage | Edit] = (),
        vocab: SamplerVocab | None = None,
    ) -> None:
        self.params = p = params if params is not None else Params()
        self.vocab = vocab if vocab is not None else SamplerVocab()
        seed = p.seed
        #: The seed in use, 0 .. 2^64 - 1, also when the parameters left it open.
        self.rng_seed: int = (
            int.from_bytes(os.urandom(8), "little") if seed is None or seed == -1 else seed & MASK64
        )
        self.rng = Pcg.from_seed(self.rng_seed)
        self.constraint: Constraint | None = None
        self.window = Window(p.penalty_last_n if p.penalises else 0)
        chain = place(build_stages(p, self.vocab, self.window), stages, p.samplers)
        edits, self._stages = split_edits(chain)
        self._edits: list[Edit] = [*build_edits(p, self.vocab), *edits]
        self._wire()

    def _wire(self) -> None:
        """Note what follows from edits and stages."""
        self._only_lowers = all(e.only_lowers() for e in self._edits)
        first: Any = self._stages[0] if self._stages else None
        self._width = 1 if self.params.is_greedy else (None if first is None else first.limit)
        self._bound = None if self.params.is_greedy else getattr(first, "bound", None)
        self._select = getattr(self._stages[-1], "select", None) if self._stages else None
        whole: list[Any] = [*self._edits, *self._stages]
        self._seeds = [s.seed for s in whole if hasattr(s, "seed")]
        self._accepts = [s.accept for s in whole if hasattr(s, "accept")]

    def copy(self) -> Sampler:
        """An independent sampler that goes on exactly like this one; the constraint is not taken along."""
        out = Sampler.__new__(Sampler)
        out.params, out.vocab, out.rng_seed, out.constraint = self.params, self.vocab, self.rng_seed, None
        out.rng = self.rng.copy()
        # Together, so that what shares the window goes on sharing it.
        out.window, out._edits, out._stages = copy.deepcopy((self.window, self._edits, self._stages))
        out._wire()
        return out

    def constrain(self, constraint: Constraint | None) -> None:
        """Attach a constraint; None removes it."""
        self.constraint = constraint

    def seed(self, ids: Iterable[int]) -> None:
        """Push the prompt into the penalty window and to the stages; the constraint does not see it."""
        tokens = [int(token) for token in ids]
        for token in tokens:
            self.window.push(token)
        for seed in self._seeds:
            seed(tokens)

    def accept(self, token: int) -> None:
        """Say that ``token`` entered the text: it goes into the penalty window, the stages and the constraint."""
        token = int(token)
        self.window.push(token)
        for accept in self._accepts:
            accept(token)
        if self.constraint is not None:
            self.constraint.accept(token)

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
            token = self._draw(self._shortlist(logits), logits)
            if self.constraint is None or self.constraint.allows(token):
                return token
            allowed = self._allowed_head(logits, self.constraint)
            return (
                token if allowed is None else self._draw(self._filter(allowed, self._stages, logits), logits)
            )

    def distribution(self, row: ArrayLike) -> tuple[Ids, F32]:
        """What :meth:`pick` draws from, without the constraint: ids (n,) best first, probabilities (n,) float32.

        No random number is used up: a stage that draws one (XTC) draws the same again in :meth:`pick`.
        """
        logits = as_row(row)
        if logits.size == 0:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        state = self.rng.state
        with np.errstate(all="ignore"):
            c = self._shortlist(logits)
            self.rng.state = state
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

    def _shortlist(self, row: F32) -> Candidates:
        """Row -> the candidates that are drawn from."""
        if self._bound is not None:
            edited = self._edited_row(row) if self._edits else row
            bound = self._bound(edited)
            if bound is not None and bound > NEG_INF:
                return self._filter(self._above(edited, bound), self._stages[1:], row)
        return self._filter(self._head(row), self._stages, row)

    def _above(self, row: F32, bound: np.float32) -> Candidates:
        """The candidates of an edited row that reach the first stage's bound, as many as the second stage needs."""
        ids = np.flatnonzero(row >= bound)
        limit = self._stages[1].limit if len(self._stages) > 1 else None
        if limit is not None and limit < ids.size:
            ids = ids[select_best(row[ids], limit)]
        return sorted_candidates(ids, row[ids])

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

    def _filter(self, c: Candidates, stages: list[Stage], row: F32) -> Candidates:
        if c.logits[0] == np.inf:
            return c.head(1)
        context = self._context(row)
        for stage in stages:
            try:
                c = stage.apply(c, context)
            except GgfwError:
                raise
            except Exception as error:
                raise PluginError(f"the sampler stage {stage.name} failed: {kind_and_text(error)}") from error
            if not isinstance(c, Candidates) or not c.ids.size:
                gave = "no candidate" if isinstance(c, Candidates) else type(c).__name__
                raise PluginError(f"the sampler stage {stage.name} gave {gave}; Candidates were expected")
        return c

    def _context(self, row: F32) -> StageContext:
        return StageContext(self.rng, self.window, row.size, row)

    def _draw(self, c: Candidates, row: F32) -> int:
        """The first candidate whose cumulated probability exceeds the drawn number; the last absorbs rounding."""
        if c.ids.size == 1:
            return int(c.ids[0])
        if self._select is not None:
            return int(c.ids[self._select(c, self._context(row))])
        cumulated = np.add.accumulate(normalised(c.logits))
        r = np.float32(self.rng.float64())
        return int(c.ids[min(int(np.searchsorted(cumulated, r, side="right")), c.ids.size - 1)])

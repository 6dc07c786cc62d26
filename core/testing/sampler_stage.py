"""Conformance of sampler stages."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from ggfw.descriptors import SamplerStage, resolve
from ggfw.errors import InvalidRequest, brief
from ggfw.sampling import Candidates, Params, Pcg, Sampler, StageContext
from ggfw.sampling.edits import Window
from ggfw.testing.checks import Checks, NotApplicable

__all__ = ["SamplerStageChecks"]

_TRIED = (0.5, 0.1, 0.9, 1.0, 2, 5, True)


class SamplerStageChecks(Checks[SamplerStage]):
    """See the methods."""

    kind = SamplerStage
    rules = (
        "descriptor",
        "load",
        "off",
        "on",
        "place",
        "candidates",
        "untouched",
        "edits",
        "reproducible",
        "draws",
    )
    gates = frozenset({"descriptor", "load", "on", "place"})

    def load(self) -> None:
        """``load`` can be imported and called."""
        self._load = resolve(self.item.load)
        assert callable(self._load), f"load gives {self._load!r}, expected a function of the parameters"

    def off(self) -> None:
        """With all parameters at their "off" values the stage is None, or changes nothing."""
        if not self.item.params:
            raise NotApplicable("it has no parameters")
        stage = self._load(Params(extra=dict(self.item.params)))
        if stage is None:
            return
        for c in _cases() if hasattr(stage, "apply") else ():
            out = stage.apply(c, _context(c))
            assert np.array_equal(out.ids, c.ids) and np.array_equal(out.logits, c.logits), (
                f"with {dict(self.item.params)} it still changes the candidates"
            )

    def on(self) -> None:
        """Some values of its parameters (``sample``, ``profile``, or usual ones) switch it on."""
        self._params = self._find()

    def place(self) -> None:
        """The stage has the descriptor's name and order, and ``limit``, and either ``apply`` or ``edit``."""
        stage = self._make()
        filters, edits = (callable(getattr(stage, name, None)) for name in ("apply", "edit"))
        assert filters != edits, f"load gives {brief(stage)}; a stage has either apply or edit"
        for name in ("name", "order"):
            said, wanted = getattr(stage, name, None), getattr(self.item, name)
            assert said == wanted, f"the stage says {name} {said!r}, the descriptor {wanted!r}"
        if filters:
            assert hasattr(stage, "limit"), "a stage with apply needs limit (None: all candidates)"
            assert stage.limit is None or stage.limit >= 1, (
                f"limit is {stage.limit!r}, expected None or 1 and more"
            )

    def candidates(self) -> None:
        """``apply`` leaves at least one of the given candidates, best first, with finite logits, none twice."""
        for stage, c in self._filters():
            out = stage.apply(c, _context(c))
            n = c.ids.size
            assert out.ids.size >= 1, f"none of {n} candidates is left"
            assert out.ids.shape == out.logits.shape, f"{out.ids.size} ids have {out.logits.size} logits"
            assert np.isin(out.ids, c.ids).all(), "there are candidates that were not among the given ones"
            assert np.unique(out.ids).size == out.ids.size, "a candidate comes twice"
            assert out.logits.dtype == np.float32, f"logits are {out.logits.dtype}, expected float32"
            assert np.isfinite(out.logits).all(), "a candidate's logit is not finite"
            assert (np.diff(out.logits) <= 0).all(), "the candidates are not sorted best first"

    def untouched(self) -> None:
        """Neither the model's row nor the given candidates are written to."""
        for stage, c in self._filters():  # both are read-only here: writing raises
            before = c.ids.copy(), c.logits.copy()
            context = _context(c)
            row = context.row.copy()
            stage.apply(c, context)
            assert np.array_equal(context.row, row), "the model's row is changed"
            assert np.array_equal(c.ids, before[0]) and np.array_equal(c.logits, before[1]), (
                "the given candidates are changed"
            )

    def edits(self) -> None:
        """``edit`` gives new float32 logits for the given ids, and changes only what ``touched`` names."""
        stage = self._make()
        if not hasattr(stage, "edit"):
            raise NotApplicable("it is a filter")
        _feed(stage)
        touched = np.array(sorted(stage.touched()), np.int64)
        ids = np.arange(32, dtype=np.int64)
        logits = np.random.default_rng(2).standard_normal(32).astype(np.float32)
        logits.flags.writeable = False
        out = stage.edit(ids, logits)
        assert out.shape == logits.shape and out.dtype == np.float32, "edit gives another shape or type"
        changed = ids[out != logits]
        assert np.isin(changed, touched).all(), (
            f"token {changed[:1]} is changed, but touched() does not name it"
        )
        assert not stage.only_lowers() or (out <= logits).all(), (
            "only_lowers() is True, but a logit was raised"
        )

    def reproducible(self) -> None:
        """Two stages made alike, and a copy of one, do the same with the same random numbers."""
        draws = [self._draw(self._make(), 24), self._draw(self._make(), 24)]
        assert draws[0] == draws[1], "two stages made with the same parameters and seed draw different tokens"
        sampler = self._sampler(self._make())
        [sampler.pick(row) for row in _rows(8)]
        twin = sampler.copy()
        rest = list(_rows(24))[8:]
        assert [sampler.pick(r) for r in rest] == [twin.pick(r) for r in rest], (
            "a copied stage goes on differently"
        )
        copy.deepcopy(self._make())

    def draws(self) -> None:
        """A sampler with the stage draws tokens of the vocabulary, also of one token."""
        for row in (np.zeros(1, np.float32), np.linspace(-4, 4, 300, dtype=np.float32)):
            token = self._sampler(self._make()).pick(row)
            assert 0 <= token < row.size, f"it draws {token} from a vocabulary of {row.size}"

    # -- making stages ---------------------------------------------------------------------------------------------

    def _find(self) -> Params:
        """Parameters that switch the stage on."""
        off = dict(self.item.params)
        given = self.sample()
        ways: list[Params] = []
        if given is not None:
            ways.append(Params(extra={**off, **given}, seed=1))
        if self.item.profile:
            ways.append(Params(**{**self.item.profile, "seed": 1}))
        ways += [Params(extra={name: value for name in off}, seed=1) for value in _TRIED if off]
        ways.append(Params(penalty_repeat=1.3, seed=1))
        for params in ways:
            try:
                if self._load(params) is not None:
                    return params
            except InvalidRequest:
                continue
        raise AssertionError(
            "no value that was tried switches it on; give the descriptor a sample: its parameters"
        )

    def _make(self) -> Any:
        return self._load(self._params)

    def _filters(self) -> Iterator[tuple[Any, Candidates]]:
        if not hasattr(self._make(), "apply"):
            raise NotApplicable("it is an edit")
        for c in _cases():
            stage = self._make()
            _feed(stage)
            yield stage, c if stage.limit is None else c.head(stage.limit)

    def _sampler(self, stage: Any) -> Sampler:
        sampler = Sampler(self._params, [stage])
        sampler.seed([1, 2, 3, 2, 1])
        return sampler

    def _draw(self, stage: Any, n: int) -> list[int]:
        sampler = self._sampler(stage)
        return [sampler.pick(row) for row in _rows(n)]


def _feed(stage: Any) -> None:
    if hasattr(stage, "seed"):
        stage.seed([1, 2, 3, 2])
    if hasattr(stage, "accept"):
        stage.accept(5)


def _rows(n: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(3)
    for _ in range(n):
        yield (3 * rng.standard_normal(300)).astype(np.float32)


def _cases() -> Iterator[Candidates]:
    """Candidates, best first and read-only: one, two equal ones, ordinary, flat, peaked, and large logits."""
    rng = np.random.default_rng(4)
    for logits in (
        [1.5], [2.0, 2.0], rng.standard_normal(1000), np.zeros(300), [60.0, *rng.standard_normal(99)],
        1e4 * rng.standard_normal(50), -1e4 - rng.random(20),
    ):  # fmt: skip
        values = np.asarray(logits, np.float32)
        ids = np.argsort(-values, kind="stable").astype(np.int64)
        out = Candidates(ids, values[ids])
        for array in out:
            array.flags.writeable = False
        yield out


def _context(c: Candidates) -> StageContext:
    row = np.full(c.ids.max() + 1, -1.0, np.float32)
    row[c.ids] = c.logits
    row.flags.writeable = False
    return StageContext(Pcg.from_seed(9), Window(0), row.size, row)

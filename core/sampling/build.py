"""From parameters to the stages of a chain, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ggfw.records import dataclass
from ggfw.sampling.dry import Breakers, Dry
from ggfw.sampling.edits import Edit, LogitBias, MinTokens, Penalties, Window
from ggfw.sampling.filters import TopNSigma, Xtc
from ggfw.sampling.order import DEFAULT_SAMPLERS
from ggfw.sampling.params import Params
from ggfw.sampling.stages import (
    DynamicTemperature,
    EditStage,
    MinP,
    Stage,
    Temperature,
    TopK,
    TopP,
    Typical,
)
from ggfw.sampling.steering import AdaptiveP, Mirostat, Mirostat2


@dataclass(frozen=True)
class SamplerVocab:
    """What a sampler has to know of a vocabulary.

    Args:
        end_ids: ids that end the generation, for ``min_tokens``.
        breakers: DRY's sequence breakers as tokens.
    """

    end_ids: tuple[int, ...] = ()
    breakers: Breakers = Breakers()

    def __deepcopy__(self, memo: object) -> SamplerVocab:
        return self


def is_edit(stage: Any) -> bool:
    """Whether a stage is an edit: it changes the logits of few, known ids, instead of taking candidates."""
    return hasattr(stage, "edit") and not hasattr(stage, "apply")


def build_edits(p: Params, vocab: SamplerVocab) -> list[Edit]:
    """The edits that always come first."""
    edits: list[Edit] = []
    if p.logit_bias:
        edits.append(LogitBias(p.logit_bias))
    if p.min_tokens > 0 and vocab.end_ids:
        edits.append(MinTokens(p.min_tokens, vocab.end_ids))
    return edits


def build_stages(p: Params, vocab: SamplerVocab, window: Window) -> list[Stage | Edit]:
    """The built-in stages that are on, in the order of ``p.samplers``; of a greedy chain only its edits."""
    if p.mirostat:
        if p.is_greedy:
            return []
        steering = (Mirostat if p.mirostat == 1 else Mirostat2)(p.mirostat_tau, p.mirostat_eta)
        return [Temperature(p.temperature), steering]
    names = p.samplers
    if p.adaptive_target >= 0 and names == DEFAULT_SAMPLERS:
        names = (*names, "adaptive_p")
    # Like llama.cpp: adaptive-p picks the token, so it is last wherever it was named.
    names = (*(n for n in names if n != "adaptive_p"), *(["adaptive_p"] if "adaptive_p" in names else []))
    made = [make for name in names if (make := _stage(name, p, vocab, window)) is not None]
    return [stage for stage in made if is_edit(stage)] if p.is_greedy else made


def place(
    stages: Sequence[Stage | Edit], extra: Iterable[Stage | Edit], samplers: tuple[str, ...]
) -> list[Stage | Edit]:
    """Put further stages among the built-in ones.

    Where ``samplers`` names one, there; else by its ``order``: behind the last stage that does not come later.
    """
    out = list(stages)
    for stage in sorted(extra, key=lambda s: s.order):
        if samplers != DEFAULT_SAMPLERS and stage.name in samplers:
            before = set(samplers[: samplers.index(stage.name)])
            at = max((i + 1 for i, s in enumerate(out) if s.name in before), default=0)
        else:
            at = max((i + 1 for i, s in enumerate(out) if s.order <= stage.order), default=0)
        out.insert(at, stage)
    return out


def split_edits(chain: Sequence[Stage | Edit]) -> tuple[list[Edit], list[Stage]]:
    """The edits at the head of a chain, and the stages behind them; edits among those become stages."""
    n = next((i for i, stage in enumerate(chain) if not is_edit(stage)), len(chain))
    rest: list[Any] = [EditStage(s) if is_edit(s) else s for s in chain[n:]]  # type: ignore[arg-type]
    return list(chain[:n]), rest  # type: ignore[arg-type]


_MAKE: dict[str, Callable[[Params, SamplerVocab, Window], Stage | Edit | None]] = {
    "penalties": lambda p, v, w: (
        Penalties(w, p.penalty_repeat, p.penalty_freq, p.penalty_present) if p.penalises else None
    ),
    "dry": lambda p, v, w: (
        Dry(p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_penalty_last_n, v.breakers)
        if p.dries
        else None
    ),
    "top_n_sigma": lambda p, v, w: TopNSigma(p.top_n_sigma) if p.top_n_sigma > 0 else None,
    "top_k": lambda p, v, w: TopK(p.top_k) if p.top_k > 0 else None,
    "typ_p": lambda p, v, w: Typical(p.typical_p, p.min_keep) if p.typical_p < 1 else None,
    "top_p": lambda p, v, w: TopP(p.top_p, p.min_keep) if p.top_p < 1 else None,
    "min_p": lambda p, v, w: MinP(p.min_p, p.min_keep) if np.float32(p.min_p) > 0 else None,
    "xtc": lambda p, v, w: (
        Xtc(p.xtc_probability, p.xtc_threshold, p.min_keep)
        if p.xtc_probability > 0 and p.xtc_threshold <= 0.5
        else None
    ),
    "temperature": lambda p, v, w: (
        DynamicTemperature(p.temperature, p.dynatemp_range, p.dynatemp_exponent)
        if p.dynatemp_range > 0
        else Temperature(p.temperature)
    ),
    "adaptive_p": lambda p, v, w: (
        AdaptiveP(p.adaptive_target, p.adaptive_decay) if p.adaptive_target >= 0 else None
    ),
}


def _stage(name: str, p: Params, vocab: SamplerVocab, window: Window) -> Stage | Edit | None:
    make = _MAKE.get(name)  # None: a plugin's stage, which is placed later
    return None if make is None else make(p, vocab, window)

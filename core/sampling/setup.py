"""From a request's parameters to its sampler: what the vocabulary and the plugins add, and which kind of row it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ggfw.descriptors import SamplerStage, resolve
from ggfw.errors import GgfwError, InvalidRequest, PluginError, brief, kind_and_text
from ggfw.records import dataclass
from ggfw.sampling.build import SamplerVocab
from ggfw.sampling.chain import Sampler
from ggfw.sampling.dry import Breakers
from ggfw.sampling.order import DEFAULT_SAMPLERS, SAMPLERS
from ggfw.sampling.params import Params

Stages = Mapping[str, SamplerStage]

#: Edits that the native sampler applies while it looks for the best logits, so only in front of every other stage.
_NATIVE_EDITS = ("penalties", "dry")


def host_reason(params: Params, stages: tuple[Any, ...] = ()) -> str | None:
    """Why the native sampler cannot draw with these parameters, or None when it can.

    A row for which there is a reason is a *host* row: Python samples it.

    Args:
        params: the parameters.
        stages: plugins' stages, which are Python.
    """
    if stages:
        return f"the stage {stages[0].name} is a Python plugin"
    if params.mirostat:
        return None if params.is_greedy else "mirostat is not native"
    names = params.samplers
    if (
        not params.is_greedy
        and params.adaptive_target >= 0
        and (names == DEFAULT_SAMPLERS or "adaptive_p" in names)
    ):
        return "adaptive-p is not native"
    first_filter = next((i for i, name in enumerate(names) if name not in _NATIVE_EDITS), len(names))
    for name, on in (("penalties", params.penalises), ("dry", params.dries)):
        if on and names.count(name) > 1:
            return f"{name} stands in the order twice"
        if on and not params.is_greedy and name in names[first_filter:]:
            return f"{name} stands behind another stage"
    return None


@dataclass(frozen=True)
class SamplerSetup:
    """Everything one request's samplers are made from.

    Args:
        params: the parameters; suppressed tokens are in the logit bias.
        vocab: end tokens and DRY's breakers.
        stages: the plugins' stages that are on.
        n_logprobs: how many of the likeliest tokens to note with each drawn one; 0: only the drawn one; None: nothing.
    """

    params: Params
    vocab: SamplerVocab = SamplerVocab()
    stages: tuple[SamplerStage, ...] = ()
    n_logprobs: int | None = None

    @property
    def host_reason(self) -> str | None:
        """Why this is a host row; None for a free one. See :func:`host_reason`."""
        return host_reason(self.params, self.stages)

    def sampler(self) -> Sampler:
        """A Python sampler.

        Raises:
            InvalidRequest: a plugin's stage refuses a parameter.
            PluginError: a plugin's stage cannot be made.
        """
        made = [stage for d in self.stages if (stage := _make(d, self.params)) is not None]
        return Sampler(self.params, made, self.vocab)


#: Lists of sequence breakers whose tokens are remembered.
MAX_KNOWN = 8


class SamplerFactory:
    """Makes the setups of one model's requests. Thread-safe.

    Args:
        tokenizer: of the model.
        stages: gives the plugins' stages by name; called when a request needs to know them.
    """

    def __init__(self, tokenizer: Any, stages: Callable[[], Stages]) -> None:
        self._tokenizer = tokenizer
        self._stages = stages
        self._breakers: dict[tuple[str, ...], Breakers] = {}

    def setup(
        self, params: Params, *, ignore_eos: bool = False, n_logprobs: int | None = None
    ) -> SamplerSetup:
        """Everything the samplers of a request are made from.

        Args:
            params: the request's parameters.
            ignore_eos: suppress the tokens that end the generation.
            n_logprobs: see :class:`SamplerSetup`.

        Raises:
            InvalidRequest: ``samplers`` names a stage, or ``extra`` a parameter, that nobody offers; or a plugin's
                stage refuses its parameters.
        """
        ends = tuple(sorted(self._tokenizer.eog_ids))
        suppressed = dict.fromkeys(self._tokenizer.suppressed_ids, float("-inf"))
        if ignore_eos:
            suppressed |= dict.fromkeys(ends, float("-inf"))
        if suppressed:
            params = replace(params, logit_bias={**params.logit_bias, **suppressed})
        breakers = self._breakers_of(params.dry_sequence_breakers) if params.dries else Breakers()
        vocab = SamplerVocab(ends if params.min_tokens else (), breakers)
        if n_logprobs is not None:
            n_logprobs = min(n_logprobs, self._tokenizer.n_vocab)
        setup = SamplerSetup(params, vocab, self._chosen(params), n_logprobs)
        if setup.stages:
            setup.sampler()  # so that a bad parameter is the caller's error, not the engine's
        return setup

    def _breakers_of(self, texts: tuple[str, ...]) -> Breakers:
        found = self._breakers.pop(texts, None) or Breakers.from_tokenizer(self._tokenizer, texts)
        self._breakers[texts] = found  # the last one now
        while len(self._breakers) > MAX_KNOWN:
            self._breakers.pop(next(iter(self._breakers)), None)
        return found

    def _chosen(self, p: Params) -> tuple[SamplerStage, ...]:
        """The plugins' stages that are on: named in ``samplers``, or by a parameter in the default order."""
        named = [name for name in p.samplers if name not in SAMPLERS]
        if not named and not p.extra:
            return ()
        known = self._stages()
        for name in named:
            if name not in known:
                offered = ", ".join((*SAMPLERS, *known))
                raise InvalidRequest(
                    f"samplers names {brief(name)}; known stages: {offered}", param="samplers"
                )
        for name in p.extra:
            if not any(name in stage.params for stage in known.values()):
                raise InvalidRequest(f"unknown sampling parameter {brief(name)}", param=name)
        return tuple(
            stage
            for stage in known.values()
            if stage.name in named or (p.samplers == DEFAULT_SAMPLERS and _is_on(stage, p))
        )


def _is_on(stage: SamplerStage, p: Params) -> bool:
    return any(name in p.extra and p.extra[name] != off for name, off in stage.params.items())


def _make(descriptor: SamplerStage, p: Params) -> Any:
    try:
        stage = resolve(descriptor.load)(replace(p, extra={**descriptor.params, **p.extra}))
    except (GgfwError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(
            f"the sampler stage {descriptor.name} cannot be made: {kind_and_text(error)}"
        ) from error
    if stage is None:
        return None
    if not (callable(getattr(stage, "apply", None)) or callable(getattr(stage, "edit", None))):
        raise PluginError(
            f"the sampler stage {descriptor.name} made {brief(stage)}, which has neither apply nor edit"
        )
    if not isinstance(getattr(stage, "name", None), str) or not isinstance(
        getattr(stage, "order", None), int | float
    ):
        raise PluginError(
            f"the sampler stage {descriptor.name} made {brief(stage)}, which has no name (text) or no order (a number)"
        )
    return stage

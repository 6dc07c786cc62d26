"""Which sampler a request gets: native or Python, with what of vocabulary and plugins; profiles."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from fake_model import FakeModel, FakeTokenizer

from ggfw.descriptors import SamplerStage
from ggfw.errors import InvalidRequest, PluginError
from ggfw.library import Model
from ggfw.registry import default_registry
from ggfw.request import check_logprobs, resolve_params
from ggfw.sampling import DEFAULT_SAMPLERS, Candidates, Params, SamplerFactory, host_reason
from ggfw.sampling.profiles import PROFILES, profile

INF = math.inf


# -- free row or host row --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"temperature": 0},
        {"penalty_repeat": 1.1, "dry_multiplier": 0.8, "xtc_probability": 0.5, "top_n_sigma": 1.0},
        {"dynatemp_range": 0.5, "typical_p": 0.9, "min_keep": 3, "min_tokens": 5, "logit_bias": {1: -INF}},
        {"samplers": "temperature;top_p;min_p;top_k;top_k"},
        {"samplers": "dry;penalties;xtc", "penalty_repeat": 1.1, "dry_multiplier": 1.0},
        {"samplers": "top_k;penalties", "top_k": 5},
        {"samplers": "top_k;dry;temperature", "dry_multiplier": 1.0, "temperature": 0},
        {"mirostat": 2, "temperature": 0},
        {"adaptive_target": 0.5, "samplers": "top_k"},
        {"samplers": []},
    ],
)
def test_native(knobs: dict) -> None:
    assert host_reason(Params(**knobs)) is None


@pytest.mark.parametrize(
    ("knobs", "why"),
    [
        ({"mirostat": 1}, "mirostat"),
        ({"mirostat": 2}, "mirostat"),
        ({"adaptive_target": 0.5}, "adaptive-p"),
        ({"adaptive_target": 0.5, "samplers": "adaptive_p;top_k"}, "adaptive-p"),
        ({"samplers": "top_k;penalties", "penalty_repeat": 1.1}, "penalties stands behind"),
        ({"samplers": "top_k;dry", "dry_multiplier": 1.0}, "dry stands behind"),
        ({"samplers": "penalties;penalties", "penalty_repeat": 1.1}, "twice"),
        ({"samplers": "dry;dry;temperature", "dry_multiplier": 1.1, "temperature": 0}, "twice"),
    ],
)
def test_host(knobs: dict, why: str) -> None:
    assert why in str(host_reason(Params(**knobs)))


def test_plugins_are_host_rows() -> None:
    stage = SamplerStage(name="floor", order=850, load=lambda p: None)
    assert "floor" in str(host_reason(Params(), (stage,)))


# -- what the vocabulary adds ----------------------------------------------------------------------


def factory(stages: Iterable[SamplerStage] = (), **tokenizer: Any) -> SamplerFactory:
    made = FakeTokenizer()
    for name, value in tokenizer.items():
        setattr(made, name, value)
    return SamplerFactory(made, lambda: {s.name: s for s in sorted(stages, key=lambda s: s.order)})


def test_suppressed_and_ignored_tokens_are_biased() -> None:
    setup = factory(suppressed_ids=(5, 7)).setup(Params(logit_bias={5: 3.0, 6: 1.0}))
    assert setup.params.logit_bias == {5: -INF, 6: 1.0, 7: -INF} and setup.host_reason is None
    ends = FakeTokenizer().eog_ids
    setup = factory().setup(Params(), ignore_eos=True)
    assert setup.params.logit_bias == dict.fromkeys(ends, -INF)
    assert factory().setup(Params()).params == Params()


def test_vocabulary_is_asked_only_where_it_matters() -> None:
    made = factory()
    assert made.setup(Params()).vocab.end_ids == () and not made.setup(Params()).vocab.breakers.single
    assert set(made.setup(Params(min_tokens=1)).vocab.end_ids) == FakeTokenizer().eog_ids
    first = made.setup(Params(dry_multiplier=1.0)).vocab.breakers
    assert first.single == {ord("\n"), ord(":"), ord('"'), ord("*")}
    assert made.setup(Params(dry_multiplier=0.5)).vocab.breakers is first
    assert made.setup(Params(dry_multiplier=1.0, dry_sequence_breakers=())).vocab.breakers.single == set()


# -- plugins' stages -------------------------------------------------------------------------------


class Floor:
    name, order, limit = "floor", 850, None

    def __init__(self, floor: float) -> None:
        self.floor = floor

    def apply(self, c: Candidates, context: Any) -> Candidates:
        return c.head(max(1, int(np.count_nonzero(c.logits >= self.floor))))


def make_floor(p: Params) -> Floor | None:
    if p.extra["floor"] == "bad":
        raise InvalidRequest("floor is bad", "floor")
    return Floor(p.extra["floor"])


FLOOR = SamplerStage(name="floor", order=850, load=make_floor, params={"floor": None})


def stages_of(params: Params, *stages: SamplerStage) -> list[str]:
    return [s.name for s in factory(stages or (FLOOR,)).setup(params).sampler()._stages]


def test_a_stage_is_on_by_its_parameter_or_by_name() -> None:
    assert "floor" not in stages_of(Params())
    assert stages_of(Params(extra={"floor": 1.0})) == ["top_k", "top_p", "min_p", "floor", "temperature"]
    assert "floor" not in stages_of(Params(extra={"floor": None}))
    assert stages_of(Params(extra={"floor": 1.0}, samplers="floor;top_k")) == ["floor", "top_k"]
    assert "floor" not in stages_of(Params(extra={"floor": 1.0}, samplers="top_k"))
    setup = factory([FLOOR]).setup(Params(extra={"floor": 2.5}, top_k=0, top_p=1.0, min_p=0.0))
    assert setup.sampler().distribution([1, 2, 3, 4])[0].tolist() == [3, 2]


def test_unknown_stages_and_parameters() -> None:
    with pytest.raises(InvalidRequest, match="'infill'.*known stages.*top_k") as caught:
        factory([FLOOR]).setup(Params(samplers="top_k;infill"))
    assert caught.value.param == "samplers"
    with pytest.raises(InvalidRequest) as caught:
        factory([FLOOR]).setup(Params(extra={"flor": 1}))
    assert caught.value.param == "flor"
    with pytest.raises(InvalidRequest, match="floor is bad"):
        factory([FLOOR]).setup(Params(extra={"floor": "bad"}))


def test_broken_stages_are_named() -> None:
    def broken(p: Params) -> Any:
        raise RuntimeError("oh")

    for load in (broken, lambda p: object(), "no.such.module:make"):
        stage = SamplerStage(name="odd", order=1, load=load)
        with pytest.raises(PluginError, match="odd|no.such"):
            factory([stage]).setup(Params(samplers="odd"))


# -- parameters by name ----------------------------------------------------------------------------


def test_aliases_of_other_programs() -> None:
    p = resolve_params(
        Params(),
        {
            "typ_p": 0.5,
            "dynatemp_exp": 2.0,
            "mirostat_ent": 3.0,
            "mirostat_lr": 0.2,
            "samplers": "kt",
            "min_p": None,
        },
    )
    assert p == Params(
        typical_p=0.5,
        dynatemp_exponent=2.0,
        mirostat_tau=3.0,
        mirostat_eta=0.2,
        samplers=("top_k", "temperature"),
    )
    with pytest.raises(InvalidRequest) as caught:
        resolve_params(Params(), {"topk": 1})
    assert caught.value.param == "topk"


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "3"])
def test_wrong_logprobs(wrong: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_logprobs(wrong)
    assert caught.value.param == "logprobs"


# -- profiles --------------------------------------------------------------------------------------


def test_profiles() -> None:
    stages = default_registry().sampler_stages
    assert profile("llama.cpp", stages) == Params() == PROFILES["llama.cpp"]
    golem = profile("golem", stages)
    assert (golem.temperature, golem.top_k, golem.top_p, golem.min_p) == (1.0, 64, 0.95, 0.05)
    gopher = profile("gopherllm", stages)
    assert (gopher.temperature, gopher.top_k, gopher.top_p, gopher.min_p) == (0.7, 40, 0.9, 0.0)
    assert gopher.penalty_repeat == 1.1 and gopher.samplers == ("gopherllm_repeat", "gopherllm")
    for wrong in ("ollama", "gopherllm_repeat", 5):
        with pytest.raises(InvalidRequest, match="golem, gopherllm") as caught:
            profile(wrong, stages)
        assert caught.value.param == "sampling_profile"


def test_a_request_chooses_a_profile_over_the_file() -> None:
    fake = FakeModel("x", metadata={"general.sampling.temp": 0.5})
    with Model(fake) as model:  # type: ignore[arg-type]
        assert model.request("a").params.top_k == 40
        assert model.request("a").params.samplers == DEFAULT_SAMPLERS
        chosen = model.request("a", sampling_profile="golem", top_p=0.3).params
        assert (chosen.temperature, chosen.top_k, chosen.top_p) == (0.5, 64, 0.3)
        assert model.generate("a", sampling_profile="gopherllm").text == "x"
        with pytest.raises(InvalidRequest, match="top_k is -1"):
            model.generate("a", sampling_profile="gopherllm", top_k=-1)

"""Values of a request that look like something else: refused by name, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_model import FakeModel
from served import TOOLS_CHATML
from tiny_models import write_llama

import ggfw
from ggfw.errors import InvalidRequest
from ggfw.library import Model
from ggfw.request import with_seed
from ggfw.sampling import Params, Sampler


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model(FakeModel("hello", template=TOOLS_CHATML, n_ctx=4096)) as model:  # type: ignore[arg-type]
        yield model


@pytest.mark.parametrize("wrong", [float("nan"), -1, "5", True, bytearray(b"5"), 10**400])
def test_a_timeout_is_a_number_of_seconds(model: Model, wrong: Any) -> None:
    hi = [ggfw.user("hi")]
    skill = ggfw.descriptors.Skill(name="s", description="d", load=lambda: "b")
    for ask in (
        lambda: model.generate("hi", timeout=wrong),
        lambda: model.chat(hi, timeout=wrong),
        lambda: model.chat(hi, timeout=wrong, skills=[skill]),
    ):
        with pytest.raises(InvalidRequest, match="timeout") as caught:
            ask()
        assert caught.value.param == "timeout"
    assert model.generate("hi", timeout=float("inf")).text == "hello"
    assert model.generate("hi", timeout=60).text == "hello"


@pytest.mark.parametrize("wrong", [b"hi", bytearray(b"hi"), memoryview(b"hi")])
def test_bytes_are_no_token_ids(model: Model, wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="a string or a sequence of token ids") as caught:
        model.generate(wrong)
    assert caught.value.param == "prompt"


def test_fresh_seeds_are_exact_in_javascript() -> None:
    seeds = {with_seed(Params(seed=given)).seed for given in (None, -1) for _ in range(50)}
    assert len(seeds) == 100
    assert all(isinstance(seed, int) and 0 <= seed < 2**53 - 128 for seed in seeds)


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "temperature", "top_k", "top_p", "mirostat", "seed", "timeout", "logprobs", "min_tokens"],
)
def test_integers_too_long_to_be_shown(model: Model, name: str) -> None:
    """Python shows none of more than 4300 digits."""
    with pytest.raises(InvalidRequest, match=name.removesuffix("_tokens")) as caught:
        model.generate("hi", **{name: -(10**5000)})
    assert caught.value.param == name
    for wrong in ({10**5000: 1.0}, {1: 10**5000}):
        with pytest.raises(InvalidRequest, match="logit_bias"):
            model.generate("hi", logit_bias=wrong)


def test_numbers_of_numpy_are_numbers(model: Model) -> None:
    given = {
        "max_tokens": np.int64(3),
        "logprobs": np.int32(0),
        "timeout": np.float32(60),
        "temperature": np.float64(0),
    }
    result = model.generate("hi", **given)
    assert len(result.token_ids) == 3 and len(result.logprobs or ()) == 3
    for name, wrong in {"max_tokens": np.float64(3), "logprobs": np.float32(1)}.items():
        with pytest.raises(InvalidRequest, match=name):
            model.generate("hi", **{name: wrong})


@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "min_p", "penalty_freq", "mirostat_tau", "xtc_threshold"]
)
def test_numbers_beyond_all_floats_are_refused_by_name(model: Model, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} must be a finite 32-bit float") as caught:
        model.generate("hi", **{name: 10**400})
    assert caught.value.param == name and len(str(caught.value)) < 200


def test_what_is_no_constraint_and_no_key_is_refused_before_anything_runs(model: Model) -> None:
    for name, wrong in {"constraint": "[a-z]+", "cache_key": ["a"]}.items():
        with pytest.raises(InvalidRequest, match=name) as caught:
            model.generate("hi", **{name: wrong})
        assert caught.value.param == name


def test_more_choices_than_ever_have_a_place_are_refused_for_good(model: Model) -> None:
    """Trying again, as a full queue asks for, would never help."""
    most = model.engine.scheduler.n_parallel + model.engine.max_queue
    with pytest.raises(InvalidRequest, match=f"{most + 1} choices .* {most} requests at once") as caught:
        model.generate_choices("hi", most + 1)
    assert caught.value.param == "n"
    assert len(model.generate_choices("hi", most, max_tokens=1)) == most


@pytest.mark.parametrize("name", ["max_queue", "prefix_cache_mb"])
@pytest.mark.parametrize("wrong", [-1, 0.5, "4", True])
def test_sizes_of_an_engine_are_numbers_from_zero(name: str, wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        Model(FakeModel("hello"), **{name: wrong})  # type: ignore[arg-type]
    assert caught.value.param == name


def test_greedy_gives_as_many_tokens_as_were_asked_for(tmp_path: Path) -> None:
    with ggfw.load(write_llama(tmp_path / "tiny.gguf", n_layer=1), threads=1, ctx=64) as model:
        assert len(model.greedy([5, 6], 63)) == 63
        for wrong in (0, -1, 64):
            with pytest.raises(InvalidRequest, match="room for 1 to 63"):
                model.greedy([5, 6], wrong)


@pytest.mark.parametrize("name", ["choice", "samplers", "dry_sequence_breakers", "sampling_profile", "extra"])
@pytest.mark.parametrize(
    "wrong",
    [5, True, 0.5, float("nan"), 10**400, object(), np.array(1), {"x": None}, [["x"]], [5], "x" * 70000],
)
def test_what_is_no_list_of_names_is_refused_by_name(model: Model, name: str, wrong: Any) -> None:
    if name == "dry_sequence_breakers" and isinstance(wrong, dict):
        return  # its keys are texts
    with pytest.raises(InvalidRequest) as caught:
        model.submit(model.request("hi", **{name: wrong}))
    assert caught.value.param == name or (name == "extra" and wrong == {caught.value.param: None})
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("min_p", [1e-310, 1e-46, 5e-324])
def test_a_share_that_single_precision_cannot_tell_from_none_is_none(model: Model, min_p: float) -> None:
    assert model.generate("hi", temperature=1.0, min_p=min_p).text == "hello"
    row = np.linspace(0, 1, 50, dtype=np.float32)
    for params in ({}, {"min_keep": 3}, {"mirostat": 2}):
        sampler, none = (Sampler(Params(seed=1, min_p=p, **params)) for p in (min_p, 0.0))
        assert [sampler.pick(row) for _ in range(20)] == [none.pick(row) for _ in range(20)]


@pytest.mark.parametrize("name", ["repeat_penalty", "temp", "repeat_last_n", "frequency_penalty", "typ_p"])
def test_a_refused_value_goes_by_the_name_it_was_given(model: Model, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{name} must") as caught:
        model.request("hi", **{name: "x"})
    assert caught.value.param == name

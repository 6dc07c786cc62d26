"""Values of a request that look like something else: refused by name, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fake_model import FakeModel
from served import TOOLS_CHATML

import ggfw
from ggfw.errors import InvalidRequest
from ggfw.library import Model
from ggfw.request import with_seed
from ggfw.sampling import Params


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model(FakeModel("hello", template=TOOLS_CHATML, n_ctx=4096)) as model:  # type: ignore[arg-type]
        yield model


@pytest.mark.parametrize("wrong", [float("nan"), -1, "5", True])
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

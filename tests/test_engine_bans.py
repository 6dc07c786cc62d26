"""Requests that ban every token are refused before they run; their neighbours go on."""

from __future__ import annotations

from typing import Any

import pytest
from fake_model import FakeModel

from ggfw.engine import Engine
from ggfw.errors import InvalidRequest
from ggfw.request import Request
from ggfw.sampling import Params

BAN = float("-inf")


def request(model: FakeModel, bans: set[int], *, ignore_eos: bool = False, **params: Any) -> Request:
    made = Params(temperature=0, logit_bias=dict.fromkeys(bans, BAN), **params)
    return Request(model.tokenizer.encode("hi"), made, max_tokens=4, ignore_eos=ignore_eos)


@pytest.mark.parametrize("native", [False, True])
def test_a_request_without_any_token_left_is_refused(native: bool) -> None:
    model = FakeModel("hello", native=native)
    every = set(range(model.n_vocab))
    ends = set(model.tokenizer.eog_ids)
    engine = Engine(model)
    try:
        neighbour = engine.submit(request(model, set()))
        for bans, more, says in (
            (every, {}, "logit_bias rules out all"),
            (every - ends, {"min_tokens": 2}, "logit_bias and min_tokens rules out all"),
            (every - ends, {"ignore_eos": True}, "logit_bias and ignore_eos rules out all"),
        ):
            with pytest.raises(InvalidRequest, match=says) as caught:
                engine.submit(request(model, bans, **more)).result(5)
            assert caught.value.param == "logit_bias"
        assert neighbour.result(5).text == "hell"
        if not native:  # the scripted native sampler draws what the script says
            # One token that is left is drawn; where only the end is left, the answer is empty.
            assert engine.submit(request(model, every - {ord("x")})).result(5).text == "xxxx"
            assert engine.submit(request(model, every - ends)).result(5).text == ""
    finally:
        engine.close()

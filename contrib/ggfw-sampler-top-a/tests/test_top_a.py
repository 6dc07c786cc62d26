import numpy as np
import pytest
from ggfw_sampler_top_a import ggfw_register_sampler_stages, make

import ggfw
from ggfw.errors import InvalidRequest
from ggfw.sampling import Candidates, Params
from ggfw.testing import check_sampler_stage, tiny_gguf


def test_conforms() -> None:
    for stage in ggfw_register_sampler_stages():
        check_sampler_stage(stage)


def test_the_threshold_is_the_square_of_the_best() -> None:
    p = np.array([0.5, 0.25, 0.15, 0.06, 0.04], np.float32)
    kept = make(Params(extra={"top_a": 0.2})).apply(Candidates(np.arange(5), np.log(p)), None)
    assert kept.ids.tolist() == [0, 1, 2, 3]  # 0.2 * 0.25 = 0.05


@pytest.mark.parametrize("bad", [-0.1, 1.5, "x", True])
def test_bad_values_are_refused(bad: object) -> None:
    with pytest.raises(InvalidRequest, match="top_a"):
        make(Params(extra={"top_a": bad}))


def test_in_a_request() -> None:
    with ggfw.load(tiny_gguf()) as model:
        sure = model.generate("a", max_tokens=8, seed=1, top_a=1.0, temperature=0.01, ignore_eos=True)
        best = model.generate("a", max_tokens=8, temperature=0, ignore_eos=True)
    assert sure.token_ids == best.token_ids

"""How far the logits of the real models are from the float32 reference's, on every unit that runs here."""

from __future__ import annotations

import json

import kernels_linear_twin as twin
import numpy as np
import pytest
from test_real_models import REAL, coarse_kl

import ggfw

UNITS = twin.units()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not UNITS, reason="no kernel library is built; run python kernels_c/build.py"),
]


@pytest.mark.parametrize("activations", ["int16", "int8"])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_mean_coarse_kl_of_every_unit_is_no_worse_than_llama_cpp(
    name: str, unit: str, activations: str, request: pytest.FixtureRequest
) -> None:
    """The first chunk of the text; the best unit reads all of it in ``test_real_models.py``."""
    path = request.getfixturevalue(f"{name}_path")
    said = json.loads((REAL / f"{name}.json").read_text(encoding="utf-8"))
    arrays = np.load(REAL / f"{name}.npz")
    length = int(arrays["chunk_lengths"][0])
    tokens, ids, reference = (arrays[key][:length] for key in ("tokens", "top64_ids", "top64_logprobs"))
    with ggfw.load(path, ctx=-(-length // 64) * 64, backend=unit, activations=activations) as model:
        assert model.info["backend"] == unit
        logits = model.logits([int(token) for token in tokens])
    found = [
        coarse_kl(logits[i : i + 64], ids[i : i + 64], reference[i : i + 64]) for i in range(0, length, 64)
    ]  # float64 copies of 262k columns are large
    mean = float(np.concatenate(found)[:-1].mean())
    theirs = said["text"]["llama_cpp_on_quantised"]["default"]["mean_coarse_kl"]
    print(f"mean_coarse_kl {mean:.3g}, llama.cpp {theirs:.3g}, ratio {mean / theirs:.3g}")
    assert 0 < mean <= 1.05 * theirs
    assert activations == "int8" or mean <= 2e-6

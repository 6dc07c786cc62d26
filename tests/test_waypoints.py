"""Layer by layer: every named intermediate of llama.cpp's run is found among the tensors of ours, on both executors."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from tests_support import check_logits

from ggfw.verify import trace

MODELS = Path(__file__).parent / "data" / "models"

#: Largest difference, as a share of the largest value.
TOLERANCE = 1e-3

#: Inside one op of ours, so that nothing stands for it: routing, state in llama.cpp's own layout, a factor of scores.
INSIDE = re.compile(
    r"ffn_moe_(probs|weights_sum|topk|argsort|group).*|Qcur_scaled|conv_.*|state_predelta|new_state|cache_.*"
)

#: Inside one op wherever llama.cpp names a later stage of it too.
STAGES = {
    "embd": ("inp_scaled",),
    "ffn_moe_logits": (
        "ffn_moe_logits_biased",
        "ffn_moe_weights_softmax",
    ),  # gpt-oss: named before the bias only
    "ffn_moe_weights": ("ffn_moe_weights_softmax", "ffn_moe_weights_norm", "ffn_moe_weights_scaled"),
    "ffn_moe_weights_norm": ("ffn_moe_weights_scaled",),
}

#: Names that come once per stage (product, bias, norm, rotation, factor), of which one may be inside an op.
STAGED = ("Qcur", "Kcur", "Vcur")


def runs() -> list[tuple[str, str]]:
    """(model, executor); int8 activations of quantised files keep the native executor from meeting float32 values."""
    found = []
    for path in sorted(MODELS.glob("*.npz")):
        with np.load(path) as arrays:
            if any(key.startswith("wp/") for key in arrays.files):
                quantised = check_logits().load(path.stem, root=str(MODELS.parent)).quantised
                found += [
                    (path.stem, executor) for executor in ("reference", *([] if quantised else ["native"]))
                ]
    return found


def waypoints(name: str) -> dict[str, list[np.ndarray]]:
    """Name with layer -> its values in the order of llama.cpp's graph, for the prompt p12."""
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    with np.load(MODELS / f"{name}.npz") as arrays:
        for key in sorted(key for key in arrays.files if key.startswith("wp/")):
            found[key.split("/", 2)[2]].append(arrays[key])
    return found


def is_inside(label: str, known: set[str]) -> bool:
    base, dash, layer = label.rpartition("-") if "-" in label else (label, "", "")
    later = (f"{stage}{dash}{layer}" for stage in STAGES.get(base, ()))
    return bool(INSIDE.fullmatch(base)) or any(stage in known for stage in later)


@pytest.mark.parametrize(("name", "executor"), runs())
def test_every_waypoint_is_met(name: str, executor: str) -> None:
    prompt = json.loads((MODELS / f"{name}.json").read_text())["prompts"]["p12"]
    backend = None if executor == "native" else executor
    by_size: dict[int, list[np.ndarray]] = defaultdict(list)
    for array in trace(MODELS / f"{name}.gguf", prompt, backend=backend, ctx=256).values():
        by_size[array.size].append(array.reshape(-1))

    def met(wanted: np.ndarray) -> bool:
        flat = wanted.reshape(-1)
        bound = TOLERANCE * (np.abs(flat).max() or 1.0)
        return any(np.abs(array - flat).max() <= bound for array in by_size[flat.size])

    wanted = waypoints(name)
    missed = []
    for label, values in wanted.items():
        if not is_inside(label, set(wanted)):
            n_missed = sum(not met(value) for value in values)
            staged = label.startswith(STAGED) and len(values) > 1
            if n_missed > staged:
                missed.append(label)
    assert wanted and not missed, f"first step that differs: {missed[0]}; all: {missed}"

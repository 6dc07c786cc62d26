"""Models given as bytes: packing must not give back memory that is not a file's."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

import ggfw

MODEL = Path(__file__).parent / "data" / "models" / "llama.gguf"


def test_bytes_stay_as_they_are_and_load_twice() -> None:
    data = MODEL.read_bytes()
    before = hashlib.sha256(data).hexdigest()
    logits = []
    for _ in range(2):
        with ggfw.load(data, ctx=64, threads=2) as model:
            logits.append(model.logits([1, 20, 30]))
    assert hashlib.sha256(data).hexdigest() == before
    assert np.array_equal(*logits)
    with ggfw.load(MODEL, ctx=64, threads=2) as model:
        assert np.array_equal(model.logits([1, 20, 30]), logits[0])

"""Rows of activations quantised by every unit: the bytes that the NumPy twin says."""

from __future__ import annotations

import numpy as np
import pytest
from executor_rig import UNITS, Part, Rig, View

from ggfw.execute.q8 import dequantise_rows, quantise_rows
from ggfw.graph.plan import Q8, Q16, activation_row_bytes

KINDS = {"int8": Q8, "int16": Q16}


def rows(width: int) -> np.ndarray:
    rng = np.random.default_rng(width)
    x = rng.standard_normal((9, width)).astype(np.float32)
    x *= np.exp(rng.uniform(-20, 20, (9, 1))).astype(np.float32)
    x[3] = 0
    x[4, :32] = 0
    x[5] = np.tile([1, -1], width // 2)  # the largest value of both signs everywhere
    x[6] = (np.arange(width) % 32 - 15.5) / np.float32(15.5)
    return x


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [32, 96, 576])
def test_rows_are_the_twins(unit: str, kind: str, width: int) -> None:
    x, size = rows(width), activation_row_bytes(KINDS[kind], width)
    with Rig(unit, max_rows=9) as rig:
        a = rig.buffer(width)
        b = View(rig.bytes, size, width, KINDS[kind])
        rig.bytes += size * 64
        rig.step("quantize", [a], [b], union="quantize", params={"slots": 1})
        rig.start()
        rig.write(a, x)
        assert rig.run([Part(9)]) == 0
        got = rig.bytes_of(View(b.offset, size, size // 4), 9).copy()
    np.testing.assert_array_equal(got, quantise_rows(x, KINDS[kind]))  # padding is the arena's zeros


@pytest.mark.parametrize(("kind", "bound"), [("int8", 1 / 254), ("int16", 1 / 32512)])
def test_error_is_half_a_step(kind: str, bound: float) -> None:
    x = rows(96)
    back = dequantise_rows(quantise_rows(x, KINDS[kind]), 96, KINDS[kind])
    block = 32 if kind == "int16" else 16
    largest = np.repeat(np.abs(x.reshape(9, -1, block)).max(-1), block, axis=1)
    assert (np.abs(back - x) <= largest * bound * 1.001).all()

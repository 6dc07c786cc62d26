"""The quant formats against the gguf package, on random and on extreme blocks."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from ggfw import quants
from ggfw.descriptors import QuantFormat
from ggfw.errors import InvalidRequest, UnknownQuantFormat
from ggfw.gguf import GGML_TYPE_BY_NAME
from ggfw.registry import default_registry

# Formats for which the gguf package has a reference.
REFERENCE = (
    "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S "
    "IQ3_XXS IQ3_S TQ1_0 TQ2_0 MXFP4 NVFP4"
).split()
QUANTISERS = "F32 F16 BF16 F64 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 MXFP4".split()

# Bytes at which a format keeps half-precision fields, for planting extreme scales.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "IQ1_S": [0], "IQ2_XXS": [0],
    "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "TQ1_0": [52], "TQ2_0": [64],
}  # fmt: skip
EXTREMES = np.array(
    [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x3C00], "<u2"
)


def expected(name: str, blocks: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(blocks, GGMLQuantizationType[name]).reshape(shape)


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Equal values; both NaN counts as equal, the sign of a zero does not."""
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    assert same.all(), (
        f"{(~same).sum()} of {same.size} differ, first: {ours[~same][:3]} against {theirs[~same][:3]}"
    )


@pytest.mark.parametrize("name", REFERENCE)
def test_random_blocks(name: str) -> None:
    fmt = quants.get(name)
    blocks = np.random.default_rng(1).integers(0, 256, (3000, fmt.type_size), np.uint8)
    shape = (3000, fmt.block_size)
    assert_same_bits(quants.dequantize(name, blocks, shape), expected(name, blocks, shape))


@pytest.mark.parametrize("name", REFERENCE)
def test_extreme_blocks(name: str) -> None:
    fmt = quants.get(name)
    rng = np.random.default_rng(2)
    rows = [np.full((1, fmt.type_size), byte, np.uint8) for byte in range(256)]
    planted = rng.integers(0, 256, (200, fmt.type_size), np.uint8)
    for at in HALVES.get(name, []):
        planted[:, at : at + 2] = rng.choice(EXTREMES, 200).view(np.uint8).reshape(-1, 2)
    blocks = np.concatenate([*rows, planted])
    shape = (len(blocks), fmt.block_size)
    assert_same_bits(quants.dequantize(name, blocks, shape), expected(name, blocks, shape))


def test_every_format_is_installed_and_sized_right() -> None:
    formats = default_registry().quant_formats
    assert set(formats) >= set(GGML_TYPE_BY_NAME)
    for name, known in GGML_TYPE_BY_NAME.items():
        fmt = formats[name]
        assert (fmt.ggml_type, fmt.block_size, fmt.type_size) == (known.id, known.block_size, known.type_size)
        assert quants.get(known.id) is fmt is quants.get(name) is quants.get(name.lower()) is quants.get(fmt)
        assert quants.row_bytes(name, 2 * known.block_size) == 2 * known.type_size


def test_importing_the_plugins_does_not_import_numpy() -> None:
    code = (
        "import sys, importlib\n"
        "for m in 'fp4 iq iq4 k_quants legacy plain ternary'.split():\n"
        "    list(importlib.import_module('ggfw.plugins.quant_formats.' + m).ggfw_register_quant_formats())\n"
        "assert 'numpy' not in sys.modules, 'numpy was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", QUANTISERS)
def test_quantisers_equal_the_reference(name: str) -> None:
    values = np.random.default_rng(3).normal(0, 1, (200, 128)).astype(np.float32)
    values[0] = 0
    values[1, :32] = np.tile([1.0, -1.0], 16)  # equal magnitudes: the first decides the sign of the scale
    values[2] = 3.5
    values[3] *= 1e-6
    raw = quants.quantize(name, values)
    assert raw.shape == (200, quants.row_bytes(name, 128))
    if name != "F64":
        theirs = gguf.quants.quantize(values, GGMLQuantizationType[name]).view(np.uint8).reshape(raw.shape)
        differing = (raw != theirs).any(axis=1)
        assert not differing.any(), f"rows {np.flatnonzero(differing)[:5]} differ"


@pytest.mark.parametrize(
    ("name", "bound"),
    [("F32", 0), ("F64", 0), ("F16", 5e-4), ("BF16", 4e-3), ("Q8_0", 6e-3), ("Q5_1", 0.05), ("Q5_0", 0.05),
     ("Q4_1", 0.1), ("Q4_0", 0.1), ("MXFP4", 0.15)],
)  # fmt: skip
def test_round_trip_error(name: str, bound: float) -> None:
    values = np.random.default_rng(4).normal(0, 1, (64, 256)).astype(np.float32)
    back = quants.dequantize(name, quants.quantize(name, values), values.shape)
    error = np.linalg.norm(back - values) / np.linalg.norm(values)
    assert error <= bound
    assert error > bound / 4 or bound == 0  # a bound far above the error would test nothing


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(REFERENCE), st.integers(0, 5), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_shapes_and_pieces(name: str, n_rows: int, n_blocks: int, seed: int) -> None:
    """A matrix equals its rows, one by one and in a given output array."""
    fmt = quants.get(name)
    shape = (n_rows, n_blocks * fmt.block_size)
    raw = np.random.default_rng(seed).integers(0, 256, (n_rows, n_blocks * fmt.type_size), np.uint8)
    out = np.full(shape, 7, np.float32)
    whole = quants.dequantize(fmt, raw.tobytes(), shape, out)
    assert whole is out
    for i in range(n_rows):
        row = quants.dequantize(name, raw[i], (shape[1],))
        assert np.array_equal(row.view(np.uint32), whole[i].view(np.uint32))


def test_memory_of_big_arrays_is_bounded() -> None:
    shape = (4096, 4096)
    raw = np.zeros(quants.row_bytes("Q4_K", 4096) * 4096, np.uint8)
    out = np.empty(shape, np.float32)
    quants.dequantize("Q4_K", raw[:144], (256,))
    tracemalloc.start()
    quants.dequantize("Q4_K", raw, shape, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_errors() -> None:
    with pytest.raises(UnknownQuantFormat, match="'Q9_9'.*Q4_0"):
        quants.get("Q9_9")
    with pytest.raises(UnknownQuantFormat, match="4711"):
        quants.dequantize(4711, b"", (0,))
    with pytest.raises(InvalidRequest, match="33"):
        quants.row_bytes("Q4_0", 33)
    with pytest.raises(InvalidRequest, match="36 bytes, the buffer has 18"):
        quants.dequantize("Q4_0", bytes(18), (2, 32))
    with pytest.raises(InvalidRequest, match="float64"):
        quants.dequantize("Q4_0", bytes(18), (32,), np.empty(32))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="out"):
        quants.dequantize("Q4_0", bytes(36), (2, 32), np.empty((32, 2), np.float32).T)
    with pytest.raises(InvalidRequest, match="Q6_K"):
        quants.quantize("Q6_K", np.zeros(256))


def test_a_format_of_ones_own() -> None:
    def double(blocks: np.ndarray, out: np.ndarray) -> None:
        out[:] = 2.0 * blocks

    fmt = QuantFormat(name="X", ggml_type=999, block_size=4, type_size=4, dequantize=double)
    assert quants.dequantize(fmt, bytes([1, 2, 3, 4]), (4,)).tolist() == [2, 4, 6, 8]

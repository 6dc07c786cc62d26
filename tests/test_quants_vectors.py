"""Hand-made blocks: golden values of the formats, and the ones that the gguf package cannot decode."""

from __future__ import annotations

import numpy as np
import pytest

from ggfw import quants
from ggfw.plugins.quant_formats.iq_grids import even_signs, grid, signs


def half(value: float) -> bytes:
    return np.float16(value).tobytes()


def values(name: str, block: bytes) -> np.ndarray:
    return quants.dequantize(name, block, (quants.get(name).block_size,))


# numeric-1


def test_q4_1_golden_block() -> None:
    got = values("Q4_1", bytes.fromhex("0038 00BC 2F") + bytes(15))
    assert got[0] == 6.5 and got[16] == 0.0
    assert (np.delete(got, [0, 16]) == -1.0).all()


def test_q4_0_golden_block() -> None:
    got = values("Q4_0", bytes.fromhex("0038 2F") + bytes(15))
    assert got[0] == 3.5 and got[16] == -3.0
    assert (np.delete(got, [0, 16]) == -4.0).all()


# numeric-2


@pytest.mark.parametrize(
    ("exponent", "first", "low", "high"),
    [
        (0x7F, 0x71, 0.5, 6.0),
        (0x80, 0x71, 1.0, 12.0),
        (0x7F, 0xF0, 0.0, -6.0),
        (0, 0x12, 2.0**-127, 2.0**-128),
    ],
)
def test_mxfp4_golden_block(exponent: int, first: int, low: float, high: float) -> None:
    got = values("MXFP4", bytes([exponent, first]) + bytes(15))
    assert got[0] == low and got[16] == high
    assert (np.delete(got, [0, 16]) == 0).all()


def test_mxfp4_nibbles() -> None:
    low = values("MXFP4", bytes([0x7F, *range(16)]))
    assert low[:16].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
    assert np.isfinite(values("MXFP4", bytes([0]) + b"\x77" * 16)).all()


def test_nvfp4() -> None:
    # Scales: 1.0 (exponent 7), the smallest subnormal 2^-9, 0x7F counts as zero, 1.875 * 2^1.
    block = (
        bytes([0x38, 0x01, 0x7F, 0x47]) + bytes([0x71] + [0] * 7) + b"\x22" * 8 + b"\x77" * 8 + b"\x2a" * 8
    )
    got = values("NVFP4", block).reshape(4, 16)
    assert got[0, 0] == 0.5 and got[0, 8] == 6.0 and (np.delete(got[0], [0, 8]) == 0).all()
    assert (got[1] == 2.0**-9).all()
    assert (got[2] == 0).all()
    assert (got[3, :8] == -3.75).all() and (got[3, 8:] == 3.75).all()


# Formats the gguf package does not decode


@pytest.mark.parametrize(
    ("name", "dtype"), [("F64", "<f8"), ("I8", "i1"), ("I16", "<i2"), ("I32", "<i4"), ("I64", "<i8")]
)
def test_plain_numbers(name: str, dtype: str) -> None:
    numbers = np.array([0, 1, -1, 100, -128], dtype)
    assert quants.dequantize(name, numbers.tobytes(), (5,)).tolist() == [0, 1, -1, 100, -128]


def test_q8_1() -> None:
    block = half(0.5) + half(99) + np.arange(-16, 16, dtype=np.int8).tobytes()
    assert values("Q8_1", block).tolist() == [v / 2 for v in range(-16, 16)]


def test_q8_k() -> None:
    quant = np.arange(-128, 128, dtype=np.int8)
    block = np.float32(0.25).tobytes() + quant.tobytes() + np.full(16, 77, "<i2").tobytes()
    assert values("Q8_K", block).tolist() == [v / 4 for v in range(-128, 128)]


def test_q1_0() -> None:
    got = values("Q1_0", half(1.5) + bytes([0b00000101]) + bytes(14) + bytes([0x80]))
    assert got[0] == got[2] == got[127] == 1.5
    assert (np.delete(got, [0, 2, 127]) == -1.5).all()


def test_q2_0() -> None:
    got = values("Q2_0", half(2) + bytes([0b11_10_01_00]) + b"\x55" * 15)
    assert got[:4].tolist() == [-2, 0, 2, 4] and (got[4:] == 0).all()


# K-quants by hand: one sub-block at a time


def test_q4_k_scales_and_order() -> None:
    scales = np.zeros(12, np.uint8)
    scales[0], scales[4] = 3, 2  # sub-block 0: scale 3, minimum 2
    scales[8 + 1] = 0x51  # sub-block 5: low bits of scale 1, of minimum 5
    scales[1] |= 0b10 << 6  # ... its scale's upper bits: 1 + 32
    scales[5] |= 0b01 << 6  # ... its minimum's: 5 + 16
    quant = np.zeros(128, np.uint8)
    quant[0] = 0x07
    quant[64 + 31] = 0xF0  # third 32 bytes, high nibbles: sub-block 5, last element
    got = values("Q4_K", half(0.5) + half(0.25) + scales.tobytes() + quant.tobytes())
    assert got[0] == 0.5 * 3 * 7 - 0.25 * 2 and (got[1:32] == -0.5).all()
    assert got[5 * 32 + 31] == 0.5 * 33 * 15 - 0.25 * 21
    assert (got[5 * 32 : 5 * 32 + 31] == -0.25 * 21).all()
    assert (got[32 : 5 * 32] == 0).all() and (got[6 * 32 :] == 0).all()


def test_q6_k_order() -> None:
    low, high, scale = np.zeros(128, np.uint8), np.full(64, 0b10101010, np.uint8), np.ones(16, np.int8)
    low[64 + 32 + 5] = 0xA0  # second half, high nibbles of its second 32 bytes: group 3, element 5
    scale[15] = -2
    got = values("Q6_K", low.tobytes() + high.tobytes() + scale.tobytes() + half(1))
    assert got[128 + 3 * 32 + 5] == 10  # 10 + (2 << 4) - 32, scale 14
    assert np.count_nonzero(got) == 1


# The grids of the codebook formats


@pytest.mark.parametrize(
    ("name", "shape", "levels"),
    [
        ("iq1_s", (2048, 8), {-1, 0, 1}),
        ("iq2_xxs", (256, 8), {8, 25, 43}),
        ("iq2_xs", (512, 8), {8, 25, 43}),
        ("iq2_s", (1024, 8), {8, 25, 43}),
        ("iq3_xxs", (256, 4), {4, 12, 20, 28, 36, 44, 52, 62}),
        ("iq3_s", (512, 4), {1, 3, 5, 7, 9, 11, 13, 15}),
    ],
)
def test_grids(name: str, shape: tuple[int, int], levels: set[int]) -> None:
    points = grid(name)
    assert points.shape == shape and set(np.unique(points).tolist()) == levels
    assert len(np.unique(points, axis=0)) == shape[0]
    assert not points.flags.writeable


def test_sign_tables() -> None:
    assert signs()[0b00000110].tolist() == [1, -1, -1, 1, 1, 1, 1, 1]
    table = even_signs()
    assert table.shape == (128, 8)
    assert (np.count_nonzero(table < 0, axis=1) % 2 == 0).all()
    assert table[1].tolist() == [-1, 1, 1, 1, 1, 1, 1, -1]

"""Packing and row look-ups: packed or in file layout, a row is the reference's, bit for bit."""

from __future__ import annotations

import kernels_linear_twin as twin
import numpy as np
import pytest

UNITS = twin.units()
pytestmark = pytest.mark.skipif(not UNITS, reason="no kernel library is built; run python kernels_c/build.py")


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", twin.FORMATS)
@pytest.mark.parametrize("kind", ["plain", "ones", "denormal", "large"])
def test_rows_come_back(unit: str, name: str, kind: str) -> None:
    lib = twin.library(unit)
    n_out, n_in = 45, 63 if name in twin.FLOATS else 512
    rows = twin.random_rows(name, n_out, n_in, np.random.default_rng(5), kind)
    want = twin.values_of(name, rows)
    ids = [44, 0, 15, 16, 31, 32, 7, 7]
    linear, embed = lib.kernel(twin.LINEAR, name), lib.kernel(twin.EMBED, name)
    packed = lib.pack(linear, rows, n_in)
    np.testing.assert_array_equal(lib.unpack(linear, packed, n_out, n_in, ids), want[ids])
    np.testing.assert_array_equal(lib.unpack(embed, np.ascontiguousarray(rows), n_out, n_in, ids), want[ids])
    assert embed.pack == twin.ffi().NULL


@pytest.mark.parametrize("name", twin.FORMATS)
def test_units_share_one_layout(name: str) -> None:
    """What one unit packed, any other may read; it is at most 4 % larger than the file's rows."""
    n_out, n_in = 32, 512
    rows = twin.random_rows(name, n_out, n_in, np.random.default_rng(9))
    packs = [twin.library(u).pack(twin.library(u).kernel(twin.LINEAR, name), rows, n_in) for u in UNITS]
    for other in packs[1:]:
        np.testing.assert_array_equal(other, packs[0])
    assert packs[0].size <= 1.04 * rows.size


@pytest.mark.parametrize("unit", UNITS)
def test_every_half_is_converted(unit: str) -> None:
    """All 65536 halves, subnormal, infinite and NaN among them, through the scalar and the vector path."""
    lib = twin.library(unit)
    halves = np.arange(65536, dtype=np.uint16)
    want = halves.view(np.float16).astype(np.float32)
    rows = np.ascontiguousarray(halves[:, None]).view(np.uint8)
    embed = lib.kernel(twin.EMBED, "F16")
    got = lib.unpack(embed, rows, 65536, 1, list(range(65536)))[:, 0]
    np.testing.assert_array_equal(got, want)
    finite = np.isfinite(want)
    [product] = twin.linear(twin.Matrices(lib, "F16", 1, [rows]), np.ones((1, 1), np.float32))
    np.testing.assert_array_equal(product[0][finite], want[finite])

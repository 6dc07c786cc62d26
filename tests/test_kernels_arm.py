"""The NEON units, cross-compiled and run under qemu-user: products against the float64 twin, vector operations against
the generic unit's.

Debian: ``apt install gcc-aarch64-linux-gnu qemu-user``.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from functools import cache
from pathlib import Path

import kernels_linear_twin as twin
import numpy as np
import pytest
from kernels_variants import build_module

from ggfw.kernels_c import get_include

HERE = Path(__file__).parent
SOURCES = Path(get_include()).parent / "src"
GCC = "aarch64-linux-gnu-gcc"
QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which(GCC) and QEMU), reason="needs gcc-aarch64-linux-gnu and qemu-user (apt install)"
    ),
]

#: unit -> an emulated processor that has what it needs and, but for the baseline, nothing beyond.
PROCESSORS = {"generic": "cortex-a53", "neon": "cortex-a53", "dotprod": "neoverse-n1", "i8mm": "max"}
#: Relative L2: only float32 rounding is left.
BOUND = 1e-6


def qemu(processor: str, *command: str | Path) -> subprocess.CompletedProcess[bytes]:
    assert QEMU is not None
    return subprocess.run(
        [QEMU, "-cpu", processor, "-L", "/usr/aarch64-linux-gnu", *map(str, command)], capture_output=True
    )


@cache
def library(unit: str) -> Path:
    build = build_module()
    target = build.Target("linux", "aarch64")
    path: Path = build.build_variant(unit, unit, build.UNITS["aarch64"][unit], target=target, compiler=[GCC])
    return path


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("arm") / "driver"
    source = HERE / "kernels_driver.c"
    command = [GCC, "-O2", "-std=gnu11", f"-I{get_include()}", str(source), "-o", str(program), "-ldl"]
    subprocess.run(command, check=True)
    return program


def run_unit(
    unit: str, driver: Path, folder: Path, vectors: list[tuple[str, np.ndarray, np.ndarray]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Products and unpacked matrices of (kernel, file rows, activations)."""
    with (folder / "vectors").open("wb") as file:
        for name, rows, x in vectors:
            raw, _ = twin.input_rows(name, x)
            raw = np.ascontiguousarray(raw).view(np.uint8).reshape(len(x), -1)
            raw = np.pad(raw, ((0, 0), (0, -raw.shape[1] % 64)))
            ids = twin.FORMATS[twin.base(name)][0], twin.activation(name)
            file.write(struct.pack("<7q", *ids, len(rows), x.shape[1], len(x), rows.shape[1], raw.shape[1]))
            file.write(np.ascontiguousarray(rows).tobytes() + raw.tobytes())
    ran = qemu(PROCESSORS[unit], driver, library(unit), folder / "vectors", folder / "results")
    assert ran.returncode == 0, (ran.returncode, ran.stdout, ran.stderr)
    results, found = np.fromfile(folder / "results", np.float32), []
    for _, rows, x in vectors:
        product, results = np.split(results, [len(x) * len(rows)])
        matrix, results = np.split(results, [len(rows) * x.shape[1]])
        found.append((product.reshape(len(x), -1), matrix.reshape(len(rows), -1)))
    assert len(results) == 0
    return found


def kernels_of(unit: str) -> list[str]:
    integer = [name for name in twin.KERNELS if name.endswith((":Q8", ":Q16"))]
    return integer if unit in ("dotprod", "i8mm") else twin.KERNELS


@pytest.mark.parametrize("unit", PROCESSORS)
def test_products(unit: str, driver: Path, tmp_path: Path) -> None:
    """Every kernel, odd sizes, random and extreme blocks; each row alone and among others."""
    rng = np.random.default_rng(3)
    vectors = []
    for name in kernels_of(unit):
        block = twin.FORMATS[twin.base(name)][1]
        kinds = ["plain"] if name in twin.FLOATS else ["plain", "ones", "zero", "denormal", "large"]
        for kind in kinds:
            n_in = 77 if name in twin.FLOATS else max(block, 96) if kind == "plain" else max(block, 256)
            rows = twin.random_rows(name, 37, n_in, rng, kind)
            x = rng.standard_normal((13, n_in)).astype(np.float32)
            x[0], x[1], x[3] = 1, -1, 0
            x[2, ::2], x[2, 1::2] = 1, -1
            vectors.append((name, rows, x))
    worst = 0.0
    for (name, rows, x), (product, matrix) in zip(
        vectors, run_unit(unit, driver, tmp_path, vectors), strict=True
    ):
        np.testing.assert_array_equal(matrix, twin.values_of(name, rows), err_msg=name)
        want = twin.product(name, rows, x)
        sizes = np.abs(twin.seen(name, x)) @ np.abs(matrix.astype(np.float64)).T
        assert (product[3] == 0).all()
        bound = 4 * BOUND if name.endswith(":F32") else BOUND
        for r in range(len(x)):
            found = twin.error(product[r], want[r], sizes[r] + 1e-300)
            worst = max(worst, found)
            assert found < bound, (name, r)
    print(f"{unit}: {len(vectors)} matrices, largest error {worst:.1e}")


@pytest.mark.parametrize("unit", ["generic", "neon"])
def test_every_half_is_converted(unit: str, driver: Path, tmp_path: Path) -> None:
    halves = np.arange(65536, dtype=np.uint16)
    rows = np.ascontiguousarray(halves[:, None]).view(np.uint8)
    want = halves.view(np.float16).astype(np.float32)
    [(product, matrix)] = run_unit(unit, driver, tmp_path, [("F16", rows, np.ones((1, 1), np.float32))])
    np.testing.assert_array_equal(matrix[:, 0], want)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(product[0][finite], want[finite])


@pytest.mark.parametrize("unit", ["dotprod", "i8mm"])
def test_processor_without_the_instructions(unit: str, driver: Path, tmp_path: Path) -> None:
    (tmp_path / "vectors").write_bytes(b"")
    ran = qemu("cortex-a53", driver, library(unit), tmp_path / "vectors", tmp_path / "results")
    assert ran.returncode == 3 and b"missing: the " in ran.stdout and b"FEAT_DotProd" in ran.stdout


def simd_results(
    tmp_path: Path, compiler: str, unit: str, flags: list[str]
) -> subprocess.CompletedProcess[bytes]:
    program = tmp_path / unit
    command = [
        compiler, "-O2", "-std=gnu11", "-ffp-contract=fast", f"-DGGFW_UNIT_{unit.upper()}", *flags,
        f"-I{get_include()}", f"-I{SOURCES}", str(HERE / "simd_results.c"), "-o", str(program), "-lm",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    if compiler != GCC:
        return subprocess.run([program], capture_output=True, check=True)
    return qemu("cortex-a53", program)


def test_vector_operations(tmp_path: Path) -> None:
    """Those of NEON are those of plain C: the same bits, or close where sums and products may be fused."""
    want = simd_results(tmp_path, "gcc", "generic", ["-ffp-contract=off"]).stdout
    got = simd_results(tmp_path, GCC, "neon", []).stdout
    mark = struct.pack("<I", 0xDEADBEEF) * 16
    for result in (want, got):
        assert result.count(mark) == 1
    (exact, close), (exact_want, close_want) = got.split(mark), want.split(mark)
    a, b = (np.frombuffer(x, np.uint32) for x in (exact, exact_want))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(
        np.frombuffer(close, np.float32), np.frombuffer(close_want, np.float32), rtol=1e-5, atol=1e-30
    )

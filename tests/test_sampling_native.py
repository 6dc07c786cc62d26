"""The native sampler gives the same tokens and the same probabilities, bit for bit, as the Python one."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggfw.kernels_c
from ggfw.errors import NonFiniteLogits
from ggfw.sampling import Params, Sampler
from ggfw.sampling.native import NativeSampler

cffi = pytest.importorskip("cffi")
f32 = np.float32
HEADER = Path(ggfw.kernels_c.get_include(), "ggfw_sampler.h").read_text()
SOURCES = sorted(Path(ggfw.kernels_c.get_include(), "..", "src").resolve().glob("sampler*.c"))


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """(ffi, lib): the executor library if it holds the sampler, else one compiled here."""
    ffi = cffi.FFI()
    ffi.cdef(HEADER.split("/* cffi: begin */")[1].split("/* cffi: end */")[0])
    try:
        lib = ffi.dlopen(ggfw.kernels_c.executor_path())
        lib.ggfw_sampler_isa  # noqa: B018  (an older library lacks it)
        return ffi, lib
    except Exception:
        compiler = os.environ.get("CC") or shutil.which("cc")
        if not compiler or not SOURCES:
            pytest.skip("no executor library and no C compiler")
    path = tmp_path_factory.mktemp("sampler") / "libsampler.so"
    flags = ["-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*compiler.split(), *flags, "-o", path, *SOURCES, "-lm"], check=True)
    return ffi, ffi.dlopen(str(path))


@pytest.fixture(params=[0, 1, 2, -1], ids=["plain", "avx2", "avx512", "best"])
def isa(native, request):
    lib = native[1]
    if lib.ggfw_sampler_isa(request.param) < request.param:
        pytest.skip("this processor lacks the instruction set")
    yield request.param
    lib.ggfw_sampler_isa(-1)


def random_row(rng: np.random.Generator, n: int) -> np.ndarray:
    kind = rng.integers(9)
    row = rng.standard_normal(n).astype(f32) * f32(rng.choice([0.5, 3, 12]))
    if kind == 1:
        row = np.round(row)
    elif kind == 2:
        row = np.round(row / 4) * f32(4)
    elif kind == 3:
        row[:] = f32(rng.choice([0.0, -0.0, -2.5]))
    elif kind == 4:
        row[rng.random(n) < 0.9] = -np.inf
    elif kind == 5:
        row[rng.random(n) < 0.1] = np.nan
    elif kind == 6:
        row[rng.integers(n)] += 40
    elif kind == 7:
        row *= f32(1e-40)  # denormals
    row[rng.integers(n)] = f32(rng.choice([0.0, 1.5]))
    return row


def random_params(rng: np.random.Generator, n: int) -> Params:
    def pick(*values):
        return values[rng.integers(len(values))]

    penalised = rng.random() < 0.6
    raising = rng.random() < 0.35
    return Params(
        temperature=pick(0.0, 0.3, 0.8, 1.0, 1.0, 2.5, 1e-38),
        top_k=pick(0, -1, 1, 2, 5, 40, 40, 300),
        top_p=pick(1.0, 1.0, 0.95, 0.9, 0.5, 0.0),
        min_p=pick(0.0, 0.0, 0.05, 0.3, 1.0),
        typical_p=pick(1.0, 1.0, 1.0, 0.9, 0.3, 1e-6),
        seed=int(rng.integers(2**63)),
        penalty_last_n=pick(64, 64, 0, -1, 3, 300),
        penalty_repeat=pick(1.0, 1.1, 1.5, 2.0, *[0.7] * raising) if penalised else 1.0,
        penalty_freq=pick(0.0, 0.2, 1.5, *[-0.3] * raising) if penalised else 0.0,
        penalty_present=pick(0.0, 0.4, *[-0.5] * raising) if penalised else 0.0,
        logit_bias=pick({}, {}, {}, {}, {1: 2.0, 3: -1.5}, {0: -math.inf, 2: -0.5, n + 7: -3.0}),
    )


def compare(native, rng: np.random.Generator, sizes: list[int], n_sets: int, n_rows: int) -> int:
    n_drawn = 0
    for _ in range(n_sets):
        n = int(rng.choice(sizes))
        params = random_params(rng, n)
        ours, theirs = Sampler(params), NativeSampler(*native, params)
        prompt = rng.integers(n, size=int(rng.integers(0, 200))).tolist()
        ours.seed(prompt)
        theirs.seed(prompt)
        for _ in range(n_rows):
            row = random_row(rng, n)
            before = row.copy()
            try:
                ids, probabilities = ours.distribution(row)
            except NonFiniteLogits:
                with pytest.raises(NonFiniteLogits):
                    theirs.pick(row)
                continue
            their_ids, their_probabilities = theirs.distribution(row)
            assert np.array_equal(ids, their_ids), params
            assert np.array_equal(probabilities.view(np.uint32), their_probabilities.view(np.uint32)), params
            token = ours.pick(row)
            assert theirs.pick(row) == token, params
            assert np.array_equal(row.view(np.uint32), before.view(np.uint32)), "the row was written to"
            n_drawn += ids.size > 1
            kept = token if rng.random() < 0.7 else int(rng.integers(n))
            ours.accept(kept)
            theirs.accept(kept)
        assert theirs.to_python().rng.state == ours.rng.state
    return n_drawn


@pytest.mark.parametrize("part", range(4))
def test_equals_python_on_small_rows(native, part: int) -> None:
    assert compare(native, np.random.default_rng(part), [5, 17, 60, 130, 300, 1000], 60, 25) > 200


def test_equals_python_on_large_rows(native, isa) -> None:
    assert compare(native, np.random.default_rng(50 + isa), [4100, 20_011, 50_000], 12, 3) >= 5


@pytest.mark.parametrize("n", [1, 15, 16, 17, 255, 256, 257, 1025, 33_000, 70_001])
def test_argmax(native, isa, n: int) -> None:
    ffi, lib = native
    rng = np.random.default_rng(n)
    for _ in range(20):
        row = random_row(rng, n)
        assert lib.ggfw_argmax(ffi.from_buffer("float[]", row), n) == int(
            np.where(np.isnan(row), -np.inf, row).argmax()
        )
    row[:] = rng.choice([np.nan, -np.inf], size=n)
    assert lib.ggfw_argmax(ffi.from_buffer("float[]", row), n) == -1


@pytest.mark.parametrize("n", [1, 15, 16, 17, 255, 256, 257, 1025, 33_000, 70_001])
def test_top_k(native, isa, n: int) -> None:
    ffi, lib = native
    rng = np.random.default_rng(n)
    for k in (0, 1, 2, 64, 200, 3000, n):
        for _ in range(3):
            row = random_row(rng, n)
            clean = np.where(np.isnan(row), f32(-np.inf), row)
            want = np.lexsort((np.arange(n), -clean))[:k]
            want = want[clean[want] > -np.inf]
            ids, values = np.zeros(k, np.int32), np.zeros(k, f32)
            m = lib.ggfw_top_k(
                ffi.from_buffer("float[]", row),
                n,
                k,
                ffi.from_buffer("int32_t[]", ids),
                ffi.from_buffer("float[]", values),
            )
            assert ids[:m].tolist() == want.tolist()
            assert np.array_equal(values[:m], row[want])
    assert lib.ggfw_top_k(ffi.from_buffer("float[]", row), n, min(n, 3), ffi.NULL, ffi.NULL) == min(
        n, 3, want.size
    )


def test_floods_of_equal_logits_cost_nothing(native) -> None:
    """Exactness under floods; the cost is compared with that of an ordinary row."""
    import time

    ffi, lib = native
    n, k = 262_144, 64
    rng = np.random.default_rng(0)
    ids = np.zeros(k, np.int32)
    out = ffi.from_buffer("int32_t[]", ids)

    def best_of(row: np.ndarray) -> float:
        data = ffi.from_buffer("float[]", row)
        times = []
        for _ in range(30):
            start = time.perf_counter()
            lib.ggfw_top_k(data, n, k, out, ffi.NULL)
            times.append(time.perf_counter() - start)
        return min(times)

    ordinary = best_of(rng.standard_normal(n).astype(f32))
    equal = np.zeros(n, f32)
    two_values = (rng.random(n) < 0.5).astype(f32)
    spiky = rng.standard_normal(n).astype(f32)
    spiky[: 64 * 256] += 100  # every entry of the best 64 blocks is a candidate
    for row, factor in ((equal, 5), (two_values, 5), (spiky, 40)):
        assert best_of(row) < factor * max(ordinary, 20e-6)
        assert ids.tolist() == np.lexsort((np.arange(n), -row))[:k].tolist()


def test_clone_and_generator_state(native) -> None:
    params = Params(seed=9, penalty_repeat=1.3, penalty_last_n=7, logit_bias={1: 0.5})
    sampler = NativeSampler(*native, params)
    sampler.seed(range(20))
    row = np.random.default_rng(0).standard_normal(50).astype(f32)

    def go_on(s) -> list[int]:
        out = []
        for _ in range(30):
            out.append(s.pick(row))
            s.accept(out[-1])
        return out

    go_on(sampler)
    copy, python = sampler.copy(), sampler.to_python()
    want = go_on(sampler)
    assert go_on(copy) == want and go_on(python) == want


def test_status_codes(native) -> None:
    ffi, lib = native
    sampler = NativeSampler(ffi, lib, Params(seed=0))
    row = ffi.new("float[]", [1.0])
    assert lib.ggfw_sampler_pick(sampler.pointer, row, -1) == lib.GGFW_SAMPLE_ARGUMENT
    assert lib.ggfw_sampler_pick(sampler.pointer, ffi.NULL, 3) == lib.GGFW_SAMPLE_ARGUMENT
    assert lib.ggfw_sampler_pick(sampler.pointer, row, 0) == 0
    assert lib.ggfw_argmax(row, -1) == lib.GGFW_SAMPLE_ARGUMENT
    for bad in ([math.nan] * 3, [-math.inf] * 3):
        with pytest.raises(NonFiniteLogits):
            sampler.pick(bad)
    assert sampler.pick([1, math.inf, math.inf]) == 1


def test_samplers_in_threads_do_not_disturb_each_other(native) -> None:
    row = np.random.default_rng(1).standard_normal(3000).astype(f32)
    want = {seed: [Sampler(Params(seed=seed)).pick(row)] for seed in range(8)}
    got: dict[int, list[int]] = {}

    def work(seed: int) -> None:
        got[seed] = [NativeSampler(*native, Params(seed=seed)).pick(row) for _ in range(50)]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert {seed: tokens[:1] for seed, tokens in got.items()} == want
    assert all(len(set(tokens)) == 1 for tokens in got.values())


@pytest.mark.slow
def test_speed_at_262144_logits(native) -> None:
    """The figures to reach: argmax and the exact best 64 of 262,144 logits in 30 microseconds each (AVX2 or better)."""
    import time

    ffi, lib = native
    if lib.ggfw_sampler_isa(-1) < 1:
        pytest.skip("plain C only")
    n = 262_144
    row = (np.random.default_rng(0).standard_normal(n) * 3).astype(f32)
    data, ids, values = ffi.from_buffer("float[]", row), ffi.new("int32_t[64]"), ffi.new("float[64]")
    calls = {
        "argmax": lambda: lib.ggfw_argmax(data, n),
        "top-64": lambda: lib.ggfw_top_k(data, n, 64, ids, values),
    }
    for name, call in calls.items():
        times = []
        for _ in range(2000):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        assert np.percentile(times, 10) <= 30e-6, (name, np.percentile(times, [0, 10, 50]))
    assert list(ids) == np.lexsort((np.arange(n), -row))[:64].tolist()

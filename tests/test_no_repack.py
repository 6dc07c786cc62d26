"""Weights that stay in the mapped file: the same bits as packed ones, nothing packed, little memory; reading ahead."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kernels_linear_twin as twin
import numpy as np
import pytest
from tests_support import check_logits
from tiny_models import write_llama

import ggfw
from ggfw import model as model_module
from ggfw.evaluate import evaluate
from ggfw.execute.batch import Wants
from ggfw.execute.library import native
from ggfw.footprint import Footprint
from ggfw.weights import NativeWeights

DATA = Path(__file__).parent / "data"
QUANTS = sorted((DATA / "quants").glob("*.gguf"))
#: Of each kind of product one: plain, tied, experts by several gatings, latent heads, scans and delta rules.
FAMILIES = [
    "llama",
    "gemma3",
    "mixtral",
    "qwen3moe",
    "gpt-oss",
    "deepseek2",
    "nemotron_h_moe",
    "qwen35moe",
    "bert",
]
UNITS = twin.units()
PROMPT = [1, 5, 9, 12, 7, 3, 2, 8, 11, 4, 6, 10]


@pytest.fixture(params=UNITS)
def lib(request: pytest.FixtureRequest) -> twin.Library:
    return twin.library(request.param)


@pytest.mark.parametrize("name", twin.KERNELS)
def test_file_rows_give_the_bits_of_packed_rows(lib: twin.Library, name: str) -> None:
    for n_out, n_in, n_rows in ((1, 256, 1), (33, 512, 5), (50, 1536, 40)):
        rng = np.random.default_rng([n_out, n_in])
        parts = [twin.random_rows(name, n, n_in, rng) for n in (n_out, 16, n_out + 7)]
        x = rng.standard_normal((n_rows, n_in)).astype(np.float32)
        packed = twin.linear(twin.Matrices(lib, name, n_in, parts), x)
        in_file = twin.Matrices(lib, name, n_in, parts, in_file=True)
        for a, b in zip(packed, twin.linear(in_file, x, n_threads=3, shuffle=n_rows), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["F32", "F16", "Q4_0:Q16", "Q4_K:Q8", "Q6_K:Q16", "MXFP4:Q16", "IQ4_XS:F32"])
def test_file_rows_of_experts_give_the_bits_of_packed_ones(lib: twin.Library, name: str) -> None:
    n_expert, n_out, n_in, k = 5, 37, 256, 2
    rng = np.random.default_rng(n_out)
    rows = [twin.random_rows(name, n_expert * n_out, n_in, rng)]
    packed, in_file = (
        twin.Matrices(lib, name, n_in, rows, twin.MOE_LINEAR, n_expert, in_file=stays)
        for stays in (False, True)
    )
    for n_rows in (1, 3, 70):
        x = rng.standard_normal((n_rows, n_in)).astype(np.float32)
        ids = np.stack([rng.permutation(n_expert)[:k] for _ in range(n_rows)]).astype(np.int32)
        np.testing.assert_array_equal(twin.moe_linear(packed, x, ids), twin.moe_linear(in_file, x, ids))


def _load(path: Path, **options: Any) -> ggfw.Model:
    return ggfw.load(path, ctx=64, threads=2, repack=False, **options)


@pytest.mark.parametrize("path", QUANTS, ids=lambda p: p.stem)
def test_a_mapped_model_says_what_a_packed_one_says(path: Path) -> None:
    with ggfw.load(path, ctx=64, threads=2, repack=True, deterministic=True) as packed:
        expected = np.asarray(packed.logits(PROMPT))
        assert packed.loaded.executor.weights.packed_bytes > 0
    with _load(path, deterministic=True) as mapped:
        assert np.array_equal(np.asarray(mapped.logits(PROMPT)), expected)
        assert mapped.loaded.executor.weights.packed_bytes == 0
        assert not mapped.loaded.repack


@pytest.mark.parametrize("name", FAMILIES)
def test_mapped_models_conform(name: str) -> None:
    support = check_logits()
    fx = support.load(name, root=str(DATA))
    wants = Wants.LOGITS if fx.logits else Wants.HIDDEN
    with ggfw.load(fx.gguf, ctx=256, n_parallel=5, threads=2, repack=False) as model:
        assert model.loaded.executor.weights.packed_bytes == 0
        for chunk in (None, 7):
            prompts = list(fx.prompts.values())
            rows = model.engine.run(
                evaluate(model.loaded, prompts, wants, chunk=chunk, together=True)
            ).result()
            named = dict(zip(fx.prompts, rows, strict=True))
            found = {n: r for n, r in named.items() if fx.logits or f"token_embd/{n}" in fx.embeddings}
            report = support.compare(fx, found, None, root=str(DATA))
            assert report["ok"], report


def test_a_file_given_as_bytes_stays_in_them(tmp_path: Path) -> None:
    path = QUANTS[0]
    with _load(path) as mapped, ggfw.load(path.read_bytes(), ctx=64, threads=2, repack=False) as held:
        assert np.array_equal(np.asarray(mapped.logits(PROMPT)), np.asarray(held.logits(PROMPT)))


def test_a_cache_of_packed_weights_gets_nothing(tmp_path: Path) -> None:
    from ggfw.packed_cache import PackedCache

    with _load(QUANTS[0], packed_cache=PackedCache(tmp_path / "packed", 64)):
        pass
    assert not (tmp_path / "packed").exists()


def test_a_file_cut_short_ends_the_model_not_the_process(tmp_path: Path) -> None:
    path = Path(shutil.copy(QUANTS[0], tmp_path / "model.gguf"))
    with _load(path) as model:
        model.logits(PROMPT)
        os.truncate(path, 0)
        with pytest.raises(ggfw.ModelFileError, match="cut short"):
            model.logits(PROMPT)


def test_what_does_not_fit_stays_mapped_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(model_module, "_LARGE", 0)
    for free, stays in ((1 << 40, False), (1000, True)):
        monkeypatch.setattr("ggfw.free_memory.available_memory", lambda free=free: free)
        events.clear()
        with ggfw.load(QUANTS[0], ctx=64, log=lambda event, fields: events.append((event, fields))) as model:
            assert model.loaded.repack is not stays
        assert [event for event, _ in events if event == "weights_stay_mapped"] == [
            "weights_stay_mapped"
        ] * stays


def test_mapped_weights_count_for_nothing_where_memory_is_counted() -> None:
    packed, mapped = (Footprint.of(QUANTS[0], ctx=64, repack=repack) for repack in (None, False))
    assert packed.weights > 0
    assert mapped.weights == 0


# -- files larger than memory ------------------------------------------------------------------------------------------

GROUPS = Path("/sys/fs/cgroup/memory")
CHILD = """
import sys, ggfw
with ggfw.load(sys.argv[1], ctx=64, ubatch=16, threads=2, repack=sys.argv[2] == "packed") as model:
    print(*model.greedy([1, 70, 80, 90], 4))
status = open("/proc/self/status").read()
print(*(int(status.split(name)[1].split()[0]) << 10 for name in ("VmHWM:", "RssAnon:")))
"""


def _greedy(path: Path, layout: str, *before: str) -> tuple[str, int, int]:
    """Tokens, peak and private memory of a process of its own."""
    done = subprocess.run(
        [*before, sys.executable, "-c", CHILD, str(path), layout], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    tokens, sizes = done.stdout.splitlines()
    peak, private = sizes.split()
    return tokens, int(peak), int(private)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux for the memory of a process")
def test_a_file_larger_than_the_memory_of_its_group(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "large.gguf", n_layer=4, n_ff=1 << 18)
    size = path.stat().st_size
    assert size > 400_000_000
    tokens, peak, _ = _greedy(path, "packed")
    assert peak > size
    same, _, private = _greedy(path, "mapped")
    assert same == tokens
    assert private < size // 4
    if not os.access(GROUPS / "cgroup.procs", os.W_OK):
        pytest.skip("no control group may be made here")
    _drop(path)  # what comes in from now on is charged to the group
    group = GROUPS / f"ggfw-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(size // 2))
        same, peak, _ = _greedy(
            path, "mapped", "sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"
        )
        held = int((group / "memory.max_usage_in_bytes").read_text())
    finally:
        (group / "memory.force_empty").write_text("0")
        group.rmdir()
    assert same == tokens
    assert peak < size * 0.6
    assert held <= size // 2


SHORT = """
import gc, resource, sys, ggfw
size, path = int(sys.argv[2]), sys.argv[1]
with ggfw.load(path, ctx=64, ubatch=16, threads=2, repack=False):
    pass  # what it imports and starts is there
gc.collect()
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + size * 5 // 4, resource.RLIM_INFINITY))
try:
    ggfw.load(path, ctx=64, ubatch=16, threads=2)
except ggfw.BackendError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits what a process may map")
def test_packed_weights_that_find_no_memory_are_an_error_with_their_size(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "large.gguf", n_ff=1 << 18, n_layer=1)
    command = [sys.executable, "-c", SHORT, str(path), str(path.stat().st_size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert re.match(r"\d\d+ MiB for packed weights are not to be had; .*--no-repack", done.stdout), done


# -- reading ahead ----------------------------------------------------------------------------------------------


def _drop(path: Path) -> None:
    """Have the system forget what it holds of a file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _held(path: Path) -> float:
    """The share of a file's pages that is in memory."""
    n = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), n, access=mmap.ACCESS_READ) as mapped:
        pages = np.frombuffer(mapped, np.uint8)
        held = np.zeros(-(-n // mmap.PAGESIZE), np.uint8)
        address, to = ctypes.c_void_p(pages.ctypes.data), ctypes.c_void_p(held.ctypes.data)
        assert ctypes.CDLL(None).mincore(address, ctypes.c_size_t(n), to) == 0
        del pages
    return float((held & 1).mean())


@pytest.fixture
def dropped(tmp_path: Path) -> Path:
    """A file of 40 MB that the system has forgotten."""
    path = tmp_path / "file"
    path.write_bytes(bytes(40 << 20))
    _drop(path)
    if _held(path) > 0.1:
        pytest.skip("files of this folder are always in memory")
    return path


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux which pages are in memory")
def test_reading_ahead_brings_a_file_in_without_touching_it(dropped: Path) -> None:
    n_bytes = dropped.stat().st_size
    with dropped.open("rb") as file, mmap.mmap(file.fileno(), n_bytes, access=mmap.ACCESS_READ) as mapped:
        data = np.frombuffer(mapped, np.uint8)
        native().lib.ggfw_memory_read_ahead(native().ffi.cast("void *", data.ctypes.data), n_bytes)
        end = time.monotonic() + 10
        while _held(dropped) < 0.99 and time.monotonic() < end:
            time.sleep(0.02)
        assert _held(dropped) >= 0.99
        (about,) = Path("/proc/self/smaps").read_text().split(str(dropped))[1:]
        assert re.search(r"^Rss: +0 kB", about, re.MULTILINE)
        del data


def test_what_stays_mapped_is_read_ahead_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = NativeWeights._read_ahead

    def noted(weights: NativeWeights) -> None:
        read.append(sum(n_bytes for _, n_bytes in weights._mapped))
        real(weights)

    monkeypatch.setattr(NativeWeights, "_read_ahead", noted)
    _load(QUANTS[0], prefault=False).close()
    assert read == []
    _load(QUANTS[0]).close()
    assert len(read) == 1
    assert 0.5 * QUANTS[0].stat().st_size < read[0] < 2 * QUANTS[0].stat().st_size
    ggfw.load(QUANTS[0].read_bytes(), ctx=64, repack=False).close()
    assert len(read) == 1

"""Packed weights on disk: the same results, shared files, damaged or foreign ones never used, bounded folders."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import ggfw
from ggfw.errors import ModelFileError
from ggfw.execute.library import native
from ggfw.packed_cache import PackedCache, packed_key

DATA = Path(__file__).parent / "data" / "quants"
KEY = packed_key(["tests"])


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _logits(path: Path, cache: PackedCache | None) -> tuple[np.ndarray, bool]:
    """All logits of a short prompt, and whether the weights were mapped."""
    with ggfw.load(path, ctx=64, threads=2, packed_cache=cache) as model:
        mapped = model.loaded.executor.weights.mapped is not None
        return np.asarray(model.logits([1, 5, 9, 12])), mapped


def _store(cache: PackedCache, key: bytes, n_bytes: int) -> np.ndarray:
    data = np.random.default_rng(n_bytes).integers(0, 256, n_bytes, np.uint8)
    thread = cache.store(key, data, native())
    assert thread is not None
    thread.join()
    return data


@pytest.fixture
def model(tmp_path: Path) -> Path:
    found = sorted(DATA.glob("q-llama*.gguf")) + sorted(DATA.glob("q-mixtral*.gguf"))
    return Path(shutil.copy(found[0], tmp_path / "model.gguf"))


@pytest.mark.parametrize("path", sorted(DATA.glob("*.gguf")), ids=lambda p: p.stem)
def test_mapped_weights_give_the_same_bits(path: Path, tmp_path: Path) -> None:
    cache = PackedCache(tmp_path / "packed", 64)
    packed, first = _logits(path, cache)
    mapped, second = _logits(path, cache)
    assert not first
    assert second
    assert np.array_equal(packed, mapped)
    assert np.array_equal(packed, _logits(path, None)[0])


def test_any_damage_is_found_and_the_weights_are_packed_anew(model: Path, tmp_path: Path) -> None:
    cache = PackedCache(tmp_path / "packed", 64)
    expected, _ = _logits(model, cache)
    (stored,) = _files(cache.folder)
    sound = stored.read_bytes()
    for at in (0, len(sound) // 2, len(sound) - 1, len(sound) - 60):
        damaged = bytearray(sound)
        damaged[at] ^= 1
        stored.write_bytes(damaged)
        found, mapped = _logits(model, cache)
        assert not mapped, at
        assert np.array_equal(found, expected)
        assert stored.read_bytes() == sound
    for length in (0, 7, len(sound) - 1):
        stored.write_bytes(sound[:length])
        assert not _logits(model, cache)[1], length
    stored.write_bytes(sound + b"\0")
    assert not _logits(model, cache)[1]


def test_weights_changed_in_the_file_are_not_served_from_the_cache(model: Path, tmp_path: Path) -> None:
    cache = PackedCache(tmp_path / "packed", 64)
    before, _ = _logits(model, cache)
    raw = bytearray(model.read_bytes())
    raw[-200:] = bytes(200)
    model.write_bytes(raw)
    os.utime(model, ns=(1, 1))
    after, mapped = _logits(model, cache)
    assert not mapped
    assert np.array_equal(after, _logits(model, None)[0])
    assert len(_files(cache.folder)) == 2
    assert before.shape == after.shape


def test_other_arithmetic_packs_for_itself(model: Path, tmp_path: Path) -> None:
    cache = PackedCache(tmp_path / "packed", 64)
    for activations in ("int16", "int8", "int16"):
        ggfw.load(model, ctx=64, packed_cache=cache, activations=activations).close()
    assert len(_files(cache.folder)) == 2


@pytest.mark.parametrize("n_bytes", [1, 63, 64, 65, 1 << 20, (3 << 20) + 17])
def test_find_returns_what_was_stored(n_bytes: int, tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, 64)
    data = _store(cache, KEY, n_bytes)
    found = cache.find(KEY, n_bytes, native())
    assert found is not None
    assert np.array_equal(found, data)
    assert cache.find(KEY, n_bytes + 1, native()) is None


def test_a_file_under_another_key_is_refused(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, 64)
    _store(cache, KEY, 1000)
    other = packed_key(["others"])
    cache.path(KEY).rename(cache.path(other))
    assert cache.find(other, 1000, native()) is None
    assert _files(tmp_path) == []


def test_the_longest_unused_goes_first(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, 1)
    keys = [packed_key([i]) for i in range(4)]
    for age, key in enumerate(keys[:3]):
        _store(cache, key, 300_000)
        os.utime(cache.path(key), ns=(age + 1, 1))
    assert cache.find(keys[0], 300_000, native()) is not None  # now used last
    _store(cache, keys[3], 300_000)
    assert {p for p in _files(tmp_path)} == {cache.path(keys[i]) for i in (0, 2, 3)}


def test_what_would_fill_the_folder_is_not_stored(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, 1)
    assert cache.store(KEY, np.zeros(600_000, np.uint8), native()) is None


def test_a_folder_that_cannot_be_written_costs_nothing(model: Path, tmp_path: Path) -> None:
    (tmp_path / "packed").write_text("a file where the folder should be")
    logits, mapped = _logits(model, PackedCache(tmp_path / "packed", 64))
    assert not mapped
    assert np.array_equal(logits, _logits(model, None)[0])


def test_a_cut_mapping_ends_the_model_not_the_process(model: Path, tmp_path: Path) -> None:
    cache = PackedCache(tmp_path / "packed", 64)
    _logits(model, cache)
    (stored,) = _files(cache.folder)
    with ggfw.load(model, ctx=64, packed_cache=cache) as mapped:
        os.truncate(stored, 0)
        with pytest.raises(ModelFileError, match="cut short"):
            mapped.logits([1, 5, 9])
    assert not _logits(model, cache)[1]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere mapped weights stay as they are")
def test_mapped_weights_move_into_memory_of_their_own_under_a_reader(tmp_path: Path) -> None:
    cache, n_bytes = PackedCache(tmp_path / "packed", 64), (11 << 20) + 4097
    expected = _store(cache, KEY, n_bytes)
    data = cache.find(KEY, n_bytes, native())
    assert data is not None
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            if not np.array_equal(data, expected):
                wrong.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    moved = native().lib.ggfw_memory_settle(native().ffi.cast("void *", data.ctypes.data), n_bytes)
    stop.set()
    reader.join()
    assert not wrong
    assert n_bytes - (4 << 20) < moved <= n_bytes
    assert moved % (2 << 20) == 0
    assert np.array_equal(data, expected)
    (stored,) = _files(cache.folder)
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(stored))]
    assert 0 < sum(_extent(line) for line in maps) <= n_bytes - moved + 8191


def _extent(line: str) -> int:
    """Bytes of a line of ``/proc/self/maps``."""
    begin, _, end = line.split()[0].partition("-")
    return int(end, 16) - int(begin, 16)


@pytest.mark.parametrize("at_once", [True, False])
def test_mapped_weights_settle_when_loaded_or_after_the_first_token(
    model: Path, tmp_path: Path, at_once: bool
) -> None:
    cache = PackedCache(tmp_path / "packed", 64)
    expected, _ = _logits(model, cache)
    cache.settle_at_once = at_once
    with ggfw.load(model, ctx=64, threads=2, packed_cache=cache) as loaded:
        weights = loaded.loaded.executor.weights
        assert weights.settled is at_once
        assert np.array_equal(expected, np.asarray(loaded.logits([1, 5, 9, 12])))
        list(loaded.stream([1, 5, 9], max_tokens=4))
        assert weights.settled


def test_weights_stay_mapped_while_they_settle_though_nobody_else_holds_them(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt while a server loads its model lets go of everything but the thread."""
    import gc
    import weakref

    from ggfw.weights import NativeWeights

    cache = PackedCache(tmp_path / "packed", 64)
    _logits(model, cache)
    begun, go_on = threading.Event(), threading.Event()

    class Library:
        @staticmethod
        def ggfw_memory_settle(mapped: object, n_bytes: int) -> None:
            begun.set()
            go_on.wait(10.0)

    with ggfw.load(model, ctx=64, threads=1, packed_cache=cache) as loaded:
        data = loaded.loaded.executor.weights.mapped[1]
        weights = NativeWeights.__new__(NativeWeights)
        weights._ffi, weights._lib, weights.settled, weights.mapped = (
            native().ffi,
            Library,
            False,
            (model, data),
        )
        weights.settle()
        watched, thread = weakref.ref(data), weights._thread
        assert begun.wait(10.0)
    del weights, data, loaded
    gc.collect()
    try:
        assert watched() is not None
    finally:
        go_on.set()
        thread.join()


def test_a_file_is_watched_before_its_weights_settle(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settling reads all of it: cut short by others, it would end the process."""
    from ggfw.execute.file_guard import FileGuard
    from ggfw.weights import NativeWeights

    cache = PackedCache(tmp_path / "packed", 64, settle_at_once=True)
    _logits(model, cache)
    watch, settle, seen = FileGuard.watch, NativeWeights.settle, list[object]()
    monkeypatch.setattr(FileGuard, "watch", lambda *a: (seen.append(a[1]), watch(*a))[1])
    monkeypatch.setattr(NativeWeights, "settle", lambda *a, **k: (seen.append("settle"), settle(*a, **k))[1])
    assert _logits(model, cache)[1]
    (stored,) = _files(tmp_path / "packed")
    assert seen[-2:] == [stored, "settle"]


@pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be cut short there")
def test_a_watch_over_a_mapping_that_has_gone_takes_no_fault_from_others(tmp_path: Path) -> None:
    lib, ffi, size = native().lib, native().ffi, 64 << 10
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    data = np.memmap(path, np.uint8, "r")
    address = data.ctypes.data
    # The stale one begins before the mapping and ends behind it.
    stale = lib.ggfw_file_watch(ffi.cast("void *", address - 4096), size + 8192)
    own = lib.ggfw_file_watch(ffi.cast("void *", address), size)
    try:
        os.truncate(path, 0)
        assert int(data.sum()) == 0
        assert lib.ggfw_file_failed(own)
    finally:
        lib.ggfw_file_unwatch(stale)
        lib.ggfw_file_unwatch(own)


def test_two_processes_of_one_number_do_not_write_into_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers that share a folder have the same process numbers."""
    replace, seen = Path.replace, []

    def noting(self: Path, target: Path) -> Path:
        seen.append(self)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", noting)
    for _ in range(2):
        _store(PackedCache(tmp_path, 64), KEY, 100)
    assert len(set(seen)) == 2
    assert [path.suffix for path in _files(tmp_path)] == [".packed"]

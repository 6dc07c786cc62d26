"""The folder of packed weights and those who put things into it: strangers' models, and whoever may write there.

Who may write there can change what a model says, as with the model's own file (docs/security.md). He must not be able
to stop a start, to have other files written or removed, or to make native code leave its memory.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ggfw
from ggfw.execute.library import native
from ggfw.packed_cache import PackedCache, _sums, _trailer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes and links of Unix")

DATA = Path(__file__).parent / "data" / "quants"


def answer(path: Path, cache: PackedCache | None) -> tuple[np.ndarray, bool]:
    """Logits, and whether packed weights were mapped."""
    with ggfw.load(path, ctx=64, threads=1, packed_cache=cache) as model:
        return np.asarray(model.logits([1, 5, 9, 12])), model.loaded.executor.weights.mapped is not None


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copy(sorted(DATA.glob("q-llama*Q8_0*.gguf"))[0], tmp_path / "model.gguf"))


@pytest.fixture
def cache(tmp_path: Path) -> PackedCache:
    return PackedCache(tmp_path / "packed", 64)


def test_a_model_that_looks_like_another_one_does_not_change_it(
    model: Path, cache: PackedCache, tmp_path: Path
) -> None:
    """A stranger's file with the size, the time and most of the bytes of a good one is not taken for it, nor shared."""
    good, _ = answer(model, None)
    twin = Path(shutil.copy2(model, tmp_path / "twin.gguf"))
    data = bytearray(twin.read_bytes())
    with ggfw.load(model, ctx=64, threads=1) as loaded:
        places = [len(data) * i // 64 for i in range(64)]  # where the key looks
        last = max(info.offset for info in loaded.gguf.tensors.values())
    changed = next(p + 80 for p in places if len(data) // 2 < p < last and p + 200 < len(data))
    data[changed : changed + 60] = bytes(60)
    twin.write_bytes(data)
    stat = model.stat()
    os.utime(twin, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not answer(twin, cache)[1]
    first, mapped = answer(model, cache)
    assert not mapped and np.array_equal(first, good)
    again, mapped = answer(model, cache)
    assert mapped and np.array_equal(again, good)


def pipe(path: Path, secret: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, secret: Path) -> None:
    path.mkdir()


def link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def dangling(path: Path, secret: Path) -> None:
    path.symlink_to(secret.with_name("nothing"))


def device(path: Path, secret: Path) -> None:
    path.symlink_to("/dev/zero")


def itself(path: Path, secret: Path) -> None:
    path.symlink_to(path)


def empty(path: Path, secret: Path) -> None:
    path.touch()


@pytest.mark.parametrize("put", [pipe, folder, link, dangling, device, itself, empty])
def test_what_lies_under_the_name_of_packed_weights(
    model: Path, cache: PackedCache, tmp_path: Path, put: Callable[[Path, Path], None]
) -> None:
    expected, _ = answer(model, cache)
    (stored,) = cache.folder.iterdir()
    stored.unlink()
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret" * 1000)
    put(stored, secret)
    found: list[tuple[np.ndarray, bool]] = []
    thread = threading.Thread(target=lambda: found.append(answer(model, cache)), daemon=True)
    thread.start()
    thread.join(20)
    assert found, "the start hangs"
    assert np.array_equal(found[0][0], expected) and not found[0][1]
    assert secret.read_bytes() == b"secret" * 1000 and not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("path", sorted(DATA.glob("q-llama*.gguf")), ids=lambda p: p.stem)
@pytest.mark.parametrize("fill", ["noise", "ones"])
def test_forged_weights_cannot_leave_their_memory(
    path: Path, fill: str, cache: PackedCache, tmp_path: Path
) -> None:
    """Any bytes under right sums are weights: wrong answers, and nothing worse."""
    own = Path(shutil.copy(path, tmp_path / "model.gguf"))
    answer(own, cache)
    if not cache.folder.is_dir():
        pytest.skip("nothing of this file is packed")
    (stored,) = cache.folder.iterdir()
    key = bytes.fromhex(stored.name.partition(".")[0])
    n_bytes = int.from_bytes(stored.read_bytes()[-_tail(stored) :][8:16], "little")
    forged = np.full(n_bytes, 255, np.uint8)
    if fill == "noise":
        forged = np.random.default_rng(3).integers(0, 256, n_bytes, np.uint8)
    stored.write_bytes(forged.tobytes() + _trailer(key, n_bytes, _sums(forged, native())))
    logits, mapped = answer(own, cache)
    assert mapped and logits.shape[0] == 4


def _tail(path: Path) -> int:
    """Bytes of a file's trailer."""
    data = path.read_bytes()
    return len(data) - data.rindex(b"GGFWPACK")

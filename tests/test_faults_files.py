"""Model files that change under a running model, disks that are full, folders that cannot be written."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_models import write_llama

import ggfw
from ggfw.cache.saved import MAGIC
from ggfw.errors import CacheFileError, GgfwError, ModelFileError
from ggfw.packed_cache import PackedCache

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="mapped files cannot shrink on Windows")


def run(code: str, *args: object, limit: str = "") -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own, for what may end a process; ``limit``: code before ggfw is imported."""
    return subprocess.run(
        [sys.executable, "-c", limit + "\n" + code, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
    )


TRUNCATED = """
import os, sys, ggfw
with ggfw.load(sys.argv[1], threads=1, ctx=64) as model, ggfw.load(sys.argv[2], threads=1, ctx=64) as other:
    assert model.generate("a", max_tokens=2, temperature=0).usage.completion_tokens
    os.truncate(sys.argv[1], 4096)
    for _ in range(2):
        try:
            model.generate("bcdefgh", max_tokens=3, temperature=0)
        except ggfw.GgfwError as error:
            assert "cut short" in str(error) or "changed" in str(error), error
        else:
            raise SystemExit("no error")
    other.generate("a", max_tokens=2)
    print("good")
"""


@POSIX
def test_a_file_that_is_cut_short_ends_its_model_and_nothing_else(tmp_path: Path) -> None:
    done = run(TRUNCATED, write_llama(tmp_path / "a.gguf"), write_llama(tmp_path / "b.gguf"))
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr


SENT = """
import faulthandler, os, signal, sys, ggfw
before, times = sys.argv[2], int(sys.argv[3])
signal.alarm(30)
if before == "handled":
    signal.signal(signal.SIGBUS, lambda *_: print("handled", flush=True))
elif before == "ignored":
    signal.signal(signal.SIGBUS, signal.SIG_IGN)
elif before == "told":
    faulthandler.enable()
with ggfw.load(sys.argv[1], threads=1, ctx=64) as model:
    if before == "told after it":
        faulthandler.enable()  # which passes on to ours
        ggfw.load(sys.argv[1], threads=1, ctx=64).close()
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGBUS)
    print("goes on", flush=True)
    os.truncate(sys.argv[1], 4096)
    try:
        model.generate("bcdefgh", max_tokens=3, temperature=0)
    except ggfw.GgfwError as error:
        print("cut short" in str(error))
"""


@POSIX
@pytest.mark.parametrize(
    ("who", "said"), [("ignored", "goes on\nTrue\n"), ("handled", "handled\n" * 3 + "goes on\nTrue\n")]
)
def test_signals_that_somebody_sends_leave_the_guard_in_place(who: str, said: str, tmp_path: Path) -> None:
    done = run(SENT, write_llama(tmp_path / "a.gguf"), who, 3)
    assert (done.returncode, done.stdout) == (0, said), done.stderr


@POSIX
@pytest.mark.parametrize("who", ["default", "told", "told after it"])
def test_signals_that_somebody_sends_are_not_swallowed(who: str, tmp_path: Path) -> None:
    done = run(SENT, write_llama(tmp_path / "a.gguf"), who, 1)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, ""), done.stderr
    assert done.stderr.count("Fatal Python error: Bus error") == (who != "default")


CHAINED = """
import faulthandler, mmap, os, sys, ggfw
with ggfw.load(sys.argv[1], threads=1, ctx=64):
    faulthandler.enable()  # which comes before ours now, and passes on to it
    with ggfw.load(sys.argv[1], threads=1, ctx=64), open(sys.argv[1] + ".other", "w+b") as file:
        file.write(bytes(8192))
        file.flush()
        data = mmap.mmap(file.fileno(), 8192)
        file.truncate(0)
        data[5000]
"""


@POSIX
def test_faults_of_other_files_are_told_once(tmp_path: Path) -> None:
    done = run(CHAINED, write_llama(tmp_path / "a.gguf"))
    assert done.returncode == -signal.SIGBUS
    assert done.stderr.count("Fatal Python error: Bus error") == 1


@POSIX
def test_a_file_that_is_written_over_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggfw.execute.file_guard.INTERVAL", 0.0)
    path = write_llama(tmp_path / "a.gguf")
    with ggfw.load(path, threads=1, ctx=64) as model:
        model.generate("a", max_tokens=2)
        with path.open("r+b") as file:
            file.seek(-100, os.SEEK_END)
            file.write(bytes(50))
        os.utime(path, ns=(1, 1))
        with pytest.raises(GgfwError, match="was changed while it was in use"):
            model.generate("a", max_tokens=2)


@POSIX
def test_a_file_that_is_replaced_or_deleted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggfw.execute.file_guard.INTERVAL", 0.0)
    path = write_llama(tmp_path / "a.gguf")
    with ggfw.load(path, threads=1, ctx=64) as model:
        before = model.generate("a", max_tokens=4, temperature=0).text
        write_llama(tmp_path / "new.gguf", seed=9).replace(path)
        assert model.generate("a", max_tokens=4, temperature=0).text == before
        path.unlink()
        assert model.generate("a", max_tokens=4, temperature=0).text == before


def test_a_file_that_is_cut_short_before_it_is_loaded(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "a.gguf")
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(ModelFileError, match="truncated"):
        ggfw.load(path)


#: What is changed in a saved cache whose checksum is right; the fuzzer found the first four.
SAVED: dict[str, Any] = {
    "facts that are none": lambda h: h | {"facts": 3},
    "fewer tokens than pages": lambda h: h | {"tokens": h["tokens"][:3]},
    "no tokens": lambda h: {k: v for k, v in h.items() if k != "tokens"},
    "nesting": lambda h: "[" * 100_000,
    "negative sizes": lambda h: h | {"pages": [[-1, 4]], "state": -4},
    "tokens of another vocabulary": lambda h: h | {"tokens": [10**6] * len(h["tokens"])},
    "tokens that are none": lambda h: h | {"tokens": [[1]] * len(h["tokens"])},
    "a state that nobody has": lambda h: h | {"state": 4},
}  # fmt: skip


@pytest.mark.parametrize("what", list(SAVED))
def test_saved_caches_with_a_right_checksum_and_wrong_content(tmp_path: Path, what: str) -> None:
    with ggfw.load(write_llama(tmp_path / "m.gguf"), threads=1, ctx=128) as model:
        prompt = model.tokenize("the sea and the stars and the hills")
        model.generate(prompt, max_tokens=1)
        model.save_cache(tmp_path / "c", prompt)
        data = (tmp_path / "c").read_bytes()
        begin = len(MAGIC) + 8
        end = begin + int.from_bytes(data[len(MAGIC) : begin], "little")
        changed = SAVED[what](json.loads(data[begin:end]))
        text = (changed if isinstance(changed, str) else json.dumps(changed)).encode()
        made = MAGIC + len(text).to_bytes(8, "little") + text + data[end:-32]
        (tmp_path / "c").write_bytes(made + hashlib.sha256(made).digest())
        with pytest.raises(CacheFileError, match="damaged"):
            model.load_cache(tmp_path / "c")
        assert model.generate(prompt, max_tokens=1).usage.completion_tokens


PACKED = """
import os, resource, signal, sys, ggfw
from pathlib import Path
from ggfw.packed_cache import PackedCache
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
cache = PackedCache(Path(sys.argv[2]), 64)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # the disk is full
for n in range(3):
    with ggfw.load(sys.argv[1], threads=1, ctx=64, packed_cache=cache) as model:
        text = model.generate("a", max_tokens=3, temperature=0, ignore_eos=True).text
        assert model.loaded.executor.weights.mapped is None
    assert list(cache.folder.iterdir()) == [], "half a file"
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
for mapped in (False, True):
    with ggfw.load(sys.argv[1], threads=1, ctx=64, packed_cache=cache) as model:
        assert model.generate("a", max_tokens=3, temperature=0, ignore_eos=True).text == text
        assert (model.loaded.executor.weights.mapped is not None) is mapped
print("good")
"""


@POSIX
def test_a_disk_that_is_full_leaves_no_half_packed_weights(tmp_path: Path) -> None:
    done = run(PACKED, write_llama(tmp_path / "m.gguf", n_layer=4), tmp_path / "packed")
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr


@POSIX
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("how", ["cut", "written over", "replaced", "deleted"])
def test_packed_weights_that_change_while_they_are_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, settled: bool
) -> None:
    """A cut or changed file ends its model with an error, or says nothing wrong; the next start packs anew."""
    monkeypatch.setattr("ggfw.execute.file_guard.INTERVAL", 0.0)
    path = write_llama(tmp_path / "m.gguf", n_layer=4)
    cache = PackedCache(tmp_path / "packed", 64, settle_at_once=settled)

    def answer(model: ggfw.Model) -> str:
        return model.generate("a", max_tokens=4, temperature=0, ignore_eos=True).text

    with ggfw.load(path, threads=1, ctx=64, packed_cache=cache) as model:
        expected = answer(model)
    (stored,) = cache.folder.iterdir()
    with ggfw.load(path, threads=1, ctx=64, packed_cache=cache) as model:
        assert model.loaded.executor.weights.mapped is not None
        if how == "cut":
            os.truncate(stored, 100)
        elif how == "written over":
            with stored.open("r+b") as file:
                file.write(os.urandom(50_000))
            os.utime(stored, ns=(1, 1))
        elif how == "replaced":
            (tmp_path / "other").write_bytes(bytes(stored.stat().st_size))
            (tmp_path / "other").replace(stored)
        else:
            stored.unlink()
        if how in ("cut", "written over"):
            with pytest.raises(
                GgfwError, match="cut short while it was in use; load the model again|changed"
            ):
                answer(model)
        else:
            assert answer(model) == expected
    with ggfw.load(path, threads=1, ctx=64, packed_cache=cache) as model:
        assert answer(model) == expected

"""Model files that change under a running model, disks that are full, folders that cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import write_llama

import ggfw
from ggfw.errors import GgfwError, ModelFileError

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

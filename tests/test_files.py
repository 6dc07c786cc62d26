"""What users name as a file and is none: nothing is waited for, and nothing is replaced."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from ggfw.cache.saved import SavedPrefix
from ggfw.errors import CacheFileError, InvalidRequest
from ggfw.gguf import write_gguf
from ggfw.logprob_file import LogprobWriter

SAVED = SavedPrefix({"a": 1}, [1, 2], [np.zeros((1, 4), np.uint8)], np.zeros(0, np.uint8))


@pytest.fixture(params=["pipe", "folder"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "it"
    if request.param == "folder":
        path.mkdir()
    elif sys.platform == "win32":
        pytest.skip("pipes have no names in folders")
    else:
        os.mkfifo(path)
    return path


def test_what_is_no_file_is_not_replaced(no_file: Path) -> None:
    was = stat.S_IFMT(no_file.stat().st_mode)
    for write in (
        SAVED.write,
        lambda path: write_gguf(path, {"general.architecture": "llama"}),
        lambda path: LogprobWriter(path, np.zeros(1, np.int32), 1, 1),
    ):
        with pytest.raises(InvalidRequest, match="is a folder, a pipe or a device"):
            write(no_file)
    assert stat.S_IFMT(no_file.stat().st_mode) == was
    assert list(no_file.parent.iterdir()) == [no_file]


def test_a_pipe_is_not_waited_for(no_file: Path) -> None:
    with pytest.raises((CacheFileError, OSError), match="is a pipe or a device|directory|denied"):
        SavedPrefix.read(no_file, {"a": 1})


def test_files_are_written_and_read(tmp_path: Path) -> None:
    for _ in range(2):
        SAVED.write(tmp_path / "saved")
    assert SavedPrefix.read(tmp_path / "saved", {"a": 1}).tokens == [1, 2]


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path, rows = tmp_path / "base", np.arange(8, dtype=np.float32).reshape(2, 4)
    tokens = np.array([[3, 1]], np.int32)
    with LogprobWriter(path, tokens, 4, 4) as first:
        first.write(rows[:1])
        with LogprobWriter(path, tokens, 4, 4) as second:
            second.write(-rows)
        first.write(rows[1:])
    with np.load(path) as found:
        assert np.array_equal(found["logprobs"], rows.astype(np.float16))
    assert list(tmp_path.iterdir()) == [path]

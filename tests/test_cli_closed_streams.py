"""Streams that are closed, or take nothing: one sentence at most, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = next((Path(__file__).parent / "data" / "models").glob("llama*.gguf"))
RUN = [sys.executable, "-m", "ggfw.cli.main", "run", str(MODEL), "hi", "--max-tokens", "2", "--raw"]

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a POSIX shell and /dev/full")


def _run(redirection: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*(words or RUN)]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *command],
        capture_output=True,
        text=True,
        env={**os.environ, "GGFW_TRACEBACK": ""},
    )


def test_closed_stdout() -> None:
    done = _run(">&-")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr and "Error" not in done.stderr


def test_closed_stderr() -> None:
    done = _run("2>&-")
    assert done.returncode == 0
    assert done.stdout


@pytest.mark.parametrize("words", [(), (*RUN[:3], "plugins", "list")], ids=["run", "list"])
def test_a_full_disk_is_named(words: tuple[str, ...]) -> None:
    done = _run("> /dev/full", *words)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    assert "the output cannot be written: No space left on device" in line

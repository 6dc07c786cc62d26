"""Calling the command line in this process and in another one, away from the user's own settings and folders."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ggfw.cli.main import main

#: How to start the command line in another process.
COMMAND = [sys.executable, "-m", "ggfw.cli.main"]


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The only line on stderr, which has to be an error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("ggfw: error: ") and "Traceback" not in self.err, self.err
        return lines[0].removeprefix("ggfw: error: ")


class Cli:
    """``cli("run", ...)`` calls :func:`main` and gives exit code and streams."""

    def __init__(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path
    ) -> None:
        self.home = home
        self._capsys, self._monkeypatch = capsys, monkeypatch

    command = COMMAND

    @staticmethod
    def process(
        *args: Any, env: dict[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[bytes]:
        """The command line, in another process; stdin is empty unless given."""
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        environment = {**os.environ, **(env or {})}
        return subprocess.run(
            [*COMMAND, *map(str, args)], capture_output=True, env=environment, timeout=60, **options
        )

    def __call__(self, *args: Any, stdin: bytes | None = None) -> Outcome:
        if stdin is not None:
            read, write = os.pipe()
            os.write(write, stdin)  # what tests send fits a pipe's buffer
            os.close(write)
            self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(os.fdopen(read, "rb")))
        self._capsys.readouterr()
        code = main([str(arg) for arg in args])
        said = self._capsys.readouterr()
        return Outcome(code, said.out, said.err)


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder; no variable of ggfw is set but GGFW_LOCAL."""
    folder = tmp_path_factory.mktemp("home")
    for name in list(os.environ):
        if name.startswith(("GGFW_", "XDG_", "OLLAMA_")) and not name.startswith("GGFW_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GGFW_LOCAL", "1")  # whatever serves on this machine is none of the tests' business
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    return folder


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Cli]:
    """The command line, in this process."""
    yield Cli(capsys, monkeypatch, home)

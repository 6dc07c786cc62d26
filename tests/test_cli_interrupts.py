"""Ctrl-C where nobody waits for it yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODEL = next((Path(__file__).parent / "data" / "models").glob("llama*.gguf"))

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

#: The signal comes while Sanic starts, before it watches for signals.
SERVE = """
import signal, sys
from sanic import Sanic
startup = Sanic._startup

async def interrupted(self):
    signal.raise_signal(signal.SIGINT)
    await startup(self)

Sanic._startup = interrupted
from ggfw.cli.main import main
sys.exit(main(["serve", sys.argv[1], "--port", "0", "--no-ui", "--models-dir", sys.argv[2]]))
"""


def test_a_server_that_is_starting_ends_in_good_order(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVE, str(MODEL), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 130)
    (banner,) = done.stderr.splitlines()
    assert "on http://127.0.0.1:" in banner

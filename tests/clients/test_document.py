"""Requests made from the OpenAPI document: whatever they say, the server never answers with a failure of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import Server


def test_no_request_is_a_server_error(scripted: Server, tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{scripted.url}/openapi.json",
        "--checks", "not_a_server_error", "--phases", "coverage,fuzzing", "--max-examples", "8",
        "--workers", "1", "--request-timeout", "60", "--seed", "1", "--no-color",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=1800)
    print(done.stdout[-1500:])  # how many requests were made; pytest -s shows it
    assert done.returncode == 0, done.stdout[-5000:]

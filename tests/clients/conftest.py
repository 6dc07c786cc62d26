"""Servers in processes of their own, for the clients' tests.

They run where ``GGFW_CLIENT_TESTS`` is set (``make test-clients``): the clients live in an environment of their own,
and ``GGFW_SERVER_PYTHON`` names the interpreter that has ggfw.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

HERE = Path(__file__).parent
PYTHON = os.environ.get("GGFW_SERVER_PYTHON", sys.executable)

collect_ignore_glob = [] if os.environ.get("GGFW_CLIENT_TESTS") else ["test_*.py"]

#: Tools for those tests that need one.
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": PARAMETERS},
}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


class Person(BaseModel):
    """The same as PERSON, for clients that take a class. Bounded, since a small model may go on and on."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


@dataclass
class Server:
    """A running server.

    Args:
        url: of its root.
        model: the id of its model.
        scripted: whether it is the stand-in, whose answers are known.
    """

    url: str
    model: str
    scripted: bool


def start(arguments: list[str], port: int) -> subprocess.Popen[bytes]:
    child = subprocess.Popen([PYTHON, *arguments], stdout=subprocess.DEVNULL, cwd=HERE.parents[1])
    end = time.monotonic() + 300  # the first use fetches the model
    while time.monotonic() < end:
        assert child.poll() is None, "the server has ended"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return child
        except OSError:
            time.sleep(0.1)
    child.kill()
    raise AssertionError("the server did not start")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def scripted() -> Iterator[Server]:
    port = free_port()
    child = start([str(HERE / "server.py"), str(port)], port)
    yield Server(f"http://127.0.0.1:{port}", "stand-in", True)
    child.terminate()
    child.wait(20)


@pytest.fixture(scope="session")
def smollm2() -> Iterator[Server]:
    port = free_port()
    folder = os.environ.get("GGFW_TEST_MODELS")
    name = "SmolLM2-135M-Instruct.Q4_1"
    path = Path(folder) / f"{name}.gguf" if folder else None
    model = [str(path)] if path is not None and path.is_file() else []
    options = ["--port", str(port), "--ctx", "2048", "--log-format", "none"]
    child = start(["-m", "ggfw.cli.main", "serve", *model, *options], port)
    yield Server(f"http://127.0.0.1:{port}", name, False)
    child.terminate()
    child.wait(60)


@pytest.fixture(params=["scripted", "smollm2"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the two in turn."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]

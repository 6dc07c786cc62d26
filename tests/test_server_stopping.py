"""The end of a server: what runs finishes, what is new gets a 503, and a second interrupt does not wait."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest
from fake_model import wait_until
from served import HI

SERVER = """
import sys
sys.path.insert(0, "tests")
from fake_model import FakeModel
from ggfw.library import Model
from ggfw.server import create_app, serve
fake = FakeModel("a long answer")
fake.executor.delay = 0.15
with Model(fake) as model:
    serve(create_app(model, grace=20), "127.0.0.1", int(sys.argv[1]))
print("ended")
"""
ASK = json.dumps({"messages": HI, "stream": True})
HEAD = {"Content-Type": "application/json"}


class Child:
    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(self.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def streaming(self) -> http.client.HTTPResponse:
        """A stream that has begun."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("POST", "/v1/chat/completions", ASK, HEAD)
        response = connection.getresponse()
        while '"content":"a"' not in response.readline().decode():
            pass
        return response

    def stopped(self) -> bool:
        return httpx.get(f"{self.url}/ready", timeout=5).status_code == 503


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child()
    try:
        wait_until(made.answers, 30)
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


def test_new_requests_get_a_503_until_the_last_answer_is_done(child: Child) -> None:
    kept = http.client.HTTPConnection("127.0.0.1", child.port, timeout=20)
    kept.request("GET", "/v1/models")
    assert kept.getresponse().read()
    stream = child.streaming()
    child.process.send_signal(signal.SIGTERM)
    wait_until(child.stopped, 5)
    fresh = http.client.HTTPConnection("127.0.0.1", child.port, timeout=20)
    for connection in (kept, fresh):
        connection.request("POST", "/v1/chat/completions", ASK, HEAD)
        response = connection.getresponse()
        assert response.status == 503
        assert int(response.headers["Retry-After"]) > 0 and response.headers["Connection"] == "close"
        assert "being stopped" in json.loads(response.read())["error"]["message"]
    assert child.answers(), "it is still alive"
    rest = stream.read().decode()
    assert rest.endswith("data: [DONE]\n\n") and '"finish_reason":"stop"' in rest
    out, _ = child.process.communicate(timeout=20)
    assert (out, child.process.returncode) == ("ended\n", 0)


def test_a_second_interrupt_does_not_wait(child: Child) -> None:
    stream = child.streaming()
    child.process.send_signal(signal.SIGINT)
    wait_until(child.stopped, 5)
    begun = time.monotonic()
    child.process.send_signal(signal.SIGINT)
    _, said = child.process.communicate(timeout=20)
    assert time.monotonic() - begun < 1.5
    assert "Task was destroyed" not in said and "Traceback" not in said
    stream.close()


def test_a_signal_right_after_the_first_answer_is_heard() -> None:
    for _ in range(3):
        child = Child()
        try:
            wait_until(child.answers, 20)
            child.process.send_signal(signal.SIGTERM)
            assert child.process.wait(timeout=20) == 0
        finally:
            child.process.kill()
            child.process.communicate()


STARTING = SERVER.replace(
    "    serve(create_app(model, grace=20)",
    """    import asyncio, os, signal
    app = create_app(model, grace=20)
    @app.after_server_start
    async def told_while_starting(app):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.02)
    serve(app""",
)


def test_a_signal_while_it_starts_ends_it_in_good_order() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-c", STARTING, str(port)], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")

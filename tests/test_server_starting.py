"""The start of a server: what is told or asked while it starts is neither lost nor answered too early."""

from __future__ import annotations

import socket
import subprocess
import sys

#: A listener of the caller's takes its time, and the signal comes in the middle of it.
SERVER = """
import asyncio, os, signal, sys, threading, urllib.request
sys.path.insert(0, "tests")
from fake_model import FakeModel
from ggfw.library import Model
from ggfw.server import create_app, serve
port, told = int(sys.argv[1]), sys.argv[2] == "told"

def ask():
    print(urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10).status, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

with Model(FakeModel("a long answer")) as model:
    app = create_app(model, grace=20)

    @app.after_server_start
    async def slow(app):
        if not told:
            threading.Thread(target=ask).start()
        await asyncio.sleep(0.2)
        if told:
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.02)
        print("started", flush=True)

    serve(app, "127.0.0.1", port)
print("ended")
"""


def _run(how: str, source: str = SERVER) -> tuple[int, list[str], str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", source, str(port), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout.split(), done.stderr


def test_a_signal_late_in_a_slow_start_ends_it_in_good_order() -> None:
    assert _run("told") == (0, ["started", "ended"], "")


def test_requests_wait_for_the_end_of_a_slow_start() -> None:
    assert _run("asked") == (0, ["started", "200", "ended"], "")


AGAIN = """
import os, signal, sys, threading, time
import httpx
sys.path.insert(0, "tests")
from fake_model import FakeModel
from ggfw.library import Model
from ggfw.server import create_app, serve
port = int(sys.argv[1])

def ask():
    with httpx.Client(transport=httpx.HTTPTransport(retries=5)) as http:
        found = http.post(f"http://127.0.0.1:{port}/v1/completions", json={"prompt": "x", "max_tokens": 2}, timeout=10)
    print(found.status_code, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

with Model(FakeModel("a long answer")) as model:
    app = create_app(model, grace=5)
    early = [True]

    @app.after_server_start
    async def begin(app):
        if early:
            early.clear()
            app.stop()  # told while it starts: that is this start's end, not the next one's
        else:
            threading.Thread(target=ask).start()

    for _ in range(3):
        serve(app, "127.0.0.1", port)
        print("ended", flush=True)
"""


def test_an_application_may_be_served_again() -> None:
    assert _run("", AGAIN) == (0, ["ended", "200", "ended", "200", "ended"], "")

"""Other clients' tokens while somebody asks for much, on a real model: their gaps at most double.

A gap is the time between two tokens that a client receives. Compared are the median and the 95th percentile over the
second and a half in which one such request is asked and answered, with those of a quiet server. A machine that is busy
with something else says nothing about this: then the test does not run.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from server_process import LINUX, ServerProcess
from test_pressure import ASKED, RAW
from test_pressure_http import SENT, status

MODEL = next(
    (
        path
        for folder in filter(None, (os.environ.get("GGFW_TEST_MODELS"), "~/.cache/ggfw/models"))
        for path in Path(folder).expanduser().glob("SmolLM2-135M-Instruct*.gguf")
    ),
    None,
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LINUX or MODEL is None, reason="there is no real model"),
]

WINDOW = 1.5


class Reader(threading.Thread):
    """A client that reads one long answer after the other."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.gaps, self.ended = url, list[tuple[float, float]](), False

    def run(self) -> None:
        body = {"prompt": "a", "max_tokens": 1500, "ignore_eos": True, "stream": True}
        while not self.ended:
            with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=60) as response:
                last = 0.0
                for line in response.iter_lines():
                    if not line.startswith("data: {"):
                        continue
                    now = time.perf_counter()
                    if last:
                        self.gaps.append((now, now - last))
                    last = now
                    if self.ended:
                        return

    def between(self, begin: float, end: float) -> tuple[float, float, float]:
        """Median, 95th percentile and longest gap that ended in this time."""
        gaps = sorted(gap for at, gap in self.gaps if begin <= at <= end)
        assert gaps, "no token came"
        return gaps[len(gaps) // 2], gaps[int(0.95 * len(gaps))], gaps[-1]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[ServerProcess, Reader, tuple[float, float, float]]]:
    assert MODEL is not None
    with ServerProcess(MODEL, "--parallel", "4", "--ctx", "2048") as server:
        for _ in range(3):
            server.alive()
        reader = Reader(server.url)
        reader.start()
        time.sleep(5)
        now = time.perf_counter()
        quiet = reader.between(now - 4, now)
        if quiet[1] > 2 * quiet[0]:
            pytest.skip(f"the machine is busy: half of the gaps are {quiet[0]:.4f} s, some {quiet[1]:.4f} s")
        yield server, reader, quiet
        reader.ended = True


@pytest.mark.parametrize("name", [*ASKED, *RAW])
def test_gaps_at_most_double(
    served: tuple[ServerProcess, Reader, tuple[float, float, float]], name: str
) -> None:
    server, reader, quiet = served
    if name in ASKED:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **ASKED[name][0]}
        data = json.dumps(body).encode()
    else:
        data = RAW[name][0]
    begin = time.perf_counter()
    server.http.post("/v1/chat/completions", content=data)
    time.sleep(max(0.0, WINDOW - (time.perf_counter() - begin)))
    middle, most, _ = reader.between(begin, time.perf_counter())
    assert middle <= 2 * quiet[0] and most <= 2 * quiet[1], (quiet, middle, most)


def flood(server: ServerProcess) -> None:
    """Twenty times as many requests as there are places, at once."""

    body = b'{"prompt": "a", "max_tokens": 4}'
    request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
    with contextlib.ExitStack() as open_ones:
        # From one thread, so that the reader beside it is not kept from reading.
        socks = [
            open_ones.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            for _ in range(80)
        ]
        for sock in socks:
            sock.sendall(request % (len(body), body))
        for sock in socks:
            assert sock.recv(65536).split()[1] in (b"200", b"429")


def idle(server: ServerProcess) -> None:
    """2,000 connections that say nothing, or half of a request."""
    with contextlib.ExitStack() as open_ones:
        for i in range(2000):
            sock = open_ones.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            if i % 2:
                sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        time.sleep(1)


def slow(server: ServerProcess) -> None:
    """Three clients that ask for streams, and do not read them."""
    body = json.dumps({"prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True, "logprobs": 5})
    with contextlib.ExitStack() as open_ones:
        for _ in range(3):
            sock = open_ones.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", server.port))
            sock.sendall(
                "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            )
        time.sleep(WINDOW)


def tiny_chunks(server: ServerProcess) -> None:
    """A body at the limit, in chunks of a byte."""
    assert status(server, SENT["body at the limit in chunks of one byte"][0]) == 400


@pytest.mark.parametrize("press", [flood, idle, slow, tiny_chunks])
def test_gaps_beside_many_connections(
    served: tuple[ServerProcess, Reader, tuple[float, float, float]], press: Callable[[ServerProcess], None]
) -> None:
    server, reader, quiet = served
    time.sleep(0.5)  # what the one before has left behind is over
    begin = time.perf_counter()
    press(server)
    time.sleep(max(0.0, WINDOW - (time.perf_counter() - begin)))
    middle, most, _ = reader.between(begin, time.perf_counter())
    assert middle <= 2 * quiet[0] and most <= 2 * quiet[1], (quiet, middle, most)

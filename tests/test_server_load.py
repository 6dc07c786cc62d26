"""The load client of bench/: equal loads for equal seeds, exact figures, and what it takes from a stream."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

from load_client import HttpClient, Load, Timing, body_of, mixed_loads, percentile, run_load, summary


def test_loads_follow_from_the_seed_and_stay_in_their_ranges() -> None:
    loads = mixed_loads(200, vocabulary=5000, seed=3)
    assert loads == mixed_loads(200, vocabulary=5000, seed=3) != mixed_loads(200, vocabulary=5000, seed=4)
    assert loads[:5] == mixed_loads(5, vocabulary=5000, seed=3)
    assert all(16 <= len(load.prompt) <= 2000 and 16 <= load.new <= 256 for load in loads)
    assert all(1000 <= token < 5000 for load in loads for token in load.prompt)
    assert len({load.prompt[:4] for load in loads}) == 200  # no prefix is shared


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1), (0.0, 1)])
def test_percentile_is_a_value_that_occurred(share: float, expected: float) -> None:
    assert percentile([float(i) for i in range(100, 0, -1)], share) == expected
    assert percentile([], share) == 0


def test_summary_counts_gaps_and_first_tokens() -> None:
    a = Timing(1.0, [1.5, 1.6, 1.9], 2.0, prompt_tokens=10, new_tokens=3)
    b = Timing(1.0, [3.0], 3.0, prompt_tokens=5, new_tokens=1)
    found = summary([a, b], 2.0)
    assert (found["prompt_tokens"], found["new_tokens"], found["new_tokens_per_s"]) == (15, 4, 2.0)
    assert found["ttft_p50_ms"] == pytest.approx(500) and found["ttft_p99_ms"] == pytest.approx(2000)
    assert found["gap_p50_ms"] == pytest.approx(100) and found["gap_max_ms"] == pytest.approx(300)


def test_no_more_clients_than_asked_for_run_at_once() -> None:
    running = most = 0
    seen: list[int] = []

    async def send(load: Load) -> Timing:
        nonlocal running, most
        running += 1
        most = max(most, running)
        seen.append(load.new)
        await asyncio.sleep(0)
        running -= 1
        return Timing(0.0, new_tokens=load.new)

    loads = [Load((1,), n) for n in range(20)]
    found = asyncio.run(run_load(loads, 3, send))
    assert (most, seen, found["requests"]) == (3, list(range(20)), 20)


def answer(events: list[str], status: str = "200 OK", n: int = 1) -> list[Timing]:
    """Send one request to a server that writes these lines."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line.split(":")[1]) for line in head.splitlines() if "Content-Length" in line)
        body = json.loads(await reader.readexactly(length))
        assert body["prompt"] == [1, 2, 3] and body["ignore_eos"] and body["stream"]
        writer.write(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for event in events:
            line = f"data: {event}\n\n".encode()
            writer.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        writer.write(b"0\r\n\r\n")
        writer.close()

    async def run() -> list[Timing]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            client = HttpClient("127.0.0.1", server.sockets[0].getsockname()[1])
            return [await client.send(Load((1, 2, 3), 2)) for _ in range(n)]

    return asyncio.run(run())


def test_events_become_arrivals_and_usage_is_checked() -> None:
    text = ['{"choices": [{"text": "a"}]}', '{"choices": [{"text": ""}]}', '{"choices": [{"text": "b"}]}']
    usage = '{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": %d}}'
    (timing,) = answer([*text, usage % 2, "[DONE]"])
    assert (len(timing.arrivals), timing.prompt_tokens, timing.new_tokens) == (2, 3, 2)
    with pytest.raises(RuntimeError, match="gave 5 tokens where 2"):
        answer([*text, usage % 5])
    with pytest.raises(RuntimeError, match="failed: no"):
        answer(['{"error": "no"}'])
    with pytest.raises(RuntimeError, match="answered 429"):
        answer([], "429 Too Many Requests")


def test_chat_bodies_hold_as_many_words_as_tokens() -> None:
    path, body = body_of(Load((5, 6, 7), 4), "chat")
    assert path.endswith("/chat/completions") and len(body["messages"][0]["content"].split()) == 3

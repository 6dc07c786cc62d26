"""The same asynchronous client for every server: streamed completions over plain HTTP/1.1, and what they took.

Nothing but the standard library, so that neither side is helped by a client of its own. Prompts are token ids
(``/v1/completions``) or words (``/v1/chat/completions``); generation ignores the end token, so lengths are exact.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Seconds that one request may take.
REQUEST_TIMEOUT = 1800.0
WORDS = "time year people way day man thing woman life child world school state family student group".split()


@dataclass(frozen=True)
class Load:
    """One request: ``prompt`` tokens in (random, so that no prefix is shared), ``new`` tokens out."""

    prompt: tuple[int, ...]
    new: int


@dataclass
class Timing:
    """What one request took, in seconds of one clock; ``arrivals`` are the times at which text came."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    done: float = 0.0
    prompt_tokens: int = 0
    new_tokens: int = 0

    @property
    def first(self) -> float:
        """Time to the first piece of text."""
        return (self.arrivals[0] if self.arrivals else self.done) - self.sent

    @property
    def gaps(self) -> list[float]:
        """Times between pieces of text."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


def mixed_loads(
    n: int,
    *,
    vocabulary: int,
    prompt: tuple[int, int] = (16, 2000),
    new: tuple[int, int] = (16, 256),
    seed: int = 7,
) -> list[Load]:
    """``n`` requests whose lengths are uniform in the closed ranges; the same for the same seed."""
    rng = random.Random(seed)
    loads = []
    for _ in range(n):
        n_prompt, n_new = rng.randint(*prompt), rng.randint(*new)
        # ids below 1000 are control tokens and single bytes in the files measured
        loads.append(Load(tuple(rng.randrange(1000, vocabulary) for _ in range(n_prompt)), n_new))
    return loads


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))] if ordered else 0.0


def summary(timings: Sequence[Timing], wall: float) -> dict[str, float]:
    """Wall time (s), tokens, rates, and percentiles of time to first token and gaps (ms)."""
    gaps = [gap for timing in timings for gap in timing.gaps]
    firsts = [timing.first for timing in timings]
    n_new = sum(timing.new_tokens for timing in timings)
    return {
        "wall_s": wall,
        "requests": len(timings),
        "prompt_tokens": sum(timing.prompt_tokens for timing in timings),
        "new_tokens": n_new,
        "new_tokens_per_s": n_new / wall,
        "ttft_p50_ms": 1e3 * percentile(firsts, 0.5),
        "ttft_p99_ms": 1e3 * percentile(firsts, 0.99),
        "gap_p50_ms": 1e3 * percentile(gaps, 0.5),
        "gap_p99_ms": 1e3 * percentile(gaps, 0.99),
        "gap_max_ms": 1e3 * max(gaps, default=0.0),
    }


async def run_load(
    loads: Sequence[Load], clients: int, send: Callable[[Load], Awaitable[Timing]]
) -> dict[str, float]:
    """Send the requests in their order, ``clients`` at once; see `summary`."""
    queue = iter(loads)
    timings: list[Timing] = []

    async def client() -> None:
        for load in queue:
            timings.append(await send(load))

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return summary(timings, time.perf_counter() - start)


def body_of(load: Load, route: str) -> tuple[str, dict[str, Any]]:
    """Path and JSON body of a request."""
    common = {
        "max_tokens": load.new,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if route == "completions":
        return "/v1/completions", {"prompt": list(load.prompt), **common}
    words = " ".join(WORDS[token % len(WORDS)] for token in load.prompt)
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": words}], **common}


class HttpClient:
    """Sends requests to one server, each over a connection of its own.

    Args:
        host, port: of the server.
        route: ``completions`` or ``chat``.
    """

    def __init__(self, host: str, port: int, route: str = "completions") -> None:
        self.host, self.port, self.route = host, port, route

    async def status(self, path: str) -> int:
        """Status code of a GET; 0 when nobody answers."""
        try:
            status, _, writer = await self._open("GET", path, None)
        except OSError:
            return 0
        writer.close()
        return status

    async def _open(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
        data = json.dumps(body).encode() if body is not None else b""
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n"
        if data:
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        writer.write(head.encode() + b"\r\n" + data)
        await writer.drain()
        line = await reader.readline()
        while (await reader.readline()).strip():
            pass  # headers: chunk sizes need no parsing, since events are lines of their own
        return int(line.split()[1]) if line.strip() else 0, reader, writer

    async def send(self, load: Load) -> Timing:
        """Run one request to its end.

        Raises:
            RuntimeError: it was refused, cut off, or has not the number of tokens asked for.
        """
        return await asyncio.wait_for(self._send(load), REQUEST_TIMEOUT)

    async def _send(self, load: Load) -> Timing:
        path, body = body_of(load, self.route)
        timing = Timing(time.perf_counter())
        status, reader, writer = await self._open("POST", path, body)
        try:
            if status != 200:
                text = (await reader.read(2000)).decode(errors="replace")
                raise RuntimeError(f"{path} answered {status}: {text}")
            while line := await reader.readline():
                if not line.startswith(b"data: {"):
                    continue
                now = time.perf_counter()
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(f"{path} failed: {event['error']}")
                if usage := event.get("usage"):
                    timing.prompt_tokens = usage["prompt_tokens"]
                    timing.new_tokens = usage["completion_tokens"]
                if any(c.get("text") or c.get("delta", {}).get("content") for c in event.get("choices", ())):
                    timing.arrivals.append(now)
                timing.done = now
        finally:
            writer.close()
        if timing.new_tokens != load.new:
            raise RuntimeError(f"{path} gave {timing.new_tokens} tokens where {load.new} were asked for")
        return timing

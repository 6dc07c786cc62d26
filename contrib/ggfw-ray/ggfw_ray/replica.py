"""A replica: a model, its engine, and the ggfw server's own application without a socket."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from ray import serve
from ray.serve.metrics import Gauge

from ggfw_ray.options import Options
from ggfw_ray.prefix import CachedBlocks

#: Names of cached blocks that a replica reports at most, the most recently used.
MOST_BLOCKS = 20_000
#: Field of the engine's metrics -> name and meaning of the figure in Ray's; Serve adds deployment and replica.
FIGURES = {
    "n_running": ("requests_running", "Requests that are running."),
    "n_waiting": ("requests_waiting", "Requests that wait for a slot."),
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts that were evaluated."),
    "cached_tokens": ("cached_tokens", "Tokens of prompts that needed no evaluation."),
    "generated_tokens": ("generated_tokens", "Tokens that were drawn."),
    "prefix_bytes": ("prefix_bytes", "Bytes that the prefix tree keeps."),
    "prefix_evictions": ("prefix_evictions", "Nodes of the prefix tree that made way."),
}
#: Seconds that a single step can never take.
STUCK = 300.0


class Replica:
    """Answers ASGI requests; one actor of a Serve deployment.

    Args:
        options: of the application.
        model: a loaded model instead of ``options.model``, for tests; or a callable that makes one.
    """

    def __init__(self, options: Options, model: Any = None) -> None:
        import ggfw
        from ggfw.server import create_app

        loading: dict[str, Any] = {
            "threads": options.threads,
            "n_parallel": options.slots,
            "ctx": options.ctx,
        }
        self.model = (
            model() if callable(model) else model or ggfw.load(options.model, **loading, **options.load)
        )
        self.app = create_app(self.model, **options.server)
        self._blocks = CachedBlocks(self.model.engine.reuse.tree)
        self._lifespan: asyncio.Task[None] | None = None
        self._started = asyncio.Event()
        self._ended = asyncio.Event()
        self._steps, self._moved = 0, time.monotonic()
        try:
            self.name = serve.get_replica_context().replica_id.unique_id
        except serve.exceptions.RayServeException:  # not in an actor: a test
            self.name = "none"
        self._gauges = {
            field: Gauge(f"ggfw_{name}", description=text) for field, (name, text) in FIGURES.items()
        }

    async def _run_lifespan(self) -> None:
        """Let the application start as an ASGI server would, once."""
        asked = iter(("lifespan.startup", "lifespan.shutdown"))

        async def receive() -> dict[str, Any]:
            kind = next(asked)
            if kind == "lifespan.shutdown":
                await self._ended.wait()
            return {"type": kind}

        async def send(event: dict[str, Any]) -> None:
            if event["type"] in ("lifespan.startup.complete", "lifespan.startup.failed"):
                self._started.set()

        await self.app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)

    async def handle(
        self, scope: dict[str, Any], body: bytes, *, blocks: list[int] | None = None
    ) -> AsyncIterator[Any]:
        """Answer one HTTP request.

        Args:
            scope: ASGI scope of the request, of plain values.
            body: its body.
            blocks: names of its prompt's blocks; they are for the router.

        Yields:
            (status, headers), then pieces of the body. When it is closed early, the request is cancelled.
        """
        if self._lifespan is None:
            self._lifespan = asyncio.ensure_future(self._run_lifespan())
        await self._started.wait()
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(maxsize=64)
        gone = asyncio.Event()
        parts = iter(({"type": "http.request", "body": body, "more_body": False},))

        async def receive() -> dict[str, Any]:
            part = next(parts, None)
            if part is not None:
                return part
            await gone.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            try:
                await self.app({**scope, "type": "http", "asgi": {"version": "3.0"}}, receive, events.put)
            finally:
                await events.put(None)

        task = asyncio.ensure_future(run())
        try:
            while (event := await events.get()) is not None:
                if event["type"] == "http.response.start":
                    yield (
                        event["status"],
                        [
                            *((bytes(k), bytes(v)) for k, v in event["headers"]),
                            (b"x-ggfw-replica", self.name.encode()),
                        ],
                    )
                elif event.get("body"):
                    yield bytes(event["body"])
            await task
        finally:
            gone.set()
            task.cancel()

    def record_routing_stats(self) -> dict[str, Any]:
        """What the router is told of this replica, every ``stats_period_s``; Ray's metrics get the engine's figures."""
        now = self.model.engine.metrics()
        for field, gauge in self._gauges.items():
            gauge.set(getattr(now, field))
        return {"blocks": tuple(self._blocks.names()[:MOST_BLOCKS]), "running": self.model.engine.n_running}

    def check_health(self) -> None:
        """Raise where requests are running and no step has ended for long; Serve then replaces the replica."""
        engine, now = self.model.engine, time.monotonic()
        if engine.n_steps != self._steps or not engine.n_running:
            self._steps, self._moved = engine.n_steps, now
        if now - self._moved > STUCK:
            raise RuntimeError(f"the engine of {self.model.name} has made no step for {STUCK:.0f} s")

    def pid(self) -> int:
        """The process, for tests that end it."""
        return os.getpid()

    def __del__(self) -> None:
        model = getattr(self, "model", None)
        if model is not None:
            model.close()

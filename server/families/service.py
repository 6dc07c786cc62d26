"""What watches a server: ``/health``, ``/ready``, ``/metrics``."""

from __future__ import annotations

from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json, raw

from ggfw.server.endpoint import endpoint
from ggfw.server.state import served

service = Blueprint("service")


@endpoint(service, "GET HEAD", "/health", family="openai", open=True)
async def health(request: Request) -> HTTPResponse:
    """Say whether the process is alive, and how busy: 200, or 503 while the first model is being loaded."""
    pool = served(request).pool
    entry = pool.default
    if entry is not None and entry.model is None and entry.loading is not None:
        error = {"code": 503, "message": "Loading model", "type": "unavailable_error"}
        progress = {} if entry.watch is None else {"loading": entry.watch.progress()}
        body = {"ok": False, "status": "loading", "model": entry.id, **progress, "error": error}
        return json(body, status=503)
    engines = [e.model.engine for e in pool.rows() if e.model is not None]
    return json(
        {
            "ok": True,
            "status": "ok",
            "model": entry.id if entry is not None else None,
            "running": sum(engine.n_running for engine in engines),
            "waiting": sum(engine.n_waiting for engine in engines),
        }
    )


@endpoint(service, "GET HEAD", "/ready", family="openai", open=True)
async def ready(request: Request) -> HTTPResponse:
    """Say whether work is accepted: 503 while stopping, loading a model, or with a full queue."""
    state = served(request)
    why = ""
    if state.ending:
        why = "the server is being stopped"
    for entry in state.pool.rows():
        if entry.loading is not None:
            why = why or f"{entry.id} is being loaded"
        if entry.model is not None and entry.model.engine.n_waiting >= max(1, entry.model.engine.max_queue):
            why = why or f"the queue of {entry.id} is full"
    return json({"ready": not why, **({"reason": why} if why else {})}, status=503 if why else 200)


@endpoint(service, "GET", "/metrics", family="openai")
async def metrics(request: Request) -> HTTPResponse:
    """Give the metrics in Prometheus' text format; ``?names=llamacpp`` adds llama-server's names."""
    state = served(request)
    text = state.metrics.text(state.pool, llama_names=request.args.get("names") == "llamacpp")
    return raw(text, content_type="text/plain; version=0.0.4; charset=utf-8")

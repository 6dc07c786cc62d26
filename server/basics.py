"""``GET /health`` and ``GET /v1/models``."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json

from ggfw.server.state import Served, served

basics = Blueprint("basics")


@basics.route("/health", methods=["GET", "HEAD"])
async def health(request: Request) -> HTTPResponse:
    """Alive, and how busy."""
    state = served(request)
    engine = state.model.engine
    return json(
        {
            "ok": True,
            "status": "ok",
            "model": state.id,
            "running": engine.n_running,
            "waiting": engine.n_waiting,
        }
    )


@basics.get("/v1/models")
async def models(request: Request) -> HTTPResponse:
    """The models, as OpenAI lists them."""
    return json({"object": "list", "data": [_row(served(request))]})


@basics.get("/v1/models/<name:path>")
async def model(request: Request, name: str) -> HTTPResponse:
    """One model; ids may contain ``/`` and ``:``."""
    state = served(request)
    state.find(unquote(name))
    return json(_row(state))


def _row(state: Served) -> dict[str, Any]:
    info = state.model.info
    return {
        "id": state.id,
        "object": "model",
        "created": state.created,
        "owned_by": "ggfw",
        "meta": {
            "n_ctx": info["n_ctx"],
            "n_ctx_train": info["n_ctx_train"],
            "n_vocab": info["n_vocab"],
            "n_params": info["n_params"],
            "size": info["size_bytes"],
        },
    }

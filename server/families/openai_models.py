"""``GET /v1/models`` and ``/v1/models/{id}``."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json

from ggfw.server.endpoint import endpoint
from ggfw.server.entries import Entry
from ggfw.server.state import served

openai_models = Blueprint("openai-models")


@endpoint(openai_models, "GET", "/v1/models", family="openai")
async def models(request: Request) -> HTTPResponse:
    """List the models."""
    pool = served(request).pool
    await pool.refresh()
    return json({"object": "list", "data": [model_row(entry) for entry in pool.rows()]})


@endpoint(openai_models, "GET", "/v1/models/<name:path>", family="openai")
async def model(request: Request, name: str) -> HTTPResponse:
    """Describe one model; ids may contain ``/`` and ``:``."""
    if not name:  # the list, with a stroke behind it
        return await models(request)
    return json(model_row(await served(request).pool.known(unquote(name))))


def model_row(entry: Entry) -> dict[str, Any]:
    """OpenAI's model object, with llama-server's ``meta``."""
    info = entry.info
    return {
        "id": entry.id,
        "object": "model",
        "created": entry.created,
        "owned_by": "ggfw",
        "meta": {
            "n_ctx": info.get("n_ctx"),
            "n_ctx_train": info.get("n_ctx_train"),
            "n_vocab": info.get("n_vocab"),
            "n_params": info.get("n_params"),
            "size": info.get("size_bytes"),
        },
    }

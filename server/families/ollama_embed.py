"""Ollama's embeddings: ``POST /api/embed`` and the older ``/api/embeddings``."""

from __future__ import annotations

import time
from typing import Any

from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json

from ggfw.server.embedding import embed, inputs_of
from ggfw.server.endpoint import endpoint
from ggfw.server.families.ollama_fields import Options, seconds_of
from ggfw.server.fields import Body
from ggfw.server.generation import check_num_ctx
from ggfw.server.state import served

ollama_embed = Blueprint("ollama-embed")


class EmbedBody(Body):
    """Body of ``POST /api/embed``."""

    model: str
    input: str | list[Any] | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    keep_alive: float | str | None = None
    options: Options | None = None


class EmbeddingsBody(Body):
    """Body of ``POST /api/embeddings``."""

    model: str
    prompt: str = ""
    keep_alive: float | str | None = None
    options: Options | None = None


@endpoint(ollama_embed, "POST", "/api/embed", family="ollama", body=EmbedBody)
async def embed_many(request: Request, body: EmbedBody) -> HTTPResponse:
    """Embed one or several texts; without any, load the model."""
    state, start = served(request), time.perf_counter()
    async with state.pool.lease(body.model, keep_alive=seconds_of(body.keep_alive)) as lease:
        check_num_ctx(lease.model, body.options.num_ctx if body.options else None)
        vectors: list[Any] = []
        n_tokens = 0
        if body.input:
            found = await embed(
                request,
                lease,
                inputs_of(body.input),
                dimensions=body.dimensions,
                truncate=body.truncate is not False,  # on by default here
            )
            vectors, n_tokens = [v.tolist() for v in found.vectors], found.n_tokens
        return json(
            {
                "model": body.model,
                "embeddings": vectors,
                "total_duration": round((time.perf_counter() - start) * 1e9),
                "load_duration": round(lease.load_ms * 1e6),
                "prompt_eval_count": n_tokens,
            }
        )


@endpoint(ollama_embed, "POST", "/api/embeddings", family="ollama", body=EmbeddingsBody)
async def embed_one(request: Request, body: EmbeddingsBody) -> HTTPResponse:
    """Embed one text; without one, load the model."""
    state = served(request)
    async with state.pool.lease(body.model, keep_alive=seconds_of(body.keep_alive)) as lease:
        check_num_ctx(lease.model, body.options.num_ctx if body.options else None)
        if not body.prompt:
            return json({"embedding": []})
        found = await embed(request, lease, [body.prompt], truncate=True, param="prompt")
        return json({"embedding": found.vectors[0].tolist()})

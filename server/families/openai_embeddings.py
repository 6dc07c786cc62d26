"""OpenAI's embeddings: ``POST /v1/embeddings``."""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np
from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json

from ggfw.server.embedding import embed, inputs_of
from ggfw.server.endpoint import endpoint
from ggfw.server.fields import Body, TextHint
from ggfw.server.state import served

openai_embeddings = Blueprint("openai-embeddings")


class EmbeddingBody(Body):
    """Body of ``POST /v1/embeddings``."""

    input: str | list[Any]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: TextHint = None


@endpoint(openai_embeddings, "POST", "/v1/embeddings", family="openai", body=EmbeddingBody)
async def embeddings(request: Request, body: EmbeddingBody) -> HTTPResponse:
    """Embed one or several texts (or lists of token ids)."""
    state = served(request)
    async with state.pool.lease(body.model) as lease:
        found = await embed(request, lease, inputs_of(body.input), dimensions=body.dimensions)
        # openai-python asks for base64 unless told otherwise.
        base64_wanted = body.encoding_format == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": as_base64(v) if base64_wanted else v.tolist(),
            }
            for index, v in enumerate(found.vectors)
        ]
        return json(
            {
                "object": "list",
                "data": data,
                "model": lease.id,
                "usage": {"prompt_tokens": found.n_tokens, "total_tokens": found.n_tokens},
            }
        )


def as_base64(vector: Any) -> str:
    """Little-endian float32, whatever this machine's own order is."""
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()

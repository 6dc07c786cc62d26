"""A model beside the routes of a Sanic application: ``python examples/in_sanic_app.py model.gguf``.

The model's endpoints and the chat page are below ``/llm`` and want a key; everything else stays the application's own.
"""

from __future__ import annotations

import sys

from sanic import Request, Sanic
from sanic.response import HTTPResponse, json

import ggfw
from ggfw.server import mount


def build(model: ggfw.Model, key: str = "change-me") -> Sanic:
    """An application with a page of its own and a model."""
    app = Sanic("shop", configure_logging=False)
    app.config.RESPONSE_TIMEOUT = 3600  # an answer may take longer than Sanic's minute
    mount(app, model, url_prefix="/llm", api_keys=key, ui=True)

    @app.get("/")
    async def front(request: Request) -> HTTPResponse:
        return json({"shop": "open", "assistant": "/llm/chat"})

    @app.get("/slogan")
    async def slogan(request: Request) -> HTTPResponse:
        # The application may use the model itself: such requests run beside those of the endpoints.
        result = await model.achat([ggfw.user("A slogan for a shop, please.")], max_tokens=20)
        return json({"slogan": result.text})

    return app


if __name__ == "__main__":
    with ggfw.load(sys.argv[1], n_parallel=4) as loaded:
        build(loaded).run("127.0.0.1", 8000, single_process=True)

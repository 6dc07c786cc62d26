"""A model under FastAPI: ``pip install fastapi uvicorn; python examples/in_fastapi_app.py model.gguf``."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

import ggfw
from ggfw.server import Asgi, create_app


def build(model: ggfw.Model) -> FastAPI:
    """A FastAPI application with a route of its own and a model below ``/llm``."""
    llm = Asgi(create_app(model, ui=True))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await llm.start()  # mounted applications are not told of start and end by themselves
        yield
        await llm.stop()

    app = FastAPI(title="shop", lifespan=lifespan)

    @app.get("/slogan")
    async def slogan() -> dict[str, str]:
        result = await model.achat([ggfw.user("A slogan for a shop, please.")], max_tokens=20)
        return {"slogan": result.text}

    app.mount("/llm", llm)
    return app


if __name__ == "__main__":
    import uvicorn

    with ggfw.load(sys.argv[1], n_parallel=4) as loaded:
        uvicorn.run(build(loaded), host="127.0.0.1", port=8000)

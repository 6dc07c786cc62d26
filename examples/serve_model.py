"""The server in a program of one's own: ``python examples/serve_model.py model.gguf``, then http://127.0.0.1:8080."""

from __future__ import annotations

import sys

from sanic import Sanic

import ggfw
from ggfw.server import create_app, serve


def build(model: ggfw.Model) -> Sanic:
    """All API families and the chat page over one model; requests that say nothing else are answered briefly."""
    return create_app(model, ui=True, defaults={"max_tokens": 300}, log=print)


if __name__ == "__main__":
    with ggfw.load(sys.argv[1], n_parallel=4) as loaded:
        serve(build(loaded), "127.0.0.1", 8080)

"""The application factory, the blueprints for a host's own application, and the blocking server."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from sanic import Blueprint, Request, Sanic
from sanic.response import HTTPResponse

from ggfw.library import Model, as_log
from ggfw.server import errors
from ggfw.server.basics import basics
from ggfw.server.chat import chat
from ggfw.server.state import Served, model_id

#: Seconds; generating an answer without streaming may take long.
RESPONSE_TIMEOUT = 24 * 3600


def create_app(
    model: Any,
    *,
    defaults: Mapping[str, Any] | None = None,
    max_queue: int | None = None,
    id: str | None = None,
    log: Any = None,
    name: str | None = None,
) -> Sanic:
    """Make an application that serves ``model``. It opens no port and configures no logging.

    Args:
        model: a :class:`ggfw.Model`, or a :class:`ggfw.model.LoadedModel`. The caller closes it.
        defaults: request fields that apply where a request has none, e.g. ``{"temperature": 0.2}``.
        max_queue: requests that may wait; None = what the model was made with.
        id: what ``/v1/models`` calls the model; default: the file's stem.
        log: a structlog-like logger or a callable (event, fields): one line per inference; None = silence.
        name: of the Sanic application; default: a unique one.

    Returns:
        The application; run it with :func:`serve`, with Sanic's own runners, or as an ASGI application.
    """
    served_model = model if isinstance(model, Model) else Model(model)
    if max_queue is not None:
        served_model.engine.max_queue = max_queue
    app = Sanic(name or f"ggfw-{secrets.token_hex(4)}", configure_logging=False)
    app.config.RESPONSE_TIMEOUT = RESPONSE_TIMEOUT
    app.config.REQUEST_TIMEOUT = RESPONSE_TIMEOUT
    app.config.KEEP_ALIVE_TIMEOUT = 120
    app.config.GRACEFUL_SHUTDOWN_TIMEOUT = 3.0
    app.config.ACCESS_LOG = False
    app.config.MOTD = False
    # Sanic would rewrite its own methods at start, which fails for the second application of a process.
    app.config.TOUCHUP = False
    app.config.FALLBACK_ERROR_FORMAT = "json"
    logger = as_log(log)
    app.ctx.ggfw = Served(served_model, id or model_id(served_model), dict(defaults or {}), logger)
    app.ctx.ggfw_log = logger
    errors.install(app)
    app.on_response(_echo_id)
    for blueprint in blueprints():
        app.blueprint(blueprint)
    return app


async def _echo_id(request: Request, response: HTTPResponse) -> None:
    """Say which request this answers: the id the client chose, or a new one."""
    response.headers["X-Request-ID"] = str(request.id)


def blueprints(url_prefix: str = "") -> list[Blueprint]:
    """The API families, one blueprint each, to mount in a host's own Sanic application.

    The host sets ``app.ctx.ggfw`` to a :class:`ggfw.server.state.Served` and may call ``ggfw.server.errors.install``.

    Args:
        url_prefix: put in front of all paths.
    """
    out = []
    for blueprint in (basics, chat):
        out.append(blueprint.copy(f"ggfw-{blueprint.name}", url_prefix=url_prefix or None))
    return out


def serve(app: Sanic, host: str = "127.0.0.1", port: int = 8080, *, sock: Any = None) -> None:
    """Serve ``app`` in this process until it is interrupted.

    One process only: Sanic's worker manager would load the model once more in a child.

    Args:
        host, port: where to listen.
        sock: a listening socket to use instead.
    """
    where = {"sock": sock} if sock is not None else {"host": host, "port": port}
    app.run(**where, single_process=True, access_log=False, motd=False)

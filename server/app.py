"""The application factory, the blueprints for a host's own application, and the blocking server."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from typing import Any

from sanic import Blueprint, Sanic

from ggfw.chat.skills import Skills
from ggfw.engine import Engine
from ggfw.library import Model
from ggfw.loading import as_log
from ggfw.server import errors, gate, page
from ggfw.server.body import Protocol
from ggfw.server.families import FAMILIES
from ggfw.server.pool import Pool
from ggfw.server.state import HEARTBEAT, State
from ggfw.server.store import Store
from ggfw.server.views import model_of

#: Seconds; generating an answer without streaming may take long.
RESPONSE_TIMEOUT = 24 * 3600
#: Seconds that a client may take to send its request.
REQUEST_TIMEOUT = 120
#: Seconds that running answers get to finish when the server is stopped.
GRACE = 30.0
#: Seconds that answers get to come to their end once their connections have been closed.
SETTLE = 1.0
#: Seconds between two looks at which models may be unloaded.
EXPIRY = 5.0
#: Bytes a body may have: more text than a context of half a million tokens takes, and little enough that none costs
#: others anything. Files are sent as streams and have no limit.
MAX_BODY = 4 << 20


def create_app(
    model: Any = None,
    *,
    pool: Pool | None = None,
    store: Store | None = None,
    defaults: Mapping[str, Any] | None = None,
    max_queue: int | None = None,
    id: str | None = None,
    api_keys: gate.Keys = None,
    isolate_cache: bool = False,
    cors: gate.Origins = None,
    hosts: gate.Hosts = None,
    skills: Any = None,
    ui: bool = False,
    log: Any = None,
    log_prompts: bool = False,
    max_body: int = MAX_BODY,
    heartbeat: float = HEARTBEAT,
    grace: float = GRACE,
    name: str | None = None,
) -> Sanic:
    """Make an application that serves ``model``. It opens no port and configures no logging.

    Args:
        model: a :class:`ggfw.Model`, its :class:`ggfw.Engine`, or a :class:`ggfw.model.LoadedModel`. The caller closes
            it.
        pool: several models instead; closed when the server ends.
        store: the folder of models that clients may fetch, derive and remove; None: they may not.
        defaults: request fields that apply where a request has none, e.g. ``{"temperature": 0.2}``.
        max_queue: requests that may wait; None = what the model was made with.
        id: what ``/v1/models`` calls the model; default: the file's stem.
        api_keys: one key or several; requests must carry one of them. None: everybody may ask.
        isolate_cache: whether requests share evaluated prompts with those of the same key only, so that how fast an
            answer begins says nothing about others.
        cors: origins whose pages may ask, ``"*"`` for all; None: pages from this machine, or all if there are keys.
        hosts: names besides ``localhost`` by which clients on this machine may call it where there are no keys, ``"*"``
            for any; see :func:`ggfw.server.gate.install`.
        skills: what conversations may load; see :meth:`ggfw.Model.chat`.
        ui: whether the chat page is served, at ``/chat`` and to browsers at ``/``.
        log: a structlog-like logger or a callable (event, fields): one line per inference; None = silence.
        log_prompts: write prompts and answers into these lines too.
        max_body: bytes a request's body may have.
        heartbeat: seconds of silence after which a stream shows that it is alive.
        grace: seconds that running answers get to finish when the server is stopped.
        name: of the Sanic application; default: a unique one.

    Returns:
        The application; run it with :func:`serve`, with Sanic's own runners, or as an ASGI application.
    """
    own_pool = pool is not None
    pool = pool or _pool_of(model, id, max_queue)
    app = _Application(name or f"ggfw-{secrets.token_hex(4)}", configure_logging=False)
    app.config.RESPONSE_TIMEOUT = RESPONSE_TIMEOUT
    app.config.REQUEST_TIMEOUT = REQUEST_TIMEOUT
    app.config.REQUEST_MAX_SIZE = max_body
    app.config.KEEP_ALIVE_TIMEOUT = 120
    app.config.GRACEFUL_SHUTDOWN_TIMEOUT = grace
    app.config.ACCESS_LOG = False
    app.config.MOTD = False
    # Sanic would rewrite its own methods at start, which fails for the second application of a process.
    app.config.TOUCHUP = False
    app.config.FALLBACK_ERROR_FORMAT = "json"
    app.ctx.ggfw = State(
        pool,
        defaults=dict(defaults or {}),
        log=as_log(log),
        log_prompts=log_prompts,
        isolate_cache=isolate_cache,
        heartbeat=heartbeat,
        skills=None if skills is None else Skills.of(skills),
        store=store,
        page=page.show if ui else None,
    )
    errors.install(app)
    gate.install(app, keys=api_keys, origins=cors, hosts=hosts)
    for blueprint in blueprints(ui=ui):
        app.blueprint(blueprint)
    _watch(app)

    if own_pool:

        @app.after_server_stop
        async def _close(app: Sanic) -> None:
            app.ctx.ggfw.pool.close()

    return app


class _Application(Sanic):
    """Sanic's, but for signals that come while it starts: between its first answer and its main loop they would end
    what runs then instead, or be lost. So requests wait until the main loop runs, and so does the end."""

    def stop(self, terminate: bool = True, unregister: bool = False) -> None:
        """See Sanic; while it starts, this is done when it has started."""
        if getattr(self.ctx, "ggfw_starting", False):
            self.ctx.ggfw_told = (terminate, unregister)
        else:
            super().stop(terminate, unregister)

    def set_serving(self, serving: bool) -> None:
        """See Sanic, which says so when nothing is left to do before its main loop; that runs what is put in here."""
        super().set_serving(serving)
        if serving and getattr(self.ctx, "ggfw_starting", False):
            self.loop.call_soon(self._started)

    def _started(self) -> None:
        """Let requests in, and end the main loop if that was asked for meanwhile."""
        self.ctx.ggfw_starting = False
        self.ctx.ggfw_opening.set()
        if self.ctx.ggfw_told is not None:
            self.stop(*self.ctx.ggfw_told)


def _watch(app: Sanic) -> None:
    """Unload models whose time is over, and take no new work while the server is being stopped."""

    state: State = app.ctx.ggfw
    state.pool.log = state.say
    for warning in state.store.warnings if state.store is not None else ():
        state.say("model_left_out", {"reason": warning})

    async def expire() -> None:
        while True:
            await asyncio.sleep(EXPIRY)
            state.pool.expire()

    @app.after_server_start
    async def _begin(app: Sanic) -> None:
        state.ending = False  # an application may be served again
        app.ctx.ggfw_expiry = asyncio.ensure_future(expire())

    @app.before_server_stop
    async def _ending(app: Sanic) -> None:
        # The socket is still open: new requests get a 503, and what is under way may finish. Who interrupts once
        # more does not want to wait.
        again, state.ending = state.ending, True
        app.ctx.ggfw_expiry.cancel()
        end = time.monotonic() + (0.0 if again else float(app.config.GRACEFUL_SHUTDOWN_TIMEOUT))
        while state.under_way and time.monotonic() < end:
            await asyncio.sleep(0.02)
        # What is left is for connections to send what they have.
        app.config.GRACEFUL_SHUTDOWN_TIMEOUT = max(0.5, end - time.monotonic())

    @app.after_server_stop
    async def _ended(app: Sanic) -> None:
        # Answers that were cut off come to their end before the loop is closed, which would complain of each.
        end = time.monotonic() + SETTLE
        while state.under_way and time.monotonic() < end:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)


def mount(
    app: Sanic,
    model: Any = None,
    *,
    url_prefix: str = "",
    pool: Pool | None = None,
    store: Store | None = None,
    defaults: Mapping[str, Any] | None = None,
    max_queue: int | None = None,
    id: str | None = None,
    api_keys: gate.Keys = None,
    isolate_cache: bool = False,
    cors: gate.Origins = None,
    hosts: gate.Hosts = None,
    skills: Any = None,
    ui: bool = False,
    log: Any = None,
    log_prompts: bool = False,
    heartbeat: float = HEARTBEAT,
) -> None:
    """Serve a model in a host's own application. Its other routes, errors and middleware stay as they are.

    Args:
        app: the host's, before it starts. Answers may take long: see that its ``RESPONSE_TIMEOUT`` allows for that.
        model: a :class:`ggfw.Model` or :class:`ggfw.Engine`; or give a ``pool``. The host closes either.
        url_prefix: put in front of all paths, e.g. ``/llm``; the chat page is then at ``/llm/chat``.
        store, defaults, max_queue, id, api_keys, isolate_cache, cors, hosts, skills, ui, log,
            log_prompts, heartbeat: see :func:`create_app`.
    """
    app.ctx.ggfw = State(
        pool or _pool_of(model, id, max_queue),
        defaults=dict(defaults or {}),
        log=as_log(log),
        log_prompts=log_prompts,
        isolate_cache=isolate_cache,
        heartbeat=heartbeat,
        skills=None if skills is None else Skills.of(skills),
        store=store,
        page=page.show if ui else None,
    )
    for blueprint in blueprints(url_prefix, ui=ui):
        errors.install(blueprint)
        gate.install(blueprint, keys=api_keys, origins=cors, hosts=hosts)
        app.blueprint(blueprint)
    _watch(app)


def blueprints(url_prefix: str = "", *, ui: bool = False) -> list[Blueprint]:
    """The API families, one blueprint each; :func:`mount` adds them to an application with all they need.

    Args:
        url_prefix: put in front of all paths.
        ui: whether the chat page is among them.
    """
    found = (*FAMILIES, page.page) if ui else FAMILIES
    return [b.copy(f"ggfw-{b.name}", url_prefix=url_prefix or None) for b in found]


def _pool_of(model: Any, id: str | None, max_queue: int | None) -> Pool:
    """A pool with one model that the caller closes."""
    pool = Pool()
    if model is None:
        return pool
    if isinstance(model, Engine):
        made = model_of(model)
    else:
        made = model if isinstance(model, Model) else Model(model)
    if max_queue is not None:
        made.engine.max_queue = max_queue
    pool.add_model(made, id)
    return pool


def serve(app: Sanic, host: str = "127.0.0.1", port: int = 8080, *, sock: Any = None) -> None:
    """Serve ``app`` in this process until it is interrupted.

    One process only: Sanic's worker manager would load the model once more in a child.

    Args:
        host, port: where to listen.
        sock: a listening socket to use instead, of the internet or of Unix.
    """
    if isinstance(app, _Application):
        again = hasattr(app.ctx, "ggfw_starting")
        app.ctx.ggfw_starting, app.ctx.ggfw_opening, app.ctx.ggfw_told = True, asyncio.Event(), None

        async def wait(request: Any) -> None:
            if app.ctx.ggfw_starting:
                await app.ctx.ggfw_opening.wait()

        if not again:
            app.register_middleware(wait, "request", priority=1000)

    where = {"sock": sock} if sock is not None else {"host": host, "port": port}
    app.run(**where, protocol=Protocol, single_process=True, access_log=False, motd=False)

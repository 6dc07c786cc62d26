"""Who may ask: API keys, origins of web pages, request ids."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import uuid
from collections.abc import Iterable
from typing import Any
from urllib.parse import SplitResult, urlsplit

from sanic import Blueprint, Request, Sanic
from sanic.http import Http
from sanic.response import HTTPResponse, empty, json

from ggfw.server.errors import Forbidden, Unauthorized, body_of, family_of, problem_of

Keys = str | Iterable[str] | None
Origins = str | Iterable[str] | None
Hosts = str | Iterable[str] | None

#: What a client may call its request; anything else could forge lines of a log or headers.
REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
#: Headers of ours that pages may read.
EXPOSED = "X-Request-Id, Request-Id, Retry-After"
METHODS = "GET, POST, DELETE, HEAD, OPTIONS"
#: What a page may send when it does not say what it wants to send.
HEADERS = "Authorization, Content-Type, X-Api-Key, X-Request-Id"


def install(
    app: Sanic | Blueprint, *, keys: Keys = None, origins: Origins = None, hosts: Hosts = None
) -> None:
    """Check every request of ``app`` (or of one blueprint) before its handler, and put our headers on every response.

    Args:
        keys: one or several; None: no key is needed.
        origins: origins whose pages may ask, ``"*"`` for all; None: pages from this machine, or all if there are keys
            (a page without a key gets nothing, and keys are not sent by browsers on their own).
        hosts: names by which this machine may be called besides those of :func:`is_own`, ``"*"`` for any. They are
            looked at where there are no keys and a request comes from this machine itself: a page whose name was made
            to lead here (DNS rebinding) is for its browser of the same origin as this server.
    """
    called = {"*"} if hosts == "*" else _origins(hosts)
    known = _keys(keys)
    allowed = {"*"} if origins == "*" or (origins is None and known) else _origins(origins)

    def fits(request: Request) -> bool:
        origin = request.headers.get("origin", "")
        if not origin or "*" in allowed or origin.lower() in allowed:
            return True
        if _parts(origin).netloc == request.headers.get("host", ""):
            return True  # our own page
        return origins is None and is_local(origin)

    def foreign(request: Request) -> str:
        """The name that this server is wrongly called by; empty: it is called rightly."""
        if known or "*" in called or not _over_loopback(request):
            return ""
        host = request.headers.get("host", "")
        return "" if is_own(host) or _name(host) in called else host

    async def before(request: Request) -> HTTPResponse | None:
        given = request.headers.get("x-request-id", "")
        request._id = given if REQUEST_ID.fullmatch(given) else str(uuid.uuid4())
        if not fits(request):
            origin = request.headers.get("origin", "")
            return _refuse(request, Forbidden(f"pages from {origin!r} may not use this server (--cors)"))
        if wrong := foreign(request):
            return _refuse(
                request,
                Forbidden(f"this server is not called {wrong!r:.200}; allow that name with --allow-host"),
            )
        if request.method == "OPTIONS" and request.headers.get("access-control-request-method"):
            return empty(204)
        if known and not getattr(request.route and request.route.ctx, "open", False):
            key = _key_of(request)
            # Every key is compared, in constant time: how long it takes says nothing about any of them.
            if not sum(hmac.compare_digest(key, one) for one in known):
                what = "is missing" if not key else "is wrong"
                return _refuse(
                    request,
                    Unauthorized(
                        f"the API key {what}; send it as 'Authorization: Bearer KEY' or as 'X-Api-Key: KEY'"
                    ),
                )
            # Tells clients apart for those who need to, without the key itself lying about.
            request.ctx.ggfw_key = hashlib.sha256(key).digest()
        return None

    async def after(request: Request, response: Any) -> None:
        headers = response.headers
        headers["X-Request-ID"] = str(request.id)
        if family_of(request) == "anthropic":
            headers["Request-Id"] = str(request.id)
        headers.setdefault("X-Content-Type-Options", "nosniff")
        # Also without an origin, and for one that may not ask: a cache must not give that answer to another one's page.
        headers["Vary"] = ", ".join(filter(None, (headers.get("Vary"), "Origin")))
        origin = request.headers.get("origin")
        if origin and fits(request):
            headers["Access-Control-Allow-Origin"] = "*" if "*" in allowed else origin
            headers["Access-Control-Expose-Headers"] = EXPOSED
            if request.method == "OPTIONS":
                asked = request.headers.get("access-control-request-headers")
                headers["Access-Control-Allow-Methods"] = METHODS
                headers["Access-Control-Allow-Headers"] = asked or HEADERS
                headers["Access-Control-Max-Age"] = "600"
        state = getattr(request.app.ctx, "ggfw", None)
        if state is not None:
            if state.ending and isinstance(request.stream, Http):
                request.stream.keep_alive = False  # the client's next request may find another server
            route = request.route.path if request.route is not None else ""
            # A client that has gone cancels the handler; Sanic makes an answer of that which nobody reads.
            gone = response.status == 500 and request.conn_info is not None and request.conn_info.lost
            status = 499 if gone else response.status
            state.metrics.http(f"/{route}" if route else "none", request.method, status)

    app.on_request(before)
    app.on_response(after)


def _refuse(request: Request, error: Exception) -> HTTPResponse:
    problem = problem_of(error)
    state = getattr(request.app.ctx, "ggfw", None)
    if state is not None:
        state.refused(request, problem, error)
    return json(body_of(request, problem), status=problem.status, headers=problem.headers)


def _keys(keys: Keys) -> list[bytes]:
    given = [keys] if isinstance(keys, str) else list(keys or ())
    return [key.strip().encode() for key in given if key.strip()]


def _origins(origins: Origins) -> set[str]:
    given = [origins] if isinstance(origins, str) else list(origins or ())
    return {origin.rstrip("/").lower() for origin in given}


def _key_of(request: Request) -> bytes:
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer":
        key = request.headers.get("x-api-key", "")
    return key.strip().encode("utf-8", "replace")


def _parts(origin: str) -> SplitResult:
    """The parts of an origin; what is none has none."""
    try:
        return urlsplit(origin)
    except ValueError:
        return SplitResult("", "", "", "", "")


def is_local(origin: str) -> bool:
    """Whether a page of this origin was loaded from this machine (or is a file or an application on it)."""
    parts = _parts(origin)
    if parts.scheme not in ("http", "https"):
        return parts.scheme in ("app", "tauri", "file", "vscode-webview")
    return _is_loopback(parts.hostname or "")


def is_own(host: str) -> bool:
    """Whether a ``Host`` header calls this machine by a name that no stranger can make lead here.

    That is none at all (no browser leaves it out), ``localhost`` and what ends in it, a loopback address, and what ends
    in ``.internal``, which nobody can register (``host.docker.internal``).
    """
    name = _name(host)
    return not name or name.endswith(".internal") or _is_loopback(name)


def _name(host: str) -> str:
    """The name in a ``Host`` header, without the port; text that is none stays as it is."""
    try:
        return (urlsplit(f"//{host.strip()}").hostname or host.strip()).rstrip(".").lower()
    except ValueError:
        return host.strip().lower()


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _over_loopback(request: Request) -> bool:
    """Whether a request came to a loopback address, which only this machine reaches; a Unix socket is none."""
    transport = request.transport
    local = transport.get_extra_info("sockname") if transport is not None else None
    return isinstance(local, tuple) and bool(local) and _is_loopback(str(local[0]))

"""The chat page: static files of ours, no outside request, under a strict content security policy."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import PurePath

from sanic import Blueprint, NotFound, Request
from sanic.response import HTTPResponse, empty, raw

from ggfw.server.endpoint import endpoint

__all__ = ["HEADERS", "NAMES", "page", "show"]

page = Blueprint("page")

#: What files are, by the end of their names.
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

#: The files there are; a name that is not among them never becomes a path.
NAMES = frozenset(f.name for f in (files(__name__) / "static").iterdir() if PurePath(f.name).suffix in KINDS)

#: Nothing inline, nothing from elsewhere, and no string of any kind may become markup (trusted types).
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}

HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",
    "Vary": "Accept",
}


@cache
def _content(name: str) -> tuple[bytes, str]:
    """A file and its entity tag."""
    data = (files(__name__) / "static" / name).read_bytes()
    return data, f'"{hashlib.sha256(data).hexdigest()[:20]}"'


def show(request: Request, name: str = "index.html") -> HTTPResponse:
    """One of the files, by default the page itself; 304 to a browser that has it already."""
    data, tag = _content(name)
    headers = {**HEADERS, "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return empty(304, headers)
    return raw(data, content_type=KINDS[PurePath(name).suffix], headers=headers)


@endpoint(page, "GET HEAD", "/chat", family="openai", open=True)
async def chat(request: Request) -> HTTPResponse:
    """The chat page."""
    return show(request)


@endpoint(page, "GET HEAD", "/ui/<name:str>", family="openai", open=True)
async def file(request: Request, name: str) -> HTTPResponse:
    """A file of the chat page."""
    if name not in NAMES:
        raise NotFound(f"the chat page has no file {name!r}")
    return show(request, name)

"""The chat page: static files of ours, no outside request, under a strict content security policy."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from sanic import Blueprint, NotFound, Request
from sanic.response import HTTPResponse, raw

from ggfw.server.endpoint import endpoint

__all__ = ["HEADERS", "TYPES", "page", "show"]

page = Blueprint("page")

#: The files there are, and what they are; nothing else of the disk is reachable.
TYPES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "api.js": "text/javascript; charset=utf-8",
    "markdown.js": "text/javascript; charset=utf-8",
    "store.js": "text/javascript; charset=utf-8",
    "view.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@cache
def _content(name: str) -> bytes:
    return (files(__name__) / "static" / name).read_bytes()


def show(request: Request, name: str = "index.html") -> HTTPResponse:
    """One of the files, by default the page itself."""
    return raw(_content(name), content_type=TYPES[name], headers=HEADERS)


@endpoint(page, "GET HEAD", "/chat", family="openai", open=True)
async def chat(request: Request) -> HTTPResponse:
    """The chat page."""
    return show(request)


@endpoint(page, "GET HEAD", "/ui/<name:str>", family="openai", open=True)
async def file(request: Request, name: str) -> HTTPResponse:
    """A file of the chat page."""
    if name not in TYPES:
        raise NotFound(f"the chat page has no file {name!r}")
    return show(request, name)

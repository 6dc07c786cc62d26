"""Server-sent events: framing, and the sending of one stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from sanic import Request
from sanic.response import ResponseStream

from ggfw.errors import GgfwError
from ggfw.server.errors import describe

DONE = "data: [DONE]\n\n"

HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # proxies that collect output would undo streaming
}


def frame(data: Any, event: str | None = None) -> str:
    """One event. JSON has no line breaks of its own, so one ``data`` line is enough; it ends with an empty line."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"event: {event}\ndata: {text}\n\n" if event else f"data: {text}\n\n"


async def send(request: Request, frames: AsyncIterator[str]) -> ResponseStream | Any:
    """Send ``frames`` as an event stream. An error on the way becomes a last frame with an ``error`` object."""
    response = await request.respond(content_type="text/event-stream; charset=utf-8", headers=HEADERS)
    try:
        async for text in frames:
            await response.send(text)
    except GgfwError as error:
        await response.send(frame(describe(error)[1]))
    await response.eof()
    return response

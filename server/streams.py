"""Sending a stream: framing, heartbeats, errors on the way, slow readers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from sanic import Request
from sanic.exceptions import SanicException

from ggfw.errors import GgfwError
from ggfw.server.errors import body_of, family_of, problem_of
from ggfw.server.state import served

EVENTS = "text/event-stream; charset=utf-8"
LINES = "application/x-ndjson"

DONE = "data: [DONE]\n\n"
#: A line that clients of event streams skip.
COMMENT = ": still here\n\n"

HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # proxies that collect output would undo streaming
}


#: Made once: ``json.dumps`` makes an encoder for each call that does not have the standard separators.
encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""JSON on one line."""


def event(data: Any, name: str | None = None) -> str:
    """One server-sent event. JSON has no line breaks of its own, so one ``data`` line is enough."""
    return f"event: {name}\ndata: {encode(data)}\n\n" if name else f"data: {encode(data)}\n\n"


def line(data: Any) -> str:
    """One line of newline-delimited JSON."""
    return encode(data) + "\n"


async def begin(request: Request, content_type: str = EVENTS, headers: dict[str, str] | None = None) -> Any:
    """The stream that answers ``request``, begun now if it has not been."""
    stream = getattr(request.ctx, "ggfw_stream", None)
    if stream is None:
        stream = await request.respond(content_type=content_type, headers={**HEADERS, **(headers or {})})
        request.ctx.ggfw_stream, request.ctx.ggfw_lines = stream, content_type == LINES
    return stream


async def fail(request: Request, error: BaseException) -> bool:
    """Write an error into the stream that has been begun, in the family's form, and end it; False: there is none."""
    stream = getattr(request.ctx, "ggfw_stream", None)
    if stream is None:
        return False
    problem = problem_of(error)
    served(request).refused(request, problem, error)
    body = body_of(request, problem)
    if request.ctx.ggfw_lines:
        await stream.send(line(body))
    else:
        await stream.send(event(body, "error" if family_of(request) == "anthropic" else None))
    await stream.eof()
    return True


async def send(
    request: Request,
    frames: AsyncIterator[str],
    *,
    content_type: str = EVENTS,
    beat: Callable[[], str | None] = lambda: COMMENT,
    every: float | None = None,
    on_error: Callable[[Any, str], str] | None = None,
    headers: dict[str, str] | None = None,
) -> None:
    """Send ``frames`` as they come.

    Args:
        frames: what to send; one string is one write.
        content_type: of the response.
        beat: gives what to send after a silence; None: nothing this time.
        every: seconds of silence before a beat; default: the server's.
        on_error: (error body in the family's shape, sentence) -> the last frame, after an error on the way; default: an
            event or a line with the body.
        headers: more of the response's.
    """
    response = await begin(request, content_type, headers)
    state = served(request)
    seconds = state.heartbeat if every is None else every
    last = time.monotonic()
    busy = False

    async def write(text: str) -> None:
        nonlocal last, busy
        busy = True
        try:
            await response.send(text)
        finally:
            busy, last = False, time.monotonic()

    async def beats() -> None:
        while True:
            await asyncio.sleep(max(0.01, last + seconds - time.monotonic()))
            if busy or time.monotonic() - last < seconds:
                if busy:  # a reader that is behind needs no sign of life
                    await asyncio.sleep(seconds)
                continue
            text = beat()
            if text:
                await write(text)

    beating: asyncio.Task[None] | None = None
    try:
        async for text in frames:
            await write(text)
            if beating is None:  # only now: the head must have been sent by one writer
                beating = asyncio.ensure_future(beats())
    except (GgfwError, SanicException) as error:
        problem = problem_of(error)
        body = body_of(request, problem)
        if on_error is not None:
            await write(on_error(body, problem.message))
        else:
            await write(line(body) if content_type == LINES else event(body))
    finally:
        if beating is not None:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating
        close = getattr(frames, "aclose", None)
        if close is not None:
            await close()
    await response.eof()

"""Declaring an endpoint: its route, its checked body, its family's errors, and its page in the OpenAPI document."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from sanic import Blueprint, Request

from ggfw.errors import InvalidRequest
from ggfw.server.errors import NotReady, renamed
from ggfw.server.fields import Body
from ggfw.server.state import served
from ggfw.server.streams import fail

Handler = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class Endpoint:
    """What the OpenAPI document says about one route.

    Args:
        method, path: of the route, as Sanic writes it.
        summary: one sentence.
        body: the model of the request's body.
        family: whose shapes it speaks.
        optional: whether an empty body will do.
    """

    method: str
    path: str
    summary: str
    body: type[Body] | None
    family: str
    optional: bool = False


#: A body may hold one value (with its key) for so many bytes of its largest size: each takes a hundred
#: bytes and more when it is read, however short it is.
BYTES_PER_VALUE = 14

#: Methods that start no work: they are answered to the end.
READING = ("GET", "HEAD", "OPTIONS")

#: Every endpoint that has been declared, by blueprint.
DECLARED: dict[str, list[Endpoint]] = {}


def endpoint(
    blueprint: Blueprint,
    methods: str,
    path: str,
    *,
    family: str,
    body: type[Body] | None = None,
    optional: bool = False,
    stream: bool = False,
    open: bool = False,
) -> Callable[[Handler], Handler]:
    """Decorate a handler ``(request, [body,] **path parameters)``.

    Args:
        methods: one or several, separated by spaces.
        path: of the route.
        family: ``openai``, ``anthropic`` or ``ollama``: the shape of its errors.
        body: the request's body is checked with this model and passed on.
        optional: an empty body stands for an empty object.
        stream: the handler reads the body itself, piece by piece.
        open: answers without an API key.
    """

    def decorate(handler: Handler) -> Handler:
        @functools.wraps(handler)
        async def run(request: Request, *args: Any, **kwargs: Any) -> Any:
            state = served(request)
            if state.ending and request.method not in READING:
                raise NotReady("the server is being stopped")
            with state.answering():
                return await answer(request, *args, **kwargs)

        async def answer(request: Request, *args: Any, **kwargs: Any) -> Any:
            if body is None:
                return await handler(request, *args, **kwargs)
            content = request.body
            if optional and not content.strip():
                content = b"{}"
            most = int(request.app.config.REQUEST_MAX_SIZE) // BYTES_PER_VALUE
            if not few_values(content, most):
                raise InvalidRequest(f"the body holds more than {most} values; send less at a time")
            checked = body.model_validate_json(content)
            try:
                return await handler(request, checked, *args, **kwargs)
            except Exception as error:
                if isinstance(error, InvalidRequest):
                    error = _renamed(error, checked.names())
                if await fail(request, error):  # a stream had begun, to show that it waits for its model
                    return None
                raise error from None

        summary = (handler.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        declared = DECLARED.setdefault(blueprint.name, [])
        for method in methods.split():
            if method != "HEAD":
                declared.append(Endpoint(method, path, summary, body, family, optional))
        blueprint.add_route(
            run,
            path,
            methods=methods.split(),
            name=f"{handler.__name__}_{len(declared)}",
            stream=stream,
            ctx_family=family,
            ctx_open=open,
        )
        return handler

    return decorate


def few_values(content: bytes, most: int) -> bool:
    """Whether JSON text holds no more than ``most`` values, told by what stands between them, without reading it."""

    def count(text: bytes) -> int:
        return text.count(b",") + text.count(b"[") + text.count(b"{")

    if count(content) <= most:
        return True
    bare = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 4 * most:
        return False
    # Every second part stands outside of strings.
    return sum(map(count, bare.split(b'"')[::2])) <= most


def _renamed(error: InvalidRequest, names: dict[str, str]) -> InvalidRequest:
    """The same error under the name that the client used."""
    old = (error.param or "").partition("[")[0]
    if old in names:
        renamed(error, old, names[old])
    return error

"""Errors as answers: one table from types to status codes, one JSON shape, no HTML and no stack traces.

``{"error": {"message", "type", "param", "code"}}`` as in OpenAI's API.
"""

from __future__ import annotations

import math
from typing import Any

import pydantic
from sanic import Request, Sanic
from sanic.exceptions import MethodNotAllowed, NotFound, SanicException
from sanic.response import HTTPResponse, json

from ggfw.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    GenerationCanceled,
    GgfwError,
    InvalidRequest,
    ModelNotFound,
    QueueFull,
    UnsupportedError,
)

#: The first class that fits decides: status, type, code.
TABLE: tuple[tuple[type[BaseException], int, str, str | None], ...] = (
    (ContextLengthExceeded, 400, "exceed_context_size_error", "context_length_exceeded"),
    (InvalidRequest, 400, "invalid_request_error", None),
    (ModelNotFound, 404, "invalid_request_error", "model_not_found"),
    (QueueFull, 429, "rate_limit_error", "queue_full"),
    (UnsupportedError, 400, "invalid_request_error", None),
    (DeadlineExceeded, 504, "timeout_error", "deadline_exceeded"),
    (GenerationCanceled, 503, "server_error", "canceled"),
    (GgfwError, 500, "server_error", None),
)


def describe(error: BaseException) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers for an error."""
    headers: dict[str, str] = {}
    if isinstance(error, pydantic.ValidationError):
        error = from_validation(error)
    status, kind, code = 500, "server_error", None
    message = "internal error; the server's log has the details"
    for cls, status_, kind_, code_ in TABLE:
        if isinstance(error, cls):
            status, kind, code, message = status_, kind_, code_, str(error)
            break
    else:
        if isinstance(error, SanicException):
            status, message = error.status_code, str(error) or "request failed"
            kind = "invalid_request_error" if status < 500 else "server_error"
            code = {404: "not_found", 405: "method_not_allowed", 413: "payload_too_large"}.get(status)
            headers |= {k: str(v) for k, v in (error.headers or {}).items()}
    body: dict[str, Any] = {
        "message": message,
        "type": kind,
        "param": getattr(error, "param", None),
        "code": code,
    }
    if isinstance(error, ContextLengthExceeded):
        body |= {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
    if isinstance(error, QueueFull):
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    return status, {"error": body}, headers


def from_validation(error: pydantic.ValidationError) -> InvalidRequest:
    """The first complaint of a request model, with the parameter's name."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(p) for p in first["loc"] if not str(p).startswith(("function-", "constrained-")))
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {message}")
    param = str(first["loc"][0]) if first["loc"] else None
    return InvalidRequest(f"{where}: {message}" if where else message, param=param)


def install(app: Sanic) -> None:
    """Answer every error of ``app`` in this shape."""

    async def handle(request: Request, error: Exception) -> HTTPResponse:
        if isinstance(error, MethodNotAllowed):
            error.args = (f"{request.method} is not allowed on {request.path}",)
        elif isinstance(error, NotFound):
            error.args = (f"there is no {request.path} here",)
        status, body, headers = describe(error)
        log = getattr(request.app.ctx, "ggfw_log", None)
        if status == 500 and log is not None:
            log("request_failed", {"request_id": str(request.id), "path": request.path, "error": repr(error)})
        return json(body, status=status, headers=headers)

    app.exception(Exception)(handle)

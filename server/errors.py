"""From the error tree to what a client sees: status, code and the error body of each API family, in one place."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pydantic
from sanic import Blueprint, Request, Sanic
from sanic.exceptions import MethodNotAllowed, NotFound, SanicException
from sanic.response import HTTPResponse, json

from ggfw.errors import (
    AmbiguousModel,
    ConstraintFailed,
    ContextLengthExceeded,
    DeadlineExceeded,
    GenerationCanceled,
    GgfwError,
    InvalidRequest,
    ModelFileError,
    ModelNotFound,
    QueueFull,
    SourceError,
    UnsupportedError,
)
from ggfw.footprint import MemoryShort


class Unauthorized(GgfwError):
    """The request has no API key, or a wrong one."""


class Forbidden(GgfwError):
    """The request is understood and not allowed (another site's page, a path outside the model folders)."""


class Conflict(GgfwError):
    """What was asked for cannot be done in the present state."""


class DiskShort(GgfwError):
    """The disk has no room for what a client sends."""


class NotReady(GgfwError):
    """The server is starting or ending."""


def renamed(error: InvalidRequest, old: str, new: str) -> None:
    """Call what an error is about ``new`` where it says ``old``: the name, or place, that the client has given it."""
    error.args = (str(error).replace(old, new), *error.args[1:])
    error.param = (error.param or "").replace(old, new, 1)


#: The first class that fits decides: status, OpenAI's type, code.
TABLE: tuple[tuple[type[BaseException], int, str, str | None], ...] = (
    (ContextLengthExceeded, 400, "exceed_context_size_error", "context_length_exceeded"),
    (InvalidRequest, 400, "invalid_request_error", None),
    (Unauthorized, 401, "authentication_error", "invalid_api_key"),
    (Forbidden, 403, "permission_error", "forbidden"),
    (ModelNotFound, 404, "invalid_request_error", "model_not_found"),
    (AmbiguousModel, 400, "invalid_request_error", "model_ambiguous"),
    (Conflict, 409, "invalid_request_error", "conflict"),
    (DiskShort, 507, "server_error", "disk_full"),
    (MemoryShort, 400, "invalid_request_error", "model_too_large"),
    (QueueFull, 429, "rate_limit_error", "queue_full"),
    (UnsupportedError, 400, "invalid_request_error", None),
    (ModelFileError, 400, "invalid_request_error", "model_unusable"),
    (SourceError, 502, "server_error", "source_failed"),
    (NotReady, 503, "unavailable_error", "not_ready"),
    (ConstraintFailed, 400, "invalid_request_error", "constraint_failed"),
    (DeadlineExceeded, 504, "timeout_error", "deadline_exceeded"),
    (GenerationCanceled, 503, "server_error", "canceled"),
    (GgfwError, 500, "server_error", None),
)

#: Codes of what the HTTP layer itself refuses.
HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "payload_too_large"}

#: Characters of a message; whatever lists all that there is (models, fields) is shorter.
MAX_MESSAGE = 2000
_LONG_WORD = re.compile(r"\S{240,}")


@dataclass
class Problem:
    """An error, before a family gives it its shape.

    Args:
        status: of HTTP.
        kind: OpenAI's ``type``.
        message: one sentence.
        param: the field it is about.
        code: for programs.
        more: further members of the error object.
        headers: of the response.
    """

    status: int
    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    more: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


def shortened(message: str) -> str:
    """A message without the middle of words and numbers of hundreds of characters, which are the client's own."""
    words = _LONG_WORD.sub(lambda found: f"{found[0][:120]}...{found[0][-40:]}", message)
    return words if len(words) <= MAX_MESSAGE else f"{words[: MAX_MESSAGE - 300]}...{words[-300:]}"


def problem_of(error: BaseException) -> Problem:
    """What is to be said about an error; of those that nobody foresaw, nothing but that there was one."""
    if isinstance(error, pydantic.ValidationError):
        error = from_validation(error)
    for cls, status, kind, code in TABLE:
        if isinstance(error, cls):
            found = Problem(status, kind, shortened(str(error)), getattr(error, "param", None), code)
            break
    else:
        if not isinstance(error, SanicException):
            return Problem(500, "server_error", "internal error; the server's log has the details")
        status = error.status_code
        kind = "invalid_request_error" if status < 500 else "server_error"
        message = shortened(str(error)) or "request failed"
        found = Problem(status, kind, message, code=HTTP_CODES.get(status))
        found.headers |= {k: str(v) for k, v in (error.headers or {}).items()}
    if isinstance(error, ContextLengthExceeded):
        found.more |= {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
    if isinstance(error, MemoryShort):
        found.more |= {"needed_bytes": error.needed, "available_bytes": error.available}
        if error.largest:
            found.more["largest_n_ctx"] = error.largest
        if error.passing:  # others are answering: the same request will do later
            found.status, found.kind, found.code = 503, "unavailable_error", "memory_busy"
            found.headers["Retry-After"] = "5"
    if isinstance(error, QueueFull):
        found.headers["Retry-After"] = str(math.ceil(error.retry_after))
    if isinstance(error, NotReady):
        found.headers["Retry-After"] = "5"
    if isinstance(error, Unauthorized):
        found.headers["WWW-Authenticate"] = "Bearer"
    return found


# -- the families' shapes ------------------------------------------------------------------------------------------

#: Anthropic's ``type`` by status; others are ``api_error``, those below 500 ``invalid_request_error``.
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def openai_body(problem: Problem, request_id: str = "") -> dict[str, Any]:
    """``{"error": {"message", "type", "param", "code"}}``."""
    return {
        "error": {
            "message": problem.message,
            "type": problem.kind,
            "param": problem.param,
            "code": problem.code,
            **problem.more,
        }
    }


def anthropic_body(problem: Problem, request_id: str = "") -> dict[str, Any]:
    """``{"type": "error", "error": {"type", "message"}, "request_id"}``."""
    default = "invalid_request_error" if problem.status < 500 else "api_error"
    kind = ANTHROPIC_TYPES.get(problem.status, default)
    return {
        "type": "error",
        "error": {"type": kind, "message": _naming(problem), **problem.more},
        "request_id": request_id,
    }


def ollama_body(problem: Problem, request_id: str = "") -> dict[str, Any]:
    """``{"error": "text"}``."""
    return {"error": _naming(problem), **problem.more}


def _naming(problem: Problem) -> str:
    """The sentence, with the field's name where it does not say it itself: these shapes have no other place for it."""
    field_name = problem.param or ""
    if field_name.partition("[")[0].partition(".")[0] in problem.message:
        return problem.message
    return f"{field_name}: {problem.message}"


SHAPES: dict[str, Callable[[Problem, str], dict[str, Any]]] = {
    "openai": openai_body,
    "anthropic": anthropic_body,
    "ollama": ollama_body,
}


def family_of(request: Request) -> str:
    """Which family's error body a request expects: its route's, else by what its path looks like."""
    route = request.route
    if route is not None and hasattr(route.ctx, "family"):
        return str(route.ctx.family)
    path = request.path
    if "/v1/messages" in path:
        return "anthropic"
    return "ollama" if path.startswith("/api/") else "openai"


def body_of(request: Request, problem: Problem) -> dict[str, Any]:
    """The error body for ``request``."""
    return SHAPES[family_of(request)](problem, str(request.id))


def from_validation(error: pydantic.ValidationError) -> InvalidRequest:
    """The first complaint of a request model, with the parameter's name."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {message}")
    # Members of unions are named by their types, which are ours and not the client's.
    path = [p for p in first["loc"] if isinstance(p, int) or _is_field(str(p))]
    where = ".".join(map(str, path))
    param = str(path[0]) if path else None
    if param is None and error.title:
        return InvalidRequest(message if first["type"] == "value_error" else f"the body: {message}")
    return InvalidRequest(f"{where}: {message}" if where else message, param=param)


def _is_field(name: str) -> bool:
    return name.isidentifier() and name not in ("str", "int", "float", "bool", "dict", "list", "none")


def install(app: Sanic | Blueprint) -> None:
    """Answer every error of ``app`` (or of one blueprint) in the shape of the family that was asked."""

    async def handle(request: Request, error: Exception) -> HTTPResponse:
        if isinstance(error, MethodNotAllowed):
            error.args = (f"{request.method} is not allowed on {request.path}",)
        elif isinstance(error, NotFound):
            error.args = (f"there is no {request.path} here",)
        problem = problem_of(error)
        state = getattr(request.app.ctx, "ggfw", None)
        if state is not None:
            state.refused(request, problem, error)
        return json(body_of(request, problem), status=problem.status, headers=problem.headers)

    app.exception(Exception)(handle)

"""The ingress: takes HTTP, names the beginning of the prompt, and passes requests on to replicas."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, WorkerCrashedError
from ray.serve.exceptions import BackPressureError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ggfw_ray.options import Options
from ggfw_ray.prefix import block_names

#: What says that a replica is gone, and not that the request was wrong.
GONE = (ActorDiedError, ActorUnavailableError, RayActorError, WorkerCrashedError)
#: Headers that hold between two neighbours only.
HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"proxy-connection", b"te", b"trailer"}


class Prompts:
    """Token ids of prompts as the replicas will see them, from the file's header alone.

    Args:
        path: the model's file.
    """

    def __init__(self, path: str) -> None:
        from ggfw.chat.template import ChatTemplate
        from ggfw.gguf import GGUF
        from ggfw.tokenizer import Tokenizer

        self._gguf = GGUF.open(path)
        self._tokenizer = Tokenizer.from_metadata(self._gguf.metadata)
        self._template = ChatTemplate.of(self._gguf.metadata, self._tokenizer)

    def blocks(self, path: str, body: bytes) -> list[int]:
        """Names of the blocks of a request's prompt; empty where there is none, or its form is not known here."""
        try:
            request = json.loads(body)
            ids = self._ids(path, request)
        except Exception:  # the replica answers what is wrong with it; a hint must not
            return []
        return block_names(ids)

    def _ids(self, path: str, request: dict[str, Any]) -> list[int]:
        messages = request.get("messages")
        if messages:
            if isinstance(request.get("system"), str):  # Anthropic's form
                messages = [{"role": "system", "content": request["system"]}, *messages]
            more = {"tools": request["tools"]} if request.get("tools") else {}
            rendered = self._template.render(messages, **more)
            return list(self._tokenizer.encode_parts(rendered.parts))
        prompt = request.get("prompt") or request.get("input") or ()
        if isinstance(prompt, str):
            return list(self._tokenizer.encode(prompt, parse_special=True))
        return [int(i) for i in prompt]


class Ingress:
    """The deployment that HTTP comes to.

    Args:
        replicas: handle of the deployment of :class:`ggfw_ray.replica.Replica`.
        options: of the application.
    """

    def __init__(self, replicas: Any, options: Options) -> None:
        self.replicas = replicas.options(stream=True, method_name="handle")
        self.options = options
        self.prompts = Prompts(options.model)

    async def __call__(self, request: Request) -> Response:
        """Pass a request on; send it again to another replica while nothing of an answer has been passed on."""
        body = await request.body()
        path = request.url.path
        blocks = self.prompts.blocks(path, body) if request.method == "POST" else []
        scope = {
            key: request.scope[key]
            for key in ("method", "path", "query_string", "http_version", "scheme")
            if key in request.scope
        }
        scope |= {
            "raw_path": path.encode(),
            "headers": [(bytes(k), bytes(v)) for k, v in request.scope["headers"] if bytes(k) not in HOP],
            "client": request.scope.get("client"),
            "server": request.scope.get("server"),
            "root_path": "",
        }
        for attempt in range(self.options.retries + 1):
            answer = self.replicas.remote(scope, body, blocks=blocks)
            try:
                status, headers = await anext(answer)
                first = await anext(answer, None)
            except GONE as exc:
                if attempt == self.options.retries:
                    return unavailable(
                        f"the replica died {attempt + 1} times before it answered: {type(exc).__name__}"
                    )
                continue
            except BackPressureError:
                return unavailable("all replicas are busy; try again", status=429)
            response = StreamingResponse(rest(first, answer), status_code=status)
            response.raw_headers = [(k.lower(), v) for k, v in headers if k.lower() not in HOP]
            return response
        raise AssertionError("unreachable")


async def rest(first: bytes | None, answer: Any) -> AsyncIterator[bytes]:
    """The body of an answer; leaving it cancels the request at its replica."""
    try:
        if first is not None:
            yield first
            async for piece in answer:
                yield piece
    except GONE as exc:
        # Part of the answer is with the client, so it cannot be begun again; it ends, in the stream's own form.
        error = {
            "error": {
                "message": f"the replica died while it answered ({type(exc).__name__})",
                "type": "server_error",
            }
        }
        yield b"\ndata: " + json.dumps(error).encode() + b"\n\n"
    finally:
        answer.cancel()


def unavailable(message: str, status: int = 503) -> Response:
    """An error that clients may retry."""
    error = {"error": {"message": message, "type": "overloaded_error", "param": None, "code": status}}
    return JSONResponse(error, status_code=status, headers={"Retry-After": "1"})

"""``POST /v1/chat/completions``, plain and streamed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json

import ggfw
from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta
from ggfw.handle import Handle
from ggfw.library import Model
from ggfw.request import new_id
from ggfw.result import Result, Timings, Usage
from ggfw.server.logprobs import content_logprobs
from ggfw.server.schemas import ChatBody
from ggfw.server.sse import DONE, frame, send
from ggfw.server.state import Served, log_result, served

chat = Blueprint("chat")


@chat.post("/v1/chat/completions")
async def chat_completions(request: Request) -> HTTPResponse | None:
    """Answer a conversation."""
    body = ChatBody.model_validate_json(request.body)
    state = served(request)
    model = state.find(body.model)
    # Rendering and encoding a long conversation takes a while: not in the event loop.
    made = await asyncio.to_thread(_request, model, state, body, new_id("chatcmpl"))
    handle = model.submit(made)
    try:
        if body.stream:
            include_usage = bool(body.stream_options and body.stream_options.include_usage)
            await send(request, _frames(request, state, handle, include_usage, bool(body.logprobs)))
            return None
        result = await handle
        log_result(request, state, result, streaming=False)
        return json(_completion(state, result))
    finally:
        # A client that has gone cancels this handler; what it asked for must not go on.
        handle.cancel()


def _request(model: Model, state: Served, body: ChatBody, id: str) -> Any:
    defaults = state.defaults
    given = {**{k: v for k, v in defaults.items() if k != "max_tokens"}, **body.sampling()}
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    return model.chat_request(
        body.messages,
        max_tokens=body.limit if body.limit is not None else defaults.get("max_tokens"),
        stop=body.stop,
        ignore_eos=bool(body.ignore_eos),
        template_args=variables,
        logprobs=body.n_logprobs,
        grammar=body.answer_grammar(),
        id=id,
        **given,
    )


async def _frames(
    request: Request, state: Served, handle: Handle, include_usage: bool, logprobs: bool
) -> AsyncIterator[str]:
    """Role chunk, deltas, chunk with the finish reason, perhaps usage, end mark."""
    head = _head(state, handle.id, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], reason: str | None = None, noted: Any = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        if logprobs:
            choice["logprobs"] = noted
        return frame({**head, "choices": [choice], **more})

    yield chunk({"role": "assistant", "content": ""})
    async for delta in handle:
        noted = None
        if logprobs and isinstance(delta, TextDelta):
            noted = content_logprobs(state.model.tokenizer, delta.logprobs)
        yield chunk(_delta(delta), noted=noted)
    result = handle.result(0)
    log_result(request, state, result, streaming=True)
    yield chunk({}, result.finish_reason, timings=timings(result))
    if include_usage:
        yield frame({**head, "choices": [], "usage": usage(result.usage)})
    yield DONE


def _delta(delta: Delta) -> dict[str, Any]:
    if isinstance(delta, TextDelta):
        return {"content": delta.text}
    if isinstance(delta, ReasoningDelta):
        return {"reasoning_content": delta.text}
    function: dict[str, Any] = {"arguments": delta.arguments}
    call: dict[str, Any] = {"index": delta.index, "function": function}
    if delta.id:  # only the first piece of a call says whose it is; clients join what is repeated
        call |= {"id": delta.id, "type": "function", "function": {"name": delta.name, **function}}
    return {"tool_calls": [call]}


def _completion(state: Served, result: Result) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": result.text}
    if result.reasoning:
        message["reasoning_content"] = result.reasoning
    if result.tool_calls:
        message["content"] = result.text or None
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in result.tool_calls
        ]
    noted = None
    if result.logprobs is not None:
        noted = content_logprobs(state.model.tokenizer, result.logprobs)
    choice = {"index": 0, "message": message, "finish_reason": result.finish_reason, "logprobs": noted}
    return {
        **_head(state, result.id, "chat.completion"),
        "choices": [choice],
        "usage": usage(result.usage),
        "timings": timings(result),
    }


def _head(state: Served, id: str, kind: str) -> dict[str, Any]:
    return {
        "id": id,
        "object": kind,
        "created": int(time.time()),
        "model": state.id,
        "system_fingerprint": f"ggfw-{ggfw.__version__}",
    }


def usage(counts: Usage) -> dict[str, Any]:
    """OpenAI's ``usage`` object."""
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.total_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning_tokens},
    }


def timings(result: Result) -> dict[str, Any]:
    """llama-server's ``timings`` object (milliseconds, tokens per second)."""
    t: Timings = result.timings
    counts = result.usage
    return {
        "cache_n": counts.cached_tokens,
        "prompt_n": counts.prompt_tokens - counts.cached_tokens,
        "prompt_ms": round(t.prefill, 3),
        "prompt_per_second": round(t.prompt_per_second, 3),
        "predicted_n": counts.completion_tokens,
        "predicted_ms": round(t.decode, 3),
        "predicted_per_second": round(t.decode_per_second, 3),
    }

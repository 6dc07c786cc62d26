"""Ollama's answers: ``POST /api/chat`` and ``/api/generate``, as lines or as one object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timezone
from typing import Any

from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json, text

from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from ggfw.errors import InvalidRequest
from ggfw.request import new_id
from ggfw.result import Result, ToolCall
from ggfw.server.answers import Answers, answering, leasing
from ggfw.server.calls import arguments_object
from ggfw.server.endpoint import endpoint
from ggfw.server.families.ollama_fields import ChatBody, GenerateBody, OllamaBody
from ggfw.server.logprobs import content_logprobs
from ggfw.server.pool import Lease
from ggfw.server.state import served
from ggfw.server.streams import LINES, line, send

ollama_chat = Blueprint("ollama-chat")


@endpoint(ollama_chat, "POST", "/api/chat", family="ollama", body=ChatBody)
async def chat(request: Request, body: ChatBody) -> HTTPResponse | None:
    """Answer a conversation; without messages, load or unload the model."""
    if not body.messages:
        return await _load(request, body, {"message": {"role": "assistant", "content": ""}})
    shape = _Chat(body)
    async with _leasing(request, body, shape) as lease:
        return await _answer(request, body, body.generation(), lease, shape)


@endpoint(ollama_chat, "POST", "/api/generate", family="ollama", body=GenerateBody)
async def generate(request: Request, body: GenerateBody) -> HTTPResponse | None:
    """Answer a prompt; without one, load or unload the model."""
    if not body.prompt and not body.suffix:
        return await _load(request, body, {"response": ""})
    shape = _Generate(body)
    async with _leasing(request, body, shape) as lease:
        return await _answer(request, body, body.generation(lease.model), lease, shape)


def _leasing(request: Request, body: OllamaBody, shape: _Shape) -> AbstractAsyncContextManager[Lease]:
    # Streaming is the default here. A heartbeat is a line with empty content: clients parse every line.
    beat = None if body.stream is False else lambda: line(shape.piece(""))
    return leasing(request, body.model, keep_alive=body.seconds, beat=beat, content_type=LINES)


async def _answer(
    request: Request, body: OllamaBody, wanted: Any, lease: Lease, shape: _Shape
) -> HTTPResponse | None:
    streaming = body.stream is not False  # streaming is the default here
    if body.wants_thinking and not await asyncio.to_thread(lease.model.dialect.thinks, lease.model.template):
        raise InvalidRequest(f"{body.model} does not support thinking; leave think out", "think")
    async with answering(
        request, body.model, wanted, id=new_id("ollama"), streaming=streaming, lease=lease
    ) as answers:
        shape.answers = answers
        if streaming:
            # A heartbeat is a line with empty content: clients parse every line.
            await send(request, shape.lines(), content_type=LINES, beat=lambda: line(shape.piece("")))
            return None
        (result,) = await answers.results()
        return json(shape.whole(result))


async def _load(request: Request, body: OllamaBody, empty: dict[str, Any]) -> HTTPResponse:
    """Load the model, or unload it where it is not to be kept at all."""
    pool = served(request).pool
    if body.seconds == 0:
        pool.unload(await pool.known(body.model))
    else:
        async with pool.lease(body.model, keep_alive=body.seconds):
            pass
    reason = "unload" if body.seconds == 0 else "load"
    out = {"model": body.model, "created_at": now(), **empty, "done": True, "done_reason": reason}
    return json(out) if body.stream is False else text(line(out), content_type=LINES)


class _Shape:
    """How one of the two endpoints writes text, reasoning and calls."""

    def __init__(self, body: OllamaBody) -> None:
        self.body = body
        self.answers: Answers
        self._calls: list[dict[str, str]] = []
        self._sent = 0

    def piece(
        self, text: str = "", thinking: str = "", calls: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        """One object, not the last."""
        return {**self._head(), **self._content(text, thinking, calls or []), "done": False}

    def whole(self, result: Result) -> dict[str, Any]:
        """The only object of an answer that is not streamed."""
        calls = [call_object(call, n) for n, call in enumerate(result.tool_calls)]
        out = {**self._head(), **self._content(result.text, result.reasoning, calls), **self._end(result)}
        if result.logprobs is not None:
            out["logprobs"] = content_logprobs(self.answers.model.tokenizer, result.logprobs)["content"]
        return out

    async def lines(self) -> AsyncIterator[str]:
        """A line per piece; a call is one line when it is complete."""
        yield line(self.piece(""))
        async for _, item in self.answers.pieces():
            if isinstance(item, Result):
                ready = self._complete(len(self._calls))
                last = {**self._head(), **self._content("", "", []), **self._end(item)}
                yield (line(self.piece(calls=ready)) if ready else "") + line(last)
                return
            text = self._line(item)
            if text:
                yield text

    def _line(self, delta: Delta) -> str:
        if isinstance(delta, TextDelta):
            out = self.piece(delta.text)
            if self.body.logprobs:
                out["logprobs"] = content_logprobs(self.answers.model.tokenizer, delta.logprobs)["content"]
            return line(out)
        if isinstance(delta, ReasoningDelta):
            return line(self.piece(thinking=delta.text))
        ready = self._complete(delta.index)
        if delta.withdrawn:  # nothing of it was sent
            self._calls[delta.index]["name"] = ""
        else:
            self._add(delta)
        return line(self.piece(calls=ready)) if ready else ""

    def _add(self, delta: ToolCallDelta) -> None:
        while len(self._calls) <= delta.index:
            self._calls.append({"id": "", "name": "", "arguments": ""})
        call = self._calls[delta.index]
        call["id"] = call["id"] or delta.id
        call["name"] = call["name"] or delta.name
        call["arguments"] += delta.arguments

    def _complete(self, before: int) -> list[dict[str, Any]]:
        """The calls in front of number ``before`` that have not been sent: nothing is added to them any more."""
        ready = []
        for call in self._calls[:before]:
            if call["name"]:
                ready.append(call_object(ToolCall(call["id"], call["name"], call["arguments"]), self._sent))
                self._sent += 1
                call["name"] = ""
        return ready

    def _head(self) -> dict[str, Any]:
        return {"model": self.body.model, "created_at": now()}

    def _content(self, text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        raise NotImplementedError

    def _end(self, result: Result) -> dict[str, Any]:
        t, used, load = result.timings, result.usage, self.answers.load_ms
        reason = "length" if result.finish_reason == "length" else "stop"

        def ns(ms: float) -> int:
            return round(ms * 1e6)

        return {
            "done": True,
            "done_reason": reason,
            "total_duration": ns(load + t.total),
            "load_duration": ns(load),
            "prompt_eval_count": used.prompt_tokens,
            "prompt_eval_duration": ns(t.prefill),
            "eval_count": used.completion_tokens,
            "eval_duration": ns(t.decode),
        }


class _Chat(_Shape):
    def _content(self, text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = calls
        return {"message": message}


class _Generate(_Shape):
    def __init__(self, body: GenerateBody) -> None:
        super().__init__(body)
        self._raw = bool(body.raw)

    def _content(self, text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        return {"response": text, **({"thinking": thinking} if thinking else {})}

    def _end(self, result: Result) -> dict[str, Any]:
        out = super()._end(result)
        if not self._raw:  # what the next request may send back
            out["context"] = [*self.answers.requests[0].prompt, *result.token_ids]
        return out


def call_object(call: ToolCall, index: int) -> dict[str, Any]:
    """Ollama's form of a call: the arguments are an object."""
    function = {"index": index, "name": call.name, "arguments": arguments_object(call)}
    return {"id": call.id, "function": function}


def now(seconds: float | None = None) -> str:
    """A time as Ollama writes it; default: now."""
    moment = datetime.now(timezone.utc) if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)
    return moment.isoformat().replace("+00:00", "Z")

"""Anthropic's messages: ``POST /v1/messages``, plain and streamed, and ``/v1/messages/count_tokens``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json

from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta
from ggfw.request import new_id
from ggfw.result import Result, Usage
from ggfw.server.answers import Answers, answering
from ggfw.server.calls import arguments_object, underscored_id
from ggfw.server.endpoint import endpoint
from ggfw.server.families.anthropic_messages import MessagesBody
from ggfw.server.generation import first_request, with_preset
from ggfw.server.state import served
from ggfw.server.streams import event, send

anthropic = Blueprint("anthropic")

PING = event({"type": "ping"}, "ping")


@endpoint(anthropic, "POST", "/v1/messages", family="anthropic", body=MessagesBody)
async def messages(request: Request, body: MessagesBody) -> HTTPResponse | None:
    """Answer a conversation."""
    id = underscored_id("msg")
    async with answering(
        request, body.model, body.generation(), id=id, streaming=bool(body.stream)
    ) as answers:
        if body.stream:
            await send(
                request,
                _frames(answers, body, id),
                beat=lambda: PING,
                on_error=lambda error, _: event(error, "error"),
            )
            return None
        (result,) = await answers.results()
        return json(_message(answers, body, result, id))


@endpoint(anthropic, "POST", "/v1/messages/count_tokens", family="anthropic", body=MessagesBody)
async def count_tokens(request: Request, body: MessagesBody) -> HTTPResponse:
    """Count the tokens a conversation would have as a prompt."""
    state = served(request)
    async with state.pool.lease(body.model) as lease:
        wanted = with_preset(body.generation(), lease.entry.preset)
        made = await asyncio.to_thread(first_request, lease.model, state, wanted, new_id("count"))
        return json({"input_tokens": len(made.prompt)})


def _message(answers: Answers, body: MessagesBody, result: Result, id: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if result.reasoning:
        content.append({"type": "thinking", "thinking": result.reasoning, "signature": ""})
    if result.text or not (result.tool_calls or content):
        content.append({"type": "text", "text": result.text})
    for call in result.tool_calls:
        content.append(
            {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call)}
        )
    return {
        **_head(answers, id),
        "content": content,
        **_stop(body, result),
        "usage": _usage(result.usage),
    }


def _head(answers: Answers, id: str) -> dict[str, Any]:
    return {"id": id, "type": "message", "role": "assistant", "model": answers.id}


def _stop(body: MessagesBody, result: Result) -> dict[str, Any]:
    matched = result.stop if result.stop in (body.stop_sequences or ()) else None
    reasons = {"length": "max_tokens", "tool_calls": "tool_use"}
    reason = "stop_sequence" if matched is not None else reasons.get(result.finish_reason, "end_turn")
    return {"stop_reason": reason, "stop_sequence": matched}


def _usage(used: Usage) -> dict[str, Any]:
    return {
        # What came from the cache is counted on its own.
        "input_tokens": used.prompt_tokens - used.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": used.cached_tokens,
        "output_tokens": used.completion_tokens,
    }


async def _frames(answers: Answers, body: MessagesBody, id: str) -> AsyncIterator[str]:
    """message_start, ping, then blocks one after the other, message_delta, message_stop."""
    start = {
        **_head(answers, id),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(Usage(len(answers.requests[0].prompt), 0)),
    }
    yield event({"type": "message_start", "message": start}, "message_start") + PING
    blocks = _Blocks()
    async for _, item in answers.pieces():
        if not isinstance(item, Result):
            yield blocks.take(item)
            continue
        end = {"type": "message_delta", "delta": _stop(body, item), "usage": _usage(item.usage)}
        yield blocks.end() + event(end, "message_delta") + event({"type": "message_stop"}, "message_stop")


class _Blocks:
    """The content blocks of one streamed message: at most one is open."""

    def __init__(self) -> None:
        self._index = -1
        self._open: Any = None  # what is open: "text", "thinking" or ("tool_use", number of the call)

    def take(self, delta: Delta) -> str:
        """The events of one delta."""
        if isinstance(delta, TextDelta):
            started = self._begin("text", {"type": "text", "text": ""})
            return started + self._delta({"type": "text_delta", "text": delta.text})
        if isinstance(delta, ReasoningDelta):
            started = self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            return started + self._delta({"type": "thinking_delta", "thinking": delta.text})
        if delta.withdrawn:  # a block cannot be taken back; the text that follows has what was written
            return self._close()
        block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
        started = self._begin(("tool_use", delta.index), block)
        if not delta.arguments:
            return started
        return started + self._delta({"type": "input_json_delta", "partial_json": delta.arguments})

    def end(self) -> str:
        """The events that close what is open; an answer without any block gets an empty one."""
        if self._index < 0:
            return self._begin("text", {"type": "text", "text": ""}) + self._close()
        return self._close()

    def _begin(self, what: Any, block: dict[str, Any]) -> str:
        if self._open == what:
            return ""
        closed = self._close()
        self._open = what
        self._index += 1
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return closed + event(start, "content_block_start")

    def _delta(self, delta: dict[str, Any]) -> str:
        return event(
            {"type": "content_block_delta", "index": self._index, "delta": delta}, "content_block_delta"
        )

    def _close(self) -> str:
        if self._open is None:
            return ""
        signed = self._delta({"type": "signature_delta", "signature": ""}) if self._open == "thinking" else ""
        self._open = None
        return signed + event({"type": "content_block_stop", "index": self._index}, "content_block_stop")

"""OpenAI's responses: ``POST /v1/responses``, plain and streamed, without a store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json

from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from ggfw.request import new_id
from ggfw.result import Result, Usage
from ggfw.server.answers import Answers, answering
from ggfw.server.calls import is_whole, underscored_id
from ggfw.server.endpoint import endpoint
from ggfw.server.families.responses_fields import ResponsesBody
from ggfw.server.generation import first_request, with_preset
from ggfw.server.logprobs import content_logprobs
from ggfw.server.state import served
from ggfw.server.streams import event, send

openai_responses = Blueprint("openai-responses")


@endpoint(openai_responses, "POST", "/v1/responses", family="openai", body=ResponsesBody)
async def responses(request: Request, body: ResponsesBody) -> HTTPResponse | None:
    """Answer a conversation given as items."""
    id = underscored_id("resp")
    async with answering(
        request, body.model, body.generation(), id=id, streaming=bool(body.stream)
    ) as answers:
        writer = _Writer(answers, body, id)
        if body.stream:
            await send(request, _frames(answers, writer), on_error=writer.failed)
            return None
        return json(await writer.whole())


@endpoint(openai_responses, "POST", "/v1/responses/input_tokens", family="openai", body=ResponsesBody)
async def input_tokens(request: Request, body: ResponsesBody) -> HTTPResponse:
    """Count the tokens a conversation would have as a prompt."""
    state = served(request)
    async with state.pool.lease(body.model) as lease:
        wanted = with_preset(body.generation(), lease.entry.preset)
        made = await asyncio.to_thread(first_request, lease.model, state, wanted, new_id("count"))
        return json({"object": "response.input_tokens", "input_tokens": len(made.prompt)})


async def _frames(answers: Answers, writer: _Writer) -> AsyncIterator[str]:
    yield writer.start()
    async for _, item in answers.pieces():
        yield writer.end(item) if isinstance(item, Result) else writer.take(item)


class _Writer:
    """Makes items of deltas, and the events that tell of them. At most one item is open."""

    def __init__(self, answers: Answers, body: ResponsesBody, id: str) -> None:
        self.answers, self.body, self.id = answers, body, id
        self.output: list[dict[str, Any]] = []
        self._created = time.time()
        self._sequence = 0
        self._heard = True
        self._gone: set[int] = set()  # places of items that were withdrawn
        self._open: Any = None  # "message", "reasoning" or ("call", number)

    # -- the whole ------------------------------------------------------------------------------------------------

    async def whole(self) -> dict[str, Any]:
        """The response of an answer that is not streamed: the same items, without anybody who hears the events."""
        self._heard = False
        response: dict[str, Any] = {}
        async for _, item in self.answers.pieces():
            if isinstance(item, Result):
                status = self._status(item)
                self._close(status)
                response = self._response(status, item)
            else:
                self.take(item)
        return response

    def start(self) -> str:
        """The events in front of the first item."""
        created = self._event("response.created", response=self._response("in_progress"))
        return created + self._event("response.in_progress", response=self._response("in_progress"))

    def take(self, delta: Delta) -> str:
        """The events of one delta."""
        if isinstance(delta, TextDelta):
            return self._text(delta)
        if isinstance(delta, ReasoningDelta):
            return self._reasoning(delta)
        return self._call(delta)

    def end(self, result: Result) -> str:
        """The events behind the last delta."""
        status = self._status(result)
        closed = self._close(status)
        return closed + self._event(f"response.{status}", response=self._response(status, result))

    def failed(self, error: dict[str, Any], message: str) -> str:
        """The events after an error on the way."""
        closed = self._close("incomplete")
        response = self._response("failed")
        response["error"] = {"code": "server_error", "message": message}
        return closed + self._event("response.failed", response=response)

    @staticmethod
    def _status(result: Result) -> str:
        return "incomplete" if result.finish_reason == "length" else "completed"

    # -- items ----------------------------------------------------------------------------------------------------

    def _text(self, delta: TextDelta) -> str:
        began = ""
        if self._open != "message":
            item = {
                "type": "message",
                "id": underscored_id("msg"),
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
            began = self._begin("message", item)
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            began += self._event("response.content_part.added", **self._place(content=True), part=dict(part))
            self._item["content"].append(part)
        part = self._item["content"][0]
        part["text"] += delta.text
        noted: list[Any] = []
        if self.body.wants_logprobs:
            noted = content_logprobs(self.answers.model.tokenizer, delta.logprobs)["content"]
            part["logprobs"] = part["logprobs"] + noted
        return began + self._event(
            "response.output_text.delta", **self._place(content=True), delta=delta.text, logprobs=noted
        )

    def _reasoning(self, delta: ReasoningDelta) -> str:
        began = ""
        if self._open != "reasoning":
            item = {
                "type": "reasoning",
                "id": underscored_id("rs"),
                "summary": [],
                "content": [],
                "status": "in_progress",
            }
            began = self._begin("reasoning", item)
            self._item["content"].append({"type": "reasoning_text", "text": ""})
        self._item["content"][0]["text"] += delta.text
        return began + self._event(
            "response.reasoning_text.delta", **self._place(content=True), delta=delta.text
        )

    def _call(self, delta: ToolCallDelta) -> str:
        if delta.withdrawn:
            return self._withdraw()
        began = ""
        if self._open != ("call", delta.index):
            item = {
                "type": "function_call",
                "id": underscored_id("fc"),
                "call_id": delta.id,
                "name": delta.name,
                "arguments": "",
                "status": "in_progress",
            }
            began = self._begin(("call", delta.index), item)
        if not delta.arguments:
            return began
        self._item["arguments"] += delta.arguments
        return began + self._event(
            "response.function_call_arguments.delta", **self._place(), delta=delta.arguments
        )

    def _withdraw(self) -> str:
        """The events that close a call which is none; its place stays taken, but the response does not hold it."""
        closed = self._close("incomplete")
        self._gone.add(len(self.output) - 1)
        return closed

    def _begin(self, what: Any, item: dict[str, Any]) -> str:
        closed = self._close("completed")
        self._open = what
        self.output.append(item)
        shown = {name: list(value) if isinstance(value, list) else value for name, value in item.items()}
        return closed + self._event(
            "response.output_item.added", output_index=len(self.output) - 1, item=shown
        )

    def _close(self, status: str) -> str:
        """The events that close the open item."""
        kind, self._open = self._open, None
        if kind is None:
            return ""
        item = self._item
        whole = item["type"] == "function_call" and is_whole(item["arguments"])
        item["status"] = "completed" if whole else status
        events = ""
        if kind == "message":
            part = item["content"][0]
            events = self._event(
                "response.output_text.done",
                **self._place(content=True),
                text=part["text"],
                logprobs=part["logprobs"],
            )
            events += self._event("response.content_part.done", **self._place(content=True), part=part)
        elif kind == "reasoning":
            text = item["content"][0]["text"]
            events = self._event("response.reasoning_text.done", **self._place(content=True), text=text)
        else:
            events = self._event(
                "response.function_call_arguments.done",
                **self._place(),
                name=item["name"],
                arguments=item["arguments"],
            )
        done = self._event("response.output_item.done", output_index=len(self.output) - 1, item=item)
        return events + done

    @property
    def _item(self) -> dict[str, Any]:
        return self.output[-1]

    def _place(self, content: bool = False) -> dict[str, Any]:
        where = {"item_id": self._item["id"], "output_index": len(self.output) - 1}
        return {**where, "content_index": 0} if content else where

    def _event(self, kind: str, **members: Any) -> str:
        if not self._heard:
            return ""
        text = event({"type": kind, "sequence_number": self._sequence, **members}, kind)
        self._sequence += 1
        return text

    def _response(self, status: str, result: Result | None = None) -> dict[str, Any]:
        body = self.body
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": time.time() if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": cut,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self.answers.id,
            "output": [item for n, item in enumerate(self.output) if n not in self._gone],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": False,
            "temperature": self.answers.requests[0].params.temperature,
            "top_p": self.answers.requests[0].params.top_p,
            "text": {"format": (body.text.format if body.text else None) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs or 0,
            "truncation": "disabled",
            "usage": None if result is None else _usage(result.usage),
        }


def _usage(used: Usage) -> dict[str, Any]:
    return {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": used.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
        "total_tokens": used.total_tokens,
    }

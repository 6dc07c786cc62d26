"""OpenAI's chat completions: ``POST /v1/chat/completions``, plain and streamed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import Field
from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json

import ggfw
from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta
from ggfw.errors import InvalidRequest
from ggfw.request import new_id
from ggfw.result import Result, ToolCall
from ggfw.server.answers import Answers, answering
from ggfw.server.constrained import ConstraintFields
from ggfw.server.endpoint import endpoint
from ggfw.server.fields import (
    Body,
    FlagHint,
    Messages,
    NumberHint,
    ObjectHint,
    ReasoningFields,
    SamplingFields,
    StreamFields,
    TextHint,
    ToolList,
    refuse,
)
from ggfw.server.figures import openai_usage, prompt_progress, summed, timings, timings_so_far
from ggfw.server.generation import Generation, own_places, with_system
from ggfw.server.logprobs import content_logprobs
from ggfw.server.pool import Lease
from ggfw.server.streams import COMMENT, DONE, event, send
from ggfw.server.tool_choice import allowed_tools

openai_chat = Blueprint("openai-chat")

#: Seconds between two messages of progress.
PROGRESS = 0.5


class StreamOptions(Body):
    """``stream_options``."""

    include_usage: bool | None = None
    include_obfuscation: FlagHint = None


class ChatBody(ConstraintFields, ReasoningFields, StreamFields, SamplingFields):
    """Body of ``POST /v1/chat/completions``."""

    messages: Messages
    model: str | None = None
    system_prompt: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str | None] | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: ToolList | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    cache_prompt: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning: dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    audio: Any = None
    modalities: list[str] | None = None
    web_search_options: Any = None
    prediction: Any = None
    moderation: Any = None
    verbosity: Literal["low", "medium", "high"] | None = None
    reasoning_format: Literal["auto", "none", "deepseek", "deepseek-legacy"] | None = None
    parse_tool_calls: bool | None = None
    metadata: ObjectHint = None
    prompt_cache_key: TextHint = None
    prompt_cache_options: ObjectHint = None
    prompt_cache_retention: TextHint = None
    safety_identifier: TextHint = None
    service_tier: TextHint = None
    store: FlagHint = None
    user: TextHint = None
    id_slot: NumberHint = None

    def names(self) -> dict[str, str]:
        """See :class:`Body`."""
        own = {"max_tokens": "max_completion_tokens"} if self.max_completion_tokens is not None else {}
        return {**super().names(), **own}

    def generation(self) -> Generation:
        """What is asked for, in the engine's words.

        Raises:
            InvalidRequest: a field that cannot be honoured.
        """
        refuse(
            self,
            functions="use tools",
            function_call="use tool_choice",
            audio="ask for text",
            web_search_options="give the model a tool of your own",
            prediction="leave it out",
            moderation="leave it out",
        )
        if self.verbosity not in (None, "medium"):
            refuse(self, verbosity="ask for it in the system prompt")
        if self.reasoning_format == "none":
            refuse(self, reasoning_format="reasoning is always a field of its own")
        if self.parse_tool_calls is False:
            raise InvalidRequest(
                "parse_tool_calls: false is not supported; send no tools", "parse_tool_calls"
            )
        if self.modalities is not None and self.modalities != ["text"]:
            refuse(self, modalities="it writes text only")
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs to be true", "top_logprobs")
        tools, choice = allowed_tools(self.tools, self.tool_choice)
        limit = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        variables = dict(self.chat_template_kwargs or {})
        for name in ("add_generation_prompt", "continue_final_message"):
            if getattr(self, name) is not None:
                variables.setdefault(name, getattr(self, name))
        effort = self.reasoning_effort or (self.reasoning or {}).get("effort")
        return Generation(
            messages=with_system(self.messages, self.system_prompt),
            places=own_places(self.messages, "system_prompt") if self.system_prompt else (),
            n=1 if self.n is None else self.n,
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            thinking=self.enable_thinking,
            effort=effort,
            budget=self.reasoning_budget,
            template_args=variables,
            cache_prompt=self.cache_prompt,
            options={
                **self.sampling(),
                "max_tokens": limit,
                "stop": self.stop,
                "ignore_eos": self.ignore_eos,
                "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
                "grammar": self.answer_grammar(),
            },
        )


@endpoint(openai_chat, "POST", "/v1/chat/completions", family="openai", body=ChatBody)
async def chat_completions(request: Request, body: ChatBody) -> HTTPResponse | None:
    """Answer a conversation."""
    id = new_id("chatcmpl")
    async with answering(
        request, body.model, body.generation(), id=id, streaming=bool(body.stream)
    ) as answers:
        if body.stream:
            stream = _Stream(answers, body, id)
            await send(request, stream.frames(), beat=stream.beat, every=stream.every)
            return None
        results = await answers.results()
        return json(completion(answers, results, id))


class _Stream:
    """Role chunks, deltas, a chunk with the finish reason per choice, perhaps usage, end mark."""

    def __init__(self, answers: Answers, body: ChatBody, id: str) -> None:
        self.answers = answers
        self.logprobs = bool(body.logprobs)
        self.usage = bool(body.stream_options and body.stream_options.include_usage)
        self.timings = bool(body.timings_per_token)
        self.progress = bool(body.return_progress)
        self.every = PROGRESS if self.progress else None
        self.head = head(answers, id, "chat.completion.chunk")
        self._told = -1

    def chunk(self, index: int, delta: dict[str, Any], reason: str | None = None, **more: Any) -> str:
        choice = {"index": index, "delta": delta, "finish_reason": reason}
        if self.logprobs:
            choice["logprobs"] = more.pop("logprobs", None)
        return event({**self.head, "choices": [choice], **more})

    def beat(self) -> str | None:
        """Progress of the prompt where it was asked for, else a comment, which clients skip."""
        if self.progress:
            now = self.answers.progress()
            if now is not None and not now.drawn and now.processed != self._told:
                self._told = now.processed
                return self.chunk(0, {}, prompt_progress=prompt_progress(now))
        return COMMENT

    async def frames(self) -> AsyncIterator[str]:
        # The first chunks come in the order of the choices: clients add a choice where they see its index first.
        yield "".join(self.chunk(n, {"role": "assistant", "content": ""}) for n in range(self.answers.n))
        results: list[Result] = []
        async for index, item in self.answers.pieces():
            if isinstance(item, Result):
                results.append(item)
                yield self.chunk(index, {}, item.finish_reason, timings=timings(item))
                continue
            more: dict[str, Any] = {}
            if self.logprobs and isinstance(item, TextDelta):
                more["logprobs"] = content_logprobs(self.answers.model.tokenizer, item.logprobs)
            if self.timings and (now := self.answers.progress(index)) is not None:
                more["timings"] = timings_so_far(now)
            yield self.chunk(index, delta_object(item), **more)
        if self.usage:
            yield event({**self.head, "choices": [], "usage": openai_usage(summed(results))})
        yield DONE


def delta_object(delta: Delta) -> dict[str, Any]:
    """OpenAI's ``delta`` for one of ours."""
    if isinstance(delta, TextDelta):
        return {"content": delta.text}
    if isinstance(delta, ReasoningDelta):
        return {"reasoning_content": delta.text}
    if delta.withdrawn:  # OpenAI's form cannot take a call back; clients that know this member can
        return {"withdrawn_tool_calls": [delta.index]}
    function: dict[str, Any] = {"arguments": delta.arguments}
    call: dict[str, Any] = {"index": delta.index, "function": function}
    if delta.id:  # only the first piece of a call says whose it is; clients join what is repeated
        call |= {"id": delta.id, "type": "function", "function": {"name": delta.name, **function}}
    return {"tool_calls": [call]}


def call_object(call: ToolCall) -> dict[str, Any]:
    """OpenAI's form of a call."""
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def message_object(result: Result) -> dict[str, Any]:
    """The assistant's message; never with an empty list of calls, which clients take for calls."""
    message: dict[str, Any] = {"role": "assistant", "content": result.text}
    if result.reasoning:
        message["reasoning_content"] = result.reasoning
    if result.tool_calls:
        message["content"] = result.text or None
        message["tool_calls"] = [call_object(call) for call in result.tool_calls]
    return message


def completion(answers: Answers, results: list[Result], id: str) -> dict[str, Any]:
    """The whole answer."""
    choices = []
    for index, result in enumerate(results):
        noted = None
        if result.logprobs is not None:
            noted = content_logprobs(answers.model.tokenizer, result.logprobs)
        choices.append(
            {
                "index": index,
                "message": message_object(result),
                "finish_reason": result.finish_reason,
                "logprobs": noted,
            }
        )
    return {
        **head(answers, id, "chat.completion"),
        "choices": choices,
        "usage": openai_usage(summed(results)),
        "timings": timings(results[0]),
    }


def head(answers: Answers | Lease, id: str, kind: str) -> dict[str, Any]:
    """What every object of one answer begins with."""
    return {
        "id": id,
        "object": kind,
        "created": int(time.time()),
        "model": answers.id,
        "system_fingerprint": f"ggfw-{ggfw.__version__}",
    }

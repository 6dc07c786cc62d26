"""ggfw's own endpoints: ``/generate``, ``/models``, ``/models/load``, ``/v1/skills``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json

from ggfw.chat.deltas import ReasoningDelta, TextDelta
from ggfw.errors import InvalidRequest
from ggfw.request import new_id
from ggfw.result import Result
from ggfw.server.answers import Answers, answering
from ggfw.server.constrained import ConstraintFields
from ggfw.server.endpoint import endpoint
from ggfw.server.entries import Entry
from ggfw.server.families.openai_chat import PROGRESS as PROMPT_PROGRESS
from ggfw.server.families.openai_chat import call_object, delta_object
from ggfw.server.families.openai_models import model_row
from ggfw.server.fields import Body, Messages, ReasoningFields, SamplingFields, StreamFields, ToolList
from ggfw.server.figures import prompt_progress, timings_so_far
from ggfw.server.generation import Generation, own_places, with_system
from ggfw.server.pool import Lease, Pool
from ggfw.server.state import served
from ggfw.server.streams import COMMENT, event, send
from ggfw.server.tool_choice import allowed_tools

native = Blueprint("native")

#: Seconds between two events of a model that is being loaded.
PROGRESS = 0.25


class GenerateBody(ConstraintFields, ReasoningFields, StreamFields, SamplingFields):
    """Body of ``POST /generate``."""

    prompt: str | None = None
    messages: Messages | None = None
    model: str | None = None
    system_prompt: str | None = None
    raw: bool | None = None
    max_tokens: int | None = None
    stop: str | list[str | None] | None = None
    ignore_eos: bool | None = None
    tools: ToolList | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    cache_prompt: bool | None = None

    def names(self) -> dict[str, str]:
        """See :class:`Body`."""
        return {**super().names(), **({"messages": "prompt"} if self.messages is None else {})}

    def generation(self) -> Generation:
        """What is asked for, in the engine's words.

        Raises:
            InvalidRequest: neither prompt nor messages, or both.
        """
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("exactly one of prompt and messages must be given", "prompt")
        if self.raw and (self.messages is not None or self.system_prompt or self.tools):
            raise InvalidRequest("raw takes a prompt alone, without messages, system_prompt and tools", "raw")
        tools, choice = allowed_tools(self.tools, self.tool_choice)
        messages = self.messages
        if messages is None and not self.raw:
            messages = [{"role": "user", "content": self.prompt}]
        return Generation(
            messages=None if messages is None else with_system(messages, self.system_prompt),
            places=own_places(messages, "system_prompt") if self.system_prompt else (),
            prompt=self.prompt,
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            cache_prompt=self.cache_prompt,
            **self.reasoning_options(),
            options={
                **self.sampling(),
                "max_tokens": self.max_tokens,
                "stop": self.stop,
                "ignore_eos": self.ignore_eos,
                "grammar": self.answer_grammar(),
            },
        )


class LoadBody(Body):
    """Body of ``POST /models/load``."""

    path: str | None = None
    model: str | None = None
    stream: bool | None = None


@endpoint(native, "POST", "/generate", family="openai", body=GenerateBody)
async def generate(request: Request, body: GenerateBody) -> HTTPResponse | None:
    """Answer a prompt or a conversation."""
    wanted, id = body.generation(), new_id("gen")
    async with answering(request, body.model, wanted, id=id, streaming=bool(body.stream)) as answers:
        if body.stream:
            told = _Told(answers, body)
            await send(request, told.frames(), beat=told.beat, every=told.every)
            return None
        (result,) = await answers.results()
        return json(_whole(result))


class _Told:
    """Pieces, and at the end the whole answer with ``done``."""

    def __init__(self, answers: Answers, body: GenerateBody) -> None:
        self.answers, self.body = answers, body
        self.every = PROMPT_PROGRESS if body.return_progress else None
        self._told = -1

    def beat(self) -> str:
        """Progress of the prompt where it was asked for, else a comment."""
        now = self.answers.progress() if self.body.return_progress else None
        if now is not None and not now.drawn and now.processed != self._told:
            self._told = now.processed
            return event({"text": "", "done": False, "prompt_progress": prompt_progress(now)})
        return COMMENT

    async def frames(self) -> AsyncIterator[str]:
        yield event({"text": "", "done": False})
        async for _, item in self.answers.pieces():
            if isinstance(item, Result):
                yield event({**_whole(item), "done": True})
                continue
            more: dict[str, Any] = {"done": False}
            if self.body.timings_per_token and (now := self.answers.progress()) is not None:
                more["timings"] = timings_so_far(now)
            if isinstance(item, TextDelta):
                yield event({"text": item.text, **more})
            elif isinstance(item, ReasoningDelta):
                yield event({"reasoning": item.text, **more})
            else:
                yield event({**delta_object(item), **more})


def _whole(result: Result) -> dict[str, Any]:
    t, used = result.timings, result.usage
    out: dict[str, Any] = {
        "text": result.text,
        "prompt_tokens": used.prompt_tokens,
        "cached_tokens": used.cached_tokens,
        "generated_tokens": used.completion_tokens,
        "ttft_ms": round(t.ttft, 3),
        "prefill_ms": round(t.prefill, 3),
        "decode_ms": round(t.decode, 3),
        "total_ms": round(t.total, 3),
        "finish_reason": result.finish_reason,
    }
    if result.reasoning:
        out["reasoning"] = result.reasoning
    if result.tool_calls:
        out["tool_calls"] = [call_object(call) for call in result.tool_calls]
    return out


@endpoint(native, "GET", "/models", family="openai")
async def models(request: Request) -> HTTPResponse:
    """List the models with their files and states, also in OpenAI's form."""
    pool = served(request).pool
    await pool.refresh()
    rows = pool.rows()
    return json(
        {"object": "list", "models": [_row(entry) for entry in rows], "data": [model_row(e) for e in rows]}
    )


@endpoint(native, "POST", "/models/load", family="openai", body=LoadBody)
async def load(request: Request, body: LoadBody) -> HTTPResponse | None:
    """Load a model that the server knows, by id or name; with ``stream``, tell how far that has come."""
    name = body.model or body.path
    if not name:
        raise InvalidRequest("model is missing", "model")
    pool = served(request).pool
    if body.stream:
        await pool.known(name)  # an unknown name is a 404, not an event of a stream
        await send(request, _loading(pool, name))
        return None
    async with pool.lease(name) as lease:
        return json(_loaded(lease))


def _loaded(lease: Lease) -> dict[str, Any]:
    return {"ok": True, "model": _row(lease.entry), "load_ms": round(lease.load_ms, 1)}


async def _loading(pool: Pool, name: str) -> AsyncIterator[str]:
    """Events with the state and the progress, and at the end what the plain answer would have been."""

    async def load() -> dict[str, Any]:
        async with pool.lease(name) as lease:
            return _loaded(lease)

    work = asyncio.ensure_future(load())
    try:
        entry = pool.find(name)
        while not work.done():
            own = entry.base or entry
            if own.watch is not None:
                yield event({"status": own.state, "model": entry.id, **own.watch.progress()})
            await asyncio.wait((work,), timeout=PROGRESS)
        yield event({"status": "loaded", **await work})
    finally:
        work.cancel()


def _row(entry: Entry) -> dict[str, Any]:
    info = entry.info
    return {
        "id": entry.id,
        "name": info.get("name") or entry.id,
        "path": info.get("path"),
        "architecture": info.get("architecture"),
        "quant": info.get("quant"),
        "size_gb": round((info.get("size_bytes") or 0) / 1e9, 3),
        "context": info.get("n_ctx") or info.get("n_ctx_train"),
        "supported": True,
        "loaded": entry.model is not None,
        "state": entry.state,
        **({"loading": watch.progress()} if (watch := (entry.base or entry).watch) is not None else {}),
    }


@endpoint(native, "GET", "/v1/skills", family="openai")
async def skills(request: Request) -> HTTPResponse:
    """List the skills that conversations may load."""
    found = served(request).skills or {}
    rows = [{"name": one.name, "description": one.description} for one in found.values()]
    return json({"skills": rows, "warnings": list(getattr(found, "warnings", ()))})

"""llama-server's tools: ``/tokenize``, ``/detokenize``, ``/apply-template``, ``/props``, ``/slots``."""

from __future__ import annotations

import asyncio
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json

import ggfw
from ggfw.errors import InvalidRequest
from ggfw.server.endpoint import endpoint
from ggfw.server.families.llama_server import settings
from ggfw.server.fields import Body, Messages, ReasoningFields, ToolList
from ggfw.server.generation import Generation, first_request, with_preset
from ggfw.server.state import served

if TYPE_CHECKING:
    from ggfw.tokenizer import Tokenizer

llama_tools = Blueprint("llama-tools")

#: Characters that ``/tokenize`` takes.
MOST_TEXT = 1 << 19


class TokenizeBody(Body):
    """Body of ``POST /tokenize``."""

    content: str | list[Any]
    model: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(Body):
    """Body of ``POST /detokenize``."""

    tokens: list[Annotated[int, Field(ge=0)]]
    model: str | None = None


class TemplateBody(ReasoningFields):
    """Body of ``POST /apply-template``."""

    messages: Messages
    model: str | None = None
    tools: ToolList | None = None
    tool_choice: str | dict[str, Any] | None = None


@endpoint(llama_tools, "POST", "/tokenize", family="openai", body=TokenizeBody)
async def tokenize(request: Request, body: TokenizeBody) -> HTTPResponse:
    """Encode a text."""
    async with served(request).pool.lease(body.model) as lease:
        tokenizer = lease.model.tokenizer
        parts = [body.content] if isinstance(body.content, str) else body.content
        n_characters = sum(len(part) for part in parts if isinstance(part, str))
        if n_characters > MOST_TEXT:
            raise InvalidRequest(
                f"content has {n_characters} characters; at most {MOST_TEXT} are encoded at once", "content"
            )

        def encode() -> list[int]:
            ids: list[int] = []
            for n, part in enumerate(parts):
                if isinstance(part, str):
                    special = body.add_special and n == 0
                    ids += tokenizer.encode(part, add_special=special, parse_special=body.parse_special)
                elif type(part) is int:
                    ids.append(part)
                else:
                    raise InvalidRequest(f"content[{n}] must be text or a token id", f"content[{n}]")
            return ids

        ids = await asyncio.to_thread(encode)
        _check(ids, tokenizer.n_vocab, "content")
        if not body.with_pieces:
            return json({"tokens": ids})
        return HTTPResponse(
            await asyncio.to_thread(_with_pieces, ids, tokenizer), content_type="application/json"
        )


def _with_pieces(ids: list[int], tokenizer: Tokenizer) -> bytearray:
    """The answer as JSON text: as objects, hundreds of thousands of tokens would take hundreds of MiB."""
    texts = {i: f'{{"id":{i},"piece":{dumps(_piece(tokenizer.piece(i)))}}}'.encode() for i in set(ids)}
    out = bytearray(b'{"tokens":[')
    for n in range(0, len(ids), 4096):
        out += b"," if n else b""
        out += b",".join(texts[i] for i in ids[n : n + 4096])
    out += b"]}"
    return out


def _piece(piece: bytes) -> str | list[int]:
    """Text where it is text, else bytes: a token may be a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _check(ids: list[int], n_vocab: int, param: str) -> None:
    for i in ids:
        if not 0 <= i < n_vocab:
            raise InvalidRequest(f"token id {i} is not in the vocabulary of {n_vocab}", param)


@endpoint(llama_tools, "POST", "/detokenize", family="openai", body=DetokenizeBody)
async def detokenize(request: Request, body: DetokenizeBody) -> HTTPResponse:
    """Decode token ids."""
    async with served(request).pool.lease(body.model) as lease:
        _check(body.tokens, lease.model.tokenizer.n_vocab, "tokens")
        text = await asyncio.to_thread(lease.model.detokenize, body.tokens, special=True)
        return json({"content": text})


@endpoint(llama_tools, "POST", "/apply-template", family="openai", body=TemplateBody)
async def apply_template(request: Request, body: TemplateBody) -> HTTPResponse:
    """Render a conversation to the prompt it would become."""
    state = served(request)
    async with state.pool.lease(body.model) as lease:
        wanted = Generation(
            messages=body.messages,
            tools=body.tools,
            tool_choice=body.tool_choice,
            **body.reasoning_options(),
        )
        wanted = with_preset(wanted, lease.entry.preset)
        made = await asyncio.to_thread(first_request, lease.model, state, wanted, "template")
        return json({"prompt": lease.model.detokenize(made.prompt, special=True)})


@endpoint(llama_tools, "GET", "/props", family="openai")
async def props(request: Request) -> HTTPResponse:
    """Describe the model and what requests get when they do not say otherwise."""
    state = served(request)
    async with state.pool.lease(request.args.get("model")) as lease:
        model, tokenizer = lease.model, lease.model.tokenizer
        params = model.request([0], **{k: v for k, v in state.defaults.items()}).params

        def text(token: int | None) -> str:
            return "" if token is None else tokenizer.piece(token).decode("utf-8", "replace")

        return json(
            {
                "default_generation_settings": {
                    "n_ctx": model.n_ctx,
                    "params": settings(params, state.defaults.get("max_tokens"), model.n_ctx),
                },
                "total_slots": model.engine.scheduler.n_parallel,
                "model_alias": lease.id,
                "model_path": str(model.gguf.path or ""),
                "modalities": {"vision": False, "audio": False},
                "chat_template": model.template.source,
                "chat_template_caps": model.template.capabilities.to_dict(),
                "bos_token": text(tokenizer.bos_id),
                "eos_token": text(tokenizer.eos_id),
                "build_info": f"ggfw {ggfw.__version__}",
            }
        )


@endpoint(llama_tools, "GET", "/slots", family="openai")
async def slots(request: Request) -> HTTPResponse:
    """Say what runs. No text is shown: it belongs to those who asked."""
    async with served(request).pool.lease(request.args.get("model")) as lease:
        engine = lease.model.engine
        running = list(engine.scheduler.running)
        rows = []
        for n in range(engine.scheduler.n_parallel):
            row: dict[str, Any] = {"id": n, "n_ctx": lease.model.n_ctx, "is_processing": n < len(running)}
            if n < len(running):
                work = running[n]
                row |= {
                    "id_task": work.request.id,
                    "n_prompt_tokens": work.n_prompt,
                    "n_prompt_tokens_processed": min(work.n_fed, work.n_prompt),
                    "next_token": {"n_decoded": len(work.tokens), "n_remain": work.limit - len(work.tokens)},
                }
            rows.append(row)
        return json(rows)

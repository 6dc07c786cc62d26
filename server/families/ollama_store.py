"""Ollama's changes of the store: ``/api/pull``, ``create``, ``copy``, ``delete``, ``blobs``; and ``/``."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from typing import Any

from sanic import Blueprint, Request
from sanic.response import HTTPResponse, empty, json, redirect, text

from ggfw.chat.template import ChatTemplate
from ggfw.errors import GgfwError, InvalidRequest, ModelNotFound, TemplateError, UnsupportedError
from ggfw.server.endpoint import endpoint
from ggfw.server.families.ollama_fields import Options
from ggfw.server.families.ollama_lists import named
from ggfw.server.fields import Body, refuse
from ggfw.server.state import State, served
from ggfw.server.store import Store, check_disk
from ggfw.server.streams import LINES, line, send

#: Bytes of an upload between two looks at the disk.
CHECK_EVERY = 1 << 26

ollama_store = Blueprint("ollama-store")

SUCCESS = {"status": "success"}


class PullBody(Body):
    """Body of ``POST /api/pull``."""

    model: str | None = None
    name: str | None = None
    insecure: bool | None = None
    stream: bool | None = None


class CreateBody(Body):
    """Body of ``POST /api/create``."""

    model: str | None = None
    name: str | None = None
    from_: str | None = None
    files: dict[str, str] | None = None
    system: str | None = None
    template: str | None = None
    messages: list[dict[str, Any]] | None = None
    parameters: Options | None = None
    license: str | list[str] | None = None
    adapters: dict[str, str] | None = None
    quantize: str | None = None
    modelfile: str | None = None
    stream: bool | None = None

    model_config = {**Body.model_config, "alias_generator": lambda name: name.rstrip("_")}


class CopyBody(Body):
    """Body of ``POST /api/copy``."""

    source: str
    destination: str


class DeleteBody(Body):
    """Body of ``DELETE /api/delete``."""

    model: str | None = None
    name: str | None = None


@endpoint(ollama_store, "GET HEAD", "/", family="ollama", open=True)
async def root(request: Request) -> Any:
    """Say that the server is there; browsers get the chat page, where there is one."""
    page = served(request).page
    if page is not None and "text/html" in request.headers.get("accept", ""):
        if not request.path.endswith("/"):  # below a prefix: what the page names is relative to its own place
            return redirect(f"{request.path}/")
        return page(request)
    return text("Ollama is running", headers=None if page is None else {"Vary": "Accept"})


#: What templates in Go's language look like.
GO = re.compile(r"{{-?\s*(?:(?:if|range|end|else|with|template|block)\b|[.$])")


def check_template(source: str) -> None:
    """Check that a chat template can be used.

    Raises:
        InvalidRequest: it is in Go's language, or cannot be compiled.
    """
    if GO.search(source) and "{%" not in source:
        raise InvalidRequest(
            "template is in Go's language; leave it out (the model has its own), or write one in Jinja",
            "template",
        )
    try:
        ChatTemplate(source).render([{"role": "user", "content": "x"}])
    except TemplateError as error:
        if "compiled" in str(error):
            raise InvalidRequest(f"template: {error}", "template") from None


def _store(state: State) -> Store:
    if state.store is None:
        raise UnsupportedError("this server has no folder for models; start it with --models-dir")
    state.store.check_open()
    return state.store


@endpoint(ollama_store, "POST", "/api/pull", family="ollama", body=PullBody)
async def pull(request: Request, body: PullBody) -> HTTPResponse | None:
    """Fetch a model, with a line per piece of progress."""
    refuse(body, insecure="what is fetched is always verified")
    state = served(request)
    name = named(body.model, body.name)
    lines = _pulling(state, name)
    if body.stream is False:
        async for _ in lines:
            pass
        return json(SUCCESS)
    await send(request, lines, content_type=LINES, beat=lambda: line({"status": f"pulling {name}"}))
    return None


async def _pulling(state: State, name: str) -> AsyncIterator[str]:
    yield line({"status": "pulling manifest"})
    try:
        await state.pool.known(name)
    except ModelNotFound:
        store = _store(state)
        digest = f"sha256:{store.digest(name)}"
        async for what, done, total in _progress(store, name):
            if what.startswith("checking"):
                yield line({"status": "verifying sha256 digest"})
            else:
                parts = {"digest": digest, "completed": done, **({"total": total} if total else {})}
                yield line({"status": f"pulling {digest[7:19]}", **parts})
        yield line({"status": "writing manifest"})
    yield line(SUCCESS)


async def _progress(store: Store, name: str) -> AsyncIterator[tuple[str, int, int | None]]:
    """Pull in a thread; only the latest figures are told. Leaving early stops the transfer."""
    loop = asyncio.get_running_loop()
    news = asyncio.Event()
    latest: list[Any] = [None]
    left = False

    def tell(what: str, done: int, total: int | None) -> None:
        if left:
            raise GgfwError("nobody waits for the model any more")
        latest[0] = (what, done, total)
        loop.call_soon_threadsafe(news.set)

    work = asyncio.ensure_future(asyncio.to_thread(store.pull, name, tell))
    work.add_done_callback(lambda _: news.set())
    try:
        while True:
            await news.wait()
            news.clear()
            told, latest[0] = latest[0], None
            if told is not None:
                yield told
            if work.done():
                work.result()
                return
            await asyncio.sleep(0.1)
    finally:
        left = True
        if not work.done():
            work.add_done_callback(lambda done: done.exception())  # looked at, so that it is not reported


@endpoint(ollama_store, "POST", "/api/create", family="ollama", body=CreateBody)
async def create(request: Request, body: CreateBody) -> HTTPResponse | None:
    """Make a model from another one (or an uploaded file) with its own system prompt, messages and parameters."""
    refuse(
        body,
        adapters="adapters are not supported",
        quantize="quantise the file with `ggfw quantize`",
        modelfile="send from, system and parameters as fields",
    )
    store = _store(served(request))
    await store.pool.refresh()
    given = body.parameters or Options()
    facts: dict[str, Any] = {"options": {k: v for k, v in given.given().items() if v is not None}}
    for name in ("system", "messages", "license", "template"):
        if getattr(body, name):
            facts[name] = getattr(body, name)
    if body.template:
        check_template(body.template)
    if given.num_ctx is not None:
        facts["num_ctx"] = given.num_ctx
    await asyncio.to_thread(store.create, named(body.model, body.name), facts, body.from_, body.files or {})
    if body.stream is False:
        return json(SUCCESS)
    steps = ({"status": "using existing layer"}, {"status": "writing manifest"}, SUCCESS)
    return text("".join(map(line, steps)), content_type=LINES)


@endpoint(ollama_store, "POST", "/api/copy", family="ollama", body=CopyBody)
async def copy(request: Request, body: CopyBody) -> HTTPResponse:
    """Give a model a second name."""
    store = _store(served(request))
    await store.pool.refresh()
    store.copy(body.source, body.destination)
    return empty(200)


@endpoint(ollama_store, "DELETE", "/api/delete", family="ollama", body=DeleteBody)
async def delete(request: Request, body: DeleteBody) -> HTTPResponse:
    """Remove a model."""
    store = _store(served(request))
    await store.pool.refresh()
    store.delete(named(body.model, body.name))
    return empty(200)


@endpoint(ollama_store, "HEAD", "/api/blobs/<digest>", family="ollama")
async def has_blob(request: Request, digest: str) -> HTTPResponse:
    """Say whether a blob is there."""
    return empty(200 if _store(served(request)).blob(digest).is_file() else 404)


@endpoint(ollama_store, "POST", "/api/blobs/<digest>", family="ollama", stream=True)
async def put_blob(request: Request, digest: str) -> HTTPResponse:
    """Take a file; its digest must be the one in the path."""
    store = _store(served(request))
    path = store.blob(digest)
    fresh = store.unfinished(path)
    found = hashlib.sha256()
    written = checked = 0
    try:
        with fresh.open("xb") as file:
            check_disk(path.parent, int(request.headers.get("content-length") or 0))
            while (piece := await request.stream.read()) is not None:  # type: ignore[union-attr]
                written += len(piece)
                if written >= checked:  # without a length, or beside others who write
                    check_disk(path.parent)
                    checked = written + CHECK_EVERY
                found.update(piece)
                file.write(piece)
        if f"sha256-{found.hexdigest()}" != path.name:
            raise InvalidRequest(f"the digest of what was sent is sha256:{found.hexdigest()}", "digest")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return empty(201)

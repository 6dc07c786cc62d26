"""The server inside other programs: an application of its own, below a prefix, under another framework."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from fake_model import FakeModel, wait_until
from live_server import LiveServer
from sanic import Sanic
from served import CHATML, HI

from ggfw.library import Model
from ggfw.server import Asgi, create_app, mount

FOLDER = Path(__file__).parents[1] / "examples"
BROWSER = {"Accept": "text/html"}


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def model(script: str = "hello", **options: Any) -> Model:
    return Model(FakeModel(script, template=CHATML, **options))  # type: ignore[arg-type]


def test_on_its_own() -> None:
    with model() as loaded:
        app = example("serve_model").build(loaded)
        with LiveServer(app) as live, httpx.Client(base_url=live.url, timeout=20) as http:
            answer = http.post("/v1/chat/completions", json={"messages": HI, "temperature": 0}).json()
            assert answer["choices"][0]["message"]["content"] == "hello"
            assert "<title>ggfw</title>" in http.get("/", headers=BROWSER).text


def test_an_engine_will_do() -> None:
    with model() as loaded:
        app = create_app(loaded.engine, max_queue=3)
        assert loaded.engine.max_queue == 3
        with LiveServer(app) as live, httpx.Client(base_url=live.url, timeout=20) as http:
            answer = http.post("/v1/chat/completions", json={"messages": HI, "temperature": 0}).json()
            assert answer["choices"][0]["message"]["content"] == "hello"
        assert loaded.generate("x").text == "hello", "its owner still has it"


def test_in_a_sanic_application_with_a_prefix() -> None:
    with model() as loaded:
        app = example("in_sanic_app").build(loaded, key="k")
        app.config.TOUCHUP = False
        with LiveServer(app) as live, httpx.Client(base_url=live.url, timeout=20) as http:
            assert http.get("/").json()["assistant"] == "/llm/chat"
            assert http.get("/slogan").json() == {"slogan": "hello"}
            key = {"Authorization": "Bearer k"}
            assert http.post("/llm/v1/chat/completions", json={"messages": HI}).status_code == 401
            body = {"messages": HI, "temperature": 0, "stream": True}
            assert "[DONE]" in http.post("/llm/v1/chat/completions", json=body, headers=key).text
            assert "<title>ggfw</title>" in http.get("/llm/chat").text
            page = http.get("/llm", headers=BROWSER)
            assert page.status_code in (302, 307) and page.headers["location"] == "/llm/"
            assert "<title>ggfw</title>" in http.get("/llm/", headers=BROWSER).text
            assert http.get("/llm/", headers=key).text == "Ollama is running"
            for name in (
                "app.js",
                "style.css",
                "icon.svg",
            ):  # relative to the page, they stay below the prefix
                assert http.get(f"/llm/ui/{name}").status_code == 200
                assert "default-src 'none'" in http.get(f"/llm/ui/{name}").headers["content-security-policy"]
            assert http.get("/nothing").status_code == 404 and http.get("/v1/models").status_code == 404


def test_two_models_in_two_applications_of_a_process() -> None:
    with model("one") as first, model("two") as second:
        host = Sanic("host-of-one", configure_logging=False)
        host.config.TOUCHUP = False
        mount(host, first, url_prefix="/a")
        with LiveServer(host) as live, LiveServer(create_app(second)) as other:
            for url, text in ((f"{live.url}/a", "one"), (other.url, "two")):
                body = {"messages": HI, "temperature": 0}
                answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20).json()
                assert answer["choices"][0]["message"]["content"] == text


# -- ASGI ------------------------------------------------------------------------------------------


async def ask(
    app: Asgi, method: str, path: str, body: Any = None, *, root: str = "", leave_after: int | None = None
) -> tuple[int, dict[str, str], str]:
    """One request as an ASGI server makes it; ``leave_after``: pieces of the answer until the client closes."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "root_path": root, "query_string": b"",
        "headers": [(b"host", b"x"), (b"content-length", str(len(data)).encode())],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    pieces = [data[i : i + 40_000] for i in range(0, len(data), 40_000)] or [b""]
    left = asyncio.Event()
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if pieces:
            piece = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if leave_after is not None and len(sent) > leave_after:
            left.set()

    if leave_after == 0:
        asyncio.get_running_loop().call_later(0.3, left.set)
    await app(scope, receive, send)
    if not sent:
        return 0, {}, ""
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(m.get("body", b"") for m in sent[1:]).decode()


def test_as_an_asgi_application() -> None:
    async def main() -> None:
        with model() as loaded:
            handlers = list(logging.getLogger().handlers)
            app = Asgi(create_app(loaded, ui=True, max_body=100_000))
            status, headers, text = await ask(app, "GET", "/llm/health", root="/llm")
            assert status == 200 and json.loads(text)["ok"] and headers["x-request-id"]
            body = {"messages": HI, "temperature": 0}
            status, _, text = await ask(app, "POST", "/llm/v1/chat/completions", body, root="/llm")
            assert status == 200 and json.loads(text)["choices"][0]["message"]["content"] == "hello"
            stream = {**body, "stream": True}
            status, headers, text = await ask(app, "POST", "/v1/chat/completions", stream)
            assert headers["content-type"].startswith("text/event-stream") and text.endswith(
                "data: [DONE]\n\n"
            )
            status, _, text = await ask(app, "GET", "/llm/chat", root="/llm")
            assert status == 200 and "<title>ggfw</title>" in text
            status, _, text = await ask(app, "POST", "/v1/messages", {"messages": []})
            assert status == 400 and json.loads(text)["type"] == "error"
            status, _, text = await ask(app, "POST", "/v1/chat/completions", b"x" * 150_000)
            assert status == 413 and json.loads(text)["error"]["code"] == "payload_too_large"
            assert (await ask(app, "GET", "/nowhere"))[0] == 404
            assert logging.getLogger().handlers == handlers
            await app.stop()

    asyncio.run(main())


@pytest.mark.parametrize("leave_after", [0, 5])
def test_a_client_that_leaves_an_asgi_server_frees_its_slot(leave_after: int) -> None:
    async def main() -> None:
        with model("", endless=True, n_ctx=4096, n_parallel=1) as loaded:
            loaded.engine.model.executor.delay = 0.005  # type: ignore[attr-defined]
            lines: list[Any] = []
            app = Asgi(create_app(loaded, log=lambda e, f: lines.append(e)))
            body = {"messages": HI, "stream": bool(leave_after)}
            started = time.monotonic()
            status, _, _ = await ask(app, "POST", "/v1/chat/completions", body, leave_after=leave_after)
            assert time.monotonic() - started < 5 and status == (200 if leave_after else 0)
            end = time.monotonic() + 3
            while loaded.engine.scheduler and time.monotonic() < end:
                await asyncio.sleep(0.01)
            assert not loaded.engine.scheduler and "inference_abandoned" in lines

    asyncio.run(main())


def test_asgi_servers_tell_of_start_and_end() -> None:
    async def main() -> None:
        with model() as loaded:
            app = Asgi(create_app(loaded))
            events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
            said: list[str] = []

            async def send(message: dict[str, Any]) -> None:
                said.append(message["type"])

            running = asyncio.ensure_future(app({"type": "lifespan"}, events.get, send))
            await events.put({"type": "lifespan.startup"})
            while not said:
                await asyncio.sleep(0.01)
            assert (await ask(app, "GET", "/health"))[0] == 200
            await events.put({"type": "lifespan.shutdown"})
            await running
            assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
            with pytest.raises(RuntimeError, match="websocket"):
                await app({"type": "websocket"}, events.get, send)

    asyncio.run(main())


def test_a_host_may_start_and_end_again() -> None:
    """In an event loop of its own each time, as clients for tests do it."""
    with model() as loaded:
        app = Asgi(create_app(loaded))

        async def once() -> int:
            await app.start()
            status, *_ = await ask(app, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 2})
            await app.stop()
            return int(status)

        assert [asyncio.run(once()) for _ in range(3)] == [200, 200, 200]


def uvicorn_server(app: Any) -> tuple[str, Callable[[], None]]:
    """``app`` under uvicorn on a real socket; gives its address and what ends it."""
    uvicorn = pytest.importorskip("uvicorn")
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    thread = threading.Thread(target=lambda: server.run(sockets=[sock]), daemon=True)
    thread.start()
    wait_until(lambda: server.started, 20)

    def end() -> None:
        server.should_exit = True
        thread.join(20)

    return f"http://127.0.0.1:{sock.getsockname()[1]}", end


def test_under_fastapi() -> None:
    pytest.importorskip("fastapi")
    with model("", endless=True, n_ctx=4096, n_parallel=1) as loaded:
        loaded.engine.model.executor.delay = 0.002  # type: ignore[attr-defined]
        url, end = uvicorn_server(example("in_fastapi_app").build(loaded))
        with httpx.Client(base_url=url, timeout=30) as http:
            assert http.get("/slogan").json() == {"slogan": "x" * 20}
            assert "/slogan" in http.get("/openapi.json").text, "the host's own document"
            assert "/v1/messages" in http.get("/llm/openapi.json").text
            body = {"messages": HI, "max_tokens": 5, "temperature": 0}
            answer = http.post("/llm/v1/chat/completions", json=body).json()
            assert answer["choices"][0]["message"]["content"] == "xxxxx"
            assert "<title>ggfw</title>" in http.get("/llm/chat").text
            assert http.post("/llm/api/chat", json={"messages": HI}).json()["error"]
            with http.stream(
                "POST", "/llm/v1/chat/completions", json={"messages": HI, "stream": True}
            ) as stream:
                seen = 0
                for _ in stream.iter_lines():
                    seen += 1
                    if seen > 10:
                        break
            wait_until(lambda: not loaded.engine.scheduler, 5)  # the client has left in the middle
        end()

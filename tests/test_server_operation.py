"""What keeps a server alive and safe: heartbeats, slow readers, keys, CORS, limits, metrics, documents, stopping."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import httpx
import pytest
from fake_model import wait_until
from served import HI, TOOLS_CHATML, Served

STREAMS = {
    "/v1/chat/completions": {"messages": HI, "stream": True},
    "/v1/completions": {"prompt": "hi", "stream": True},
    "/v1/responses": {"input": "hi", "stream": True},
    "/v1/messages": {"messages": HI, "stream": True, "max_tokens": 50},
    "/api/chat": {"model": "fake", "messages": HI},
    "/api/generate": {"model": "fake", "prompt": "hi"},
    "/generate": {"prompt": "hi", "stream": True},
    "/completion": {"prompt": "hi", "stream": True},
}


def read_until(sock: socket.socket, done: Any, seconds: float = 5) -> str:
    sock.settimeout(seconds)
    seen = b""
    while not done(seen):
        piece = sock.recv(65536)
        assert piece, seen
        seen += piece
    return seen.decode()


@pytest.mark.parametrize("path", STREAMS)
def test_streams_show_that_they_are_alive(path: str) -> None:
    signs = {"/v1/messages": b"event: ping", "/api/chat": b'"content":""', "/api/generate": b'"response":""'}
    sign = signs.get(path, b": still here")
    with Served(script="hello", template=TOOLS_CHATML, app={"heartbeat": 0.05}) as served:
        gate = served.fake.executor.gate = threading.Event()
        sock = served.raw(path, STREAMS[path])
        read_until(sock, lambda seen: seen.count(sign) >= 4)
        gate.set()
        rest = read_until(sock, lambda seen: seen.endswith(b"0\r\n\r\n"))
        assert '"error":{' not in rest and '"error":"' not in rest
        sock.close()
        served.idle()


def test_progress_of_the_prompt() -> None:
    with Served(script="hello", n_ctx=4096, max_rows=32) as served:
        served.fake.executor.delay = 0.02
        body = {
            "messages": [{"role": "user", "content": "x" * 2500}],
            "stream": True,
            "return_progress": True,
        }
        frames = served.frames(**{k: v for k, v in body.items() if k != "stream"})
        told = [f["prompt_progress"] for f in frames if "prompt_progress" in f]
        assert told and all(p["total"] == frames_total(served) for p in told)
        assert [p["processed"] for p in told] == sorted({p["processed"] for p in told})
        assert set(told[0]) == {"total", "cache", "processed", "time_ms"}


def frames_total(served: Served) -> int:
    return len(served.seen[-1].prompt)


def test_timings_per_token() -> None:
    with Served(script="hello") as served:
        frames = served.frames(timings_per_token=True)
        noted = [f["timings"] for f in frames if "timings" in f]
        assert noted[-1]["predicted_n"] == 6 and set(noted[-1]) >= {
            "prompt_ms",
            "predicted_per_second",
            "cache_n",
        }


@pytest.mark.parametrize("path", STREAMS)
def test_a_closed_stream_frees_its_slot(path: str) -> None:
    with Served(endless=True, n_ctx=4096, n_parallel=1, template=TOOLS_CHATML) as served:
        served.fake.executor.delay = 0.005
        sock = served.raw(path, {**STREAMS[path], "max_tokens": 4000})
        read_until(sock, lambda seen: seen.count(b"x") > 20)
        sock.close()
        served.idle()
        assert any(event == "inference_abandoned" for event, _ in served.lines)


def test_a_slow_reader_costs_nothing() -> None:
    n = 2500
    served = Served(endless=True, n_ctx=n + 100)
    # Accepted connections take over this bound: what waits must wait with us, not in the system's buffers.
    served.live._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    with served:
        served.state.heartbeat = 0.05
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", served.live.port))
        body = {"messages": HI, "stream": True, "temperature": 0, "max_tokens": n}
        data = json.dumps({**body, "logprobs": True, "top_logprobs": 20}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        sock.sendall(head.encode() + data)
        wait_until(lambda: served.fake.executor.n_fed > 0, 5)
        wait_until(lambda: not served.model.engine.scheduler, 60)  # it has gone on to its end meanwhile
        text = read_until(sock, lambda seen: b"[DONE]" in seen, 20)
        sock.close()
    # Chunks of the transfer end where writes end, so every event is whole between two of their sizes.
    frames = [json.loads(row[6:]) for row in text.splitlines() if row.startswith("data: {")]
    pieces = [f["choices"][0]["delta"].get("content", "") for f in frames]
    assert "".join(pieces) == "x" * n
    assert max(map(len, pieces)) > n / 2  # what had piled up came joined


# -- who may ask -----------------------------------------------------------------------------------


def test_keys_and_cors() -> None:
    with Served(script="x", app={"api_keys": ["right", "other"]}) as served:
        url = "/v1/chat/completions"
        origin = {"Origin": "https://page.example"}
        wants = "authorization, content-type"
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wants}
        response = served.http.options(url, headers={**origin, **asked})
        assert response.status_code in (200, 204)
        assert response.headers["access-control-allow-origin"] in ("*", "https://page.example")
        assert "POST" in response.headers["access-control-allow-methods"]
        assert {"authorization", "content-type"} <= set(
            response.headers["access-control-allow-headers"].split(", ")
        )
        body = {"messages": HI}
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer"},
            {"X-Api-Key": "r"},
        ):
            response = served.http.post(url, json=body, headers={**origin, **headers})
            assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["access-control-allow-origin"]
        for headers in (
            {"Authorization": "Bearer right"},
            {"X-Api-Key": "other"},
            {"Authorization": "bearer other"},
        ):
            assert served.http.post(url, json=body, headers=headers).status_code == 200
        for path in ("/health", "/ready", "/", "/docs", "/openapi.json"):
            assert served.http.get(path).status_code == 200, path
        for path in ("/metrics", "/v1/models", "/api/tags", "/slots", "/nowhere"):
            assert served.http.get(path).status_code == 401, path
        assert served.http.post("/v1/messages", json={}).json()["error"]["type"] == "authentication_error"
        assert isinstance(served.http.post("/api/chat", json={}).json()["error"], str)
        assert not any("right" in json.dumps(fields) for _, fields in served.lines)


@pytest.mark.parametrize(
    ("cors", "origin", "allowed"),
    [
        (None, "http://[::1", False),
        (None, "http://localhost:3000", True),
        (None, "http://127.0.0.1:5173", True),
        (None, "app://obsidian.md", True),
        (None, "https://page.example", False),
        (None, "http://localhost.evil.example", False),
        (None, "null", False),
        ("*", "https://page.example", True),
        (["https://page.example"], "https://page.example", True),
        (["https://page.example"], "https://other.example", False),
    ],
)
def test_origins(cors: Any, origin: str, allowed: bool) -> None:
    with Served(script="x", app={"cors": cors}) as served:
        response = served.http.post("/v1/chat/completions", json={"messages": HI}, headers={"Origin": origin})
        assert response.status_code == (200 if allowed else 403)
        assert ("access-control-allow-origin" in response.headers) is allowed
        own = served.http.get("/health", headers={"Origin": served.live.url})
        assert own.status_code == 200


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("mine-7", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("two words", False),
        ('"quoted"', False),
        ("", False),
    ],
)
def test_request_ids_are_clean(given: str, kept: bool) -> None:
    with Served(script="x") as served:
        response = served.http.get("/health", headers={"X-Request-Id": given})
        assert (response.headers["x-request-id"] == given) is kept
        assert response.headers["x-request-id"]


def test_limits_of_bodies() -> None:
    with Served(script="x", app={"max_body": 20_000}) as served:
        for path in ("/v1/chat/completions", "/v1/messages", "/api/chat"):
            response = served.http.post(path, content=b'{"x":"' + b"y" * 30_000 + b'"}')
            assert response.status_code == 413, path
            assert "error" in response.json()
        deep: Any = "x"
        for _ in range(5000):
            deep = [deep]
        for body in (
            b"[" * 10_000,
            b'{"messages":' * 1000,
            b'{"messages":' + b"[" * 9000 + b"]" * 9000 + b"}",
        ):
            assert served.http.post("/v1/chat/completions", content=body).status_code == 400
        surrogate = b'{"messages":[{"role":"user","content":"\\ud800"}]}'
        assert served.http.post("/v1/chat/completions", content=surrogate).status_code == 400
        assert served.http.post("/v1/chat/completions", content=b"\xff\xfe{}").status_code == 400
        assert served.http.post("/v1/chat/completions", content=b"null").status_code == 400
        assert served.post().status_code == 200


def test_prompts_are_not_logged() -> None:
    with Served(script="answer text") as served:
        served.post(messages=[{"role": "user", "content": "secret words"}])
        served.post(messages=[{"role": "user", "content": "secret words"}], top_p=5)
        assert served.lines and not any(
            "secret" in json.dumps(f) or "answer" in json.dumps(f) for _, f in served.lines
        )


# -- what can be watched ---------------------------------------------------------------------------


def test_metrics() -> None:
    with Served(script="hello") as served:
        served.post()
        served.post()
        served.post(top_p=5)
        text = served.http.get("/metrics").text
        values = {}
        for row in text.splitlines():
            if row and not row.startswith("#"):
                name, _, value = row.rpartition(" ")
                values[name] = float(value)
        assert values['ggfw_generation_tokens_total{model="fake"}'] == 12
        assert values['ggfw_request_success_total{finish_reason="stop",model="fake"}'] == 2
        assert values['ggfw_request_errors_total{code="invalid_request_error"}'] == 1
        assert values['ggfw_requests_running{model="fake"}'] == 0
        hits, queries = (
            values[f'ggfw_prefix_cache_{what}_total{{model="fake"}}'] for what in ("hits", "queries")
        )
        assert queries >= hits > 0
        assert values['ggfw_time_to_first_token_seconds_count{model="fake"}'] == 2
        assert (
            values['ggfw_http_requests_total{method="POST",route="/v1/chat/completions",status="200"}'] == 2
        )
        assert 'le="600.0"' in text and "ggfw_build_info{" in text
        for name in (
            "ggfw_kv_cache_usage_ratio", "ggfw_inter_token_latency_seconds", "ggfw_request_queue_seconds",
            "ggfw_request_prefill_seconds", "ggfw_request_decode_seconds", "ggfw_request_e2e_seconds",
            "ggfw_spec_draft_tokens_total", "ggfw_spec_accepted_tokens_total", "ggfw_model_loaded",
            "ggfw_model_load_seconds", "ggfw_requests_waiting", "ggfw_prompt_tokens_total",
        ):  # fmt: skip
            assert f"\n{name}" in text, name
        assert "llamacpp:" not in text
        assert "llamacpp:tokens_predicted_total" in served.http.get("/metrics?names=llamacpp").text


def test_ready_says_why_not() -> None:
    with Served(script="x", n_parallel=1, app={"max_queue": 1}) as served:
        assert served.http.get("/ready").json() == {"ready": True}
        served.fake.executor.gate = threading.Event()
        handles = [served.model.submit(served.model.request("a")) for _ in range(2)]
        wait_until(lambda: served.model.engine.n_waiting == 1)
        response = served.http.get("/ready")
        assert response.status_code == 503 and "queue" in response.json()["reason"]
        served.fake.executor.gate.set()
        for handle in handles:
            handle.result(5)


def test_documents() -> None:
    with Served(script="x") as served:
        found = served.http.get("/openapi.json").json()
        assert found["openapi"].startswith("3.1")
        for path in STREAMS:
            schema = found["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"][
                "$ref"
            ]
            assert schema.rpartition("/")[2] in found["components"]["schemas"]
        response = served.http.get("/docs")
        assert "/v1/chat/completions" in response.text and "http" not in response.text.replace(
            "http-equiv", ""
        )
        assert "default-src 'none'" in response.headers["content-security-policy"]


# -- stopping --------------------------------------------------------------------------------------

SERVER = """
import sys
sys.path.insert(0, "tests")
from fake_model import FakeModel
from ggfw.library import Model
from ggfw.server import create_app, serve
fake = FakeModel("a long answer")
fake.executor.delay = 0.1
with Model(fake) as model:
    serve(create_app(model, grace=20), "127.0.0.1", int(sys.argv[1]))
print("ended")
"""


def test_running_answers_finish_when_the_server_is_stopped() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    child = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stdout=subprocess.PIPE, text=True)
    try:

        def answers() -> bool:
            try:
                return httpx.get(f"{url}/health", timeout=5).status_code == 200
            except httpx.TransportError:
                return False

        wait_until(answers, 30)
        text = ""
        with httpx.stream(
            "POST", f"{url}/v1/chat/completions", json={"messages": HI, "stream": True}, timeout=20
        ) as r:
            for row in r.iter_lines():
                if row.startswith("data: {"):
                    text += json.loads(row[6:])["choices"][0]["delta"].get("content", "")
                if text == "a" and row:
                    child.send_signal(signal.SIGTERM)
        assert text == "a long answer"
        out, _ = child.communicate(timeout=20)
        assert (out, child.returncode) == ("ended\n", 0)
    finally:
        child.kill()


# -- inside a host's own application ---------------------------------------------------------------


def test_mounted_in_a_hosts_application() -> None:
    from fake_model import FakeModel
    from live_server import LiveServer
    from sanic import Sanic
    from sanic.response import text

    from ggfw.library import Model
    from ggfw.server import mount

    host = Sanic("host-of-a-model", configure_logging=False)
    host.config.TOUCHUP = False

    @host.get("/own")
    async def own(request: Any) -> Any:
        return text("mine")

    @host.get("/broken")
    async def broken(request: Any) -> Any:
        raise RuntimeError("the host's own")

    with Model(FakeModel("hello")) as model:  # type: ignore[arg-type]
        mount(host, model, url_prefix="/llm", api_keys="k")
        with LiveServer(host) as live, httpx.Client(base_url=live.url, timeout=20) as http:
            assert http.get("/own").text == "mine"
            assert "x-request-id" not in http.get("/own").headers
            assert "error" not in http.get("/broken").text[:20]
            body = {"messages": HI, "temperature": 0}
            refused = http.post("/llm/v1/chat/completions", json=body)
            assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
            key = {"Authorization": "Bearer k"}
            answer = http.post("/llm/v1/chat/completions", json=body, headers=key).json()
            assert answer["choices"][0]["message"]["content"] == "hello"
            wrong = http.post("/llm/v1/messages", json={"messages": []}, headers=key)
            assert wrong.json()["type"] == "error" and wrong.status_code == 400
            stream = http.post("/llm/api/chat", json={"model": "fake", "messages": HI}, headers=key)
            assert stream.status_code == 200 and '"done":true' in stream.text
            assert http.get("/llm/health").json()["ok"] is True


def test_prompts_are_logged_where_that_is_asked_for() -> None:
    with Served(script="answer", app={"log_prompts": True}) as served:
        served.post(messages=[{"role": "user", "content": "secret words"}])
        (line,) = [fields for event, fields in served.lines if event == "inference"]
        assert "secret words" in line["prompt"] and line["answer"] == "answer"

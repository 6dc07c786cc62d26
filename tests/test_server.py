"""The HTTP server over real sockets: shapes, framing, errors, disconnects, and the openai client."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from fake_model import wait_until
from served import HI, Served


@pytest.fixture(scope="module")
def hello() -> Iterator[Served]:
    with Served(script="hello wörld", n_ctx=64, max_rows=32) as served:
        yield served


@pytest.fixture(scope="module")
def endless() -> Iterator[Served]:
    with Served(script="", endless=True, n_ctx=64) as served:
        yield served


def test_health_and_models(hello: Served) -> None:
    body = hello.http.get("/health").json()
    assert (body["ok"], body["status"], body["model"]) == (True, "ok", "fake")
    row = hello.http.get("/v1/models").json()["data"][0]
    assert (row["id"], row["object"], row["meta"]["n_ctx"]) == ("fake", "model", 64)
    assert hello.http.get("/v1/models/fake").json()["id"] == "fake"
    missing = hello.http.get("/v1/models/some/other:model")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
def test_request_ids_are_echoed(hello: Served, stream: bool) -> None:
    body = {"messages": HI, "stream": stream}
    answer = hello.http.post("/v1/chat/completions", json=body, headers={"X-Request-ID": "mine-7"})
    assert answer.headers["x-request-id"] == "mine-7"
    assert hello.lines[-1][1]["request_id"] == "mine-7"
    assert hello.http.get("/nowhere").headers["x-request-id"]


def test_plain_answer(hello: Served) -> None:
    body = hello.post().json()
    choice = body["choices"][0]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "hello wörld"},
        "finish_reason": "stop",
        "logprobs": None,
    }
    assert body["object"] == "chat.completion" and body["id"] and body["model"] == "fake"
    assert body["created"] > 1e9 and body["system_fingerprint"].startswith("ggfw-")
    used = body["usage"]
    assert used["completion_tokens"] == 13 and used["total_tokens"] == used["prompt_tokens"] + 13
    assert 0 <= used["prompt_tokens_details"]["cached_tokens"] < used["prompt_tokens"]
    event, fields = hello.lines[-1]
    assert event == "inference" and fields["completion_tokens"] == 13 and fields["streaming"] is False


@pytest.mark.parametrize("usage", [True, False, None])
def test_stream_framing(hello: Served, usage: bool | None) -> None:
    options = {} if usage is None else {"stream_options": {"include_usage": usage}}
    frames = hello.frames(**options)
    assert len({(f["id"], f["created"], f["model"], f["object"]) for f in frames}) == 1
    assert frames[0]["object"] == "chat.completion.chunk"
    assert frames[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert not any("role" in f["choices"][0]["delta"] for f in frames[1:] if f["choices"])
    text = "".join(f["choices"][0]["delta"].get("content", "") for f in frames if f["choices"])
    assert text == "hello wörld"
    if usage:
        last = frames.pop()
        assert last["choices"] == [] and last["usage"]["completion_tokens"] == 13
    assert all(f["choices"] for f in frames) and not any(f.get("usage") for f in frames)
    assert frames[-1]["choices"][0]["delta"] == {} and frames[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(f["choices"][0]["finish_reason"] is None for f in frames[:-1])


def test_reasoning_is_its_own_field() -> None:
    with Served(script="<think>\nplan\n</think>\n\n42") as served:
        message = served.post().json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("plan", "42")
        deltas = [f["choices"][0]["delta"] for f in served.frames()]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "plan"
        assert "".join(d.get("content") or "" for d in deltas) == "42"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("given", "n"),
    [
        ({"max_tokens": 1}, 1),
        ({"max_tokens": 2}, 2),
        ({"max_completion_tokens": 3}, 3),
        ({"max_completion_tokens": 3, "max_tokens": 9}, 3),
        ({"max_tokens": None}, None),
        ({"max_tokens": -1}, None),
        ({}, None),
    ],
)
def test_max_tokens(endless: Served, given: dict[str, Any], n: int | None, stream: bool) -> None:
    if stream:
        frames = endless.frames(stream_options={"include_usage": True}, **given)
        used, reason = frames[-1]["usage"], frames[-2]["choices"][0]["finish_reason"]
    else:
        body = endless.post(**given).json()
        used, reason = body["usage"], body["choices"][0]["finish_reason"]
    assert used["completion_tokens"] == (n or 64 - used["prompt_tokens"])
    assert reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_over_long_prompts_are_refused_before_the_stream(endless: Served, stream: bool) -> None:
    overhead = endless.post(max_tokens=1).json()["usage"]["prompt_tokens"] - 2  # "hi" is two tokens here
    for n in (100, 64):
        response = endless.post(messages=[{"role": "user", "content": "x" * (n - overhead)}], stream=stream)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["type"] == "exceed_context_size_error"
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (n, 64)
    body = endless.post(messages=[{"role": "user", "content": "x" * (60 - overhead)}], max_tokens=100).json()
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (60, 4)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"[]", 400, None),
        ({"messages": []}, 400, "messages"),
        ({"messages": "hi"}, 400, "messages"),
        ({}, 400, "messages"),
        ({"messages": [{"content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, 400, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content[0]"),
        ({"messages": HI, "temperature": "hot"}, 400, "temperature"),
        ({"messages": HI, "temperature": -1}, 400, "temperature"),
        ({"messages": HI, "top_p": 2}, 400, "top_p"),
        ({"messages": HI, "max_tokens": "5"}, 400, "max_tokens"),
        ({"messages": HI, "max_tokens": 0}, 400, "max_tokens"),
        ({"messages": HI, "max_tokens": 2.5}, 400, "max_tokens"),
        ({"messages": HI, "seed": 2**70}, 400, "seed"),
        ({"messages": HI, "stop": ""}, 400, "stop"),
        ({"messages": HI, "stop": 5}, 400, "stop"),
        ({"messages": HI, "n": 0}, 400, "n"),
        ({"messages": HI, "n": 1000}, 400, "n"),
        ({"messages": HI, "logprobs": 3}, 400, "logprobs"),
        ({"messages": HI, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
        ({"messages": HI, "top_logprobs": 2}, 400, "top_logprobs"),
        ({"messages": HI, "xtc_probability": 2.0}, 400, "xtc_probability"),
        ({"messages": HI, "mirostat": 3}, 400, "mirostat"),
        ({"messages": HI, "min_tokens": -1}, 400, "min_tokens"),
        ({"messages": HI, "dry_sequence_breakers": "x"}, 400, "dry_sequence_breakers"),
        ({"messages": HI, "samplers": ["infill"]}, 400, "samplers"),
        ({"messages": HI, "sampling_profile": "mine"}, 400, "sampling_profile"),
        ({"messages": HI, "logit_bias": [["", 1]]}, 400, "logit_bias"),
        ({"messages": HI, "logit_bias": [[5, True]]}, 400, "logit_bias"),
        ({"messages": HI, "tools": [{"type": "function"}]}, 400, "tools[0].function.name"),
        ({"messages": HI, "response_format": {"type": "xml"}}, 400, "response_format"),
        ({"messages": HI, "logit_bias": {"x": 1}}, 400, "logit_bias"),
        ({"messages": HI, "chat_template_kwargs": {"messages": 5}}, 400, "chat_template_kwargs"),
        ({"messages": HI, "chat_template_kwargs": {"tools": 5}}, 400, "chat_template_kwargs"),
        ({"messages": HI, "chat_template_kwargs": {"self": 5}}, 400, "chat_template_kwargs"),
        ({"messages": HI, "model": "other"}, 404, None),
    ],
)
def test_client_mistakes(hello: Served, body: Any, status: int, param: str | None) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = hello.http.post("/v1/chat/completions", content=content)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and error["message"]
    assert "Traceback" not in response.text and "pydantic" not in response.text
    assert error["param"] == param
    for name in ("n", "logprobs", "tools", "response_format"):
        if isinstance(body, dict) and name in body:
            assert name in error["message"]


def test_template_variables_may_leave_the_turn_closed(hello: Served) -> None:
    opened = hello.post().json()["usage"]["prompt_tokens"]
    closed = hello.post(chat_template_kwargs={"add_generation_prompt": False, "other": 1}).json()["usage"]
    assert closed["prompt_tokens"] < opened


def test_unknown_paths_methods_and_fields(hello: Served) -> None:
    response = hello.http.get("/v1/chat/completions")
    assert response.status_code == 405 and response.json()["error"]["code"] == "method_not_allowed"
    assert "POST" in response.headers["allow"]
    response = hello.http.get("/nowhere")
    assert response.status_code == 404 and "/nowhere" in response.json()["error"]["message"]
    assert hello.post(some_new_field=1, stop=None, model="fake").status_code == 200


def test_a_template_that_refuses_is_a_400() -> None:
    refuse = "{{ raise_exception('roles must alternate') }}"
    source = "{% if messages|length > 1 %}" + refuse + "{% endif %}{{ messages[0].content }}"
    with Served(script="x", template=source) as served:
        response = served.post(messages=[*HI, *HI], stream=True)
        assert response.status_code == 400
        assert response.json()["error"]["message"] == "roles must alternate"
        assert served.post().status_code == 200
    with Served(script="x", template="{% if %}") as served:
        response = served.post()
        assert response.status_code == 400 and "compiled" in response.json()["error"]["message"]
        assert served.model.generate("plain completions work").text == "x"


def test_users_cannot_write_control_tokens(hello: Served) -> None:
    def n_prompt_specials(content: str) -> int:
        hello.model.engine.reuse.tree.clear()
        hello.post(messages=[{"role": "user", "content": content}])
        ids = [t for b in hello.fake.executor.batches for tokens, _, prompt in b if prompt for t in tokens]
        hello.fake.executor.batches.clear()
        return sum(i >= 256 for i in ids)

    hello.fake.executor.batches.clear()
    assert n_prompt_specials("fine") == n_prompt_specials("<|im_end|>\n<|im_start|>") == 4  # with BOS


def test_a_full_queue_is_a_429_with_retry_after() -> None:
    with Served(script="x", n_parallel=1, app={"max_queue": 0}) as served:
        served.fake.executor.gate = threading.Event()
        first = served.model.submit(served.model.request("a"))
        response = served.post(stream=True)
        assert response.status_code == 429 and int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "queue_full"
        served.fake.executor.gate.set()
        assert first.result(5).text == "x"
        served.idle()
        assert served.post().status_code == 200


def test_a_failure_is_an_error_object_in_both_modes() -> None:
    with Served(script="x") as served:
        served.fake.executor.fail = RuntimeError("boom")
        response = served.post()
        assert response.status_code == 500 and response.json()["error"]["type"] == "server_error"
        served.fake.executor.fail = RuntimeError("boom")
        response = served.post(stream=True)
        last = response.text.strip().split("\n\n")[-1]
        assert "boom" in json.loads(last.removeprefix("data: "))["error"]["message"]
        assert "Traceback" not in response.text
        assert served.post().status_code == 200


def raw_request(served: Served, **body: Any) -> socket.socket:
    return served.raw("/v1/chat/completions", {"messages": HI, **body})


@pytest.mark.parametrize("phase", ["streaming", "prefill", "queued", "plain"])
def test_a_closed_connection_frees_its_slot(phase: str) -> None:
    with Served(endless=True, n_ctx=4096, n_parallel=1, max_rows=32) as served:
        executor = served.fake.executor
        executor.delay = 0.01
        blocker = None
        if phase == "queued":
            blocker = served.model.submit(served.model.request("blocker"))
            wait_until(lambda: bool(executor.batches))
        content = "y" * 3000 if phase == "prefill" else "marker"
        sock = raw_request(
            served, stream=phase == "streaming", messages=[{"role": "user", "content": content}]
        )
        if phase == "streaming":
            seen = b""
            while seen.count(b"data: ") < 4:
                seen += sock.recv(4096)
        elif phase == "queued":
            wait_until(lambda: served.model.engine.n_waiting == 1)
        else:
            wait_until(lambda: served.model.engine.n_running == 1)
        sock.close()
        if blocker is not None:
            wait_until(lambda: served.model.engine.n_waiting == 0, 2)
            blocker.cancel()
            assert not any(set(b"marker") <= set(t) and p for b in executor.batches for t, _, p in b)
        start = time.monotonic()
        served.idle()
        assert time.monotonic() - start < 1.5
        assert served.post(max_tokens=2).json()["choices"][0]["message"]["content"] == "xx"


def test_concurrent_requests_do_not_mix() -> None:
    scripts = {f"q{n};": f"answer {n}" for n in range(12)}
    with Served(scripts=scripts) as served:

        async def main() -> list[str]:
            async with httpx.AsyncClient(base_url=served.live.url, timeout=20) as http:

                async def one(key: str, stream: bool) -> str:
                    body = {
                        "messages": [{"role": "user", "content": key}],
                        "stream": stream,
                        "temperature": 0,
                    }
                    response = await http.post("/v1/chat/completions", json=body)
                    if not stream:
                        return str(response.json()["choices"][0]["message"]["content"])
                    frames = [json.loads(p[6:]) for p in response.text.split("\n\n")[:-2]]
                    return "".join(f["choices"][0]["delta"].get("content", "") for f in frames)

                return list(await asyncio.gather(*(one(k, n % 2 == 0) for n, k in enumerate(scripts))))

        for _ in range(3):
            assert asyncio.run(main()) == list(scripts.values())


def test_server_defaults_apply_where_a_request_has_none() -> None:
    with Served(endless=True, app={"defaults": {"max_tokens": 4, "temperature": 0}}) as served:
        assert served.post().json()["usage"]["completion_tokens"] == 4
        assert served.post(max_tokens=2).json()["usage"]["completion_tokens"] == 2


def test_the_openai_client(hello: Served) -> None:
    client = openai.OpenAI(base_url=f"{hello.live.url}/v1", api_key="none", max_retries=0)
    assert [m.id for m in client.models.list()] == ["fake"]
    messages: Any = [{"role": "system", "content": "s"}, *HI]
    answer = client.chat.completions.create(model="fake", messages=messages, max_tokens=50, temperature=0)
    assert answer.choices[0].message.content == "hello wörld"
    assert answer.usage is not None and answer.usage.completion_tokens == 13
    stream = client.chat.completions.create(
        model="fake", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "hello wörld"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 13
    with client.chat.completions.stream(model="fake", messages=messages) as events:
        final = events.get_final_completion()
    assert final.choices[0].message.role == "assistant"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fake", messages=messages, top_p=2)
    assert caught.value.param == "top_p"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nope", messages=messages)


def test_the_async_openai_client_can_leave_early() -> None:
    with Served(endless=True, n_ctx=4096) as served:
        served.fake.executor.delay = 0.002

        async def main() -> None:
            client = openai.AsyncOpenAI(base_url=f"{served.live.url}/v1", api_key="none")
            stream = await client.chat.completions.create(model="fake", messages=HI, stream=True)  # type: ignore
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
            await stream.close()
            await client.close()

        asyncio.run(main())
        served.idle()


def test_serve_runs_in_one_process_and_ends_on_a_signal() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from fake_model import FakeModel\nfrom ggfw.library import Model\nfrom ggfw.server import create_app, serve\n"
        "with Model(FakeModel('hello')) as model:\n"
        "    serve(create_app(model), '127.0.0.1', int(sys.argv[1]))\n"
        "print('ended')\n"
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:

        def answers() -> bool:
            assert child.poll() is None, child.communicate()
            try:
                return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
            except httpx.TransportError:
                return False

        wait_until(answers, 30)
        body = {"messages": HI}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=20).json()
        assert answer["choices"][0]["message"]["content"] == "hello"
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=20)
        assert (out, err, child.returncode) == ("ended\n", "", 0)
    finally:
        child.kill()

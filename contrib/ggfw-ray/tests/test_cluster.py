"""A cluster of two replicas on this machine: follow-up turns find their prefix, and a dying replica loses nothing that
can be saved. Needs ray; takes about a minute."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="ray is not installed; pip install 'ray[serve]'")

from ggfw_ray.app import build  # noqa: E402
from ggfw_ray.options import Options  # noqa: E402
from ray import serve  # noqa: E402

from ggfw.testing import tiny_gguf  # noqa: E402

LONG = "The otter swims in the cold river and looks for crabs under the stones. " * 6


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get("GGFW_RAY_TEST_MODEL")
    path = Path(given) if given else tmp_path_factory.mktemp("model") / "tiny.gguf"
    if not given:
        path.write_bytes(tiny_gguf(n_ctx=4096))
    port = free_port()
    ray.init(num_cpus=4, include_dashboard=False, logging_level="warning", log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    options = Options(str(path), slots=4, ctx=2048, min_replicas=2, max_replicas=2, stats_period_s=0.5)
    serve.run(build(options), name="ggfw")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()


def post(url: str, path: str, body: dict, timeout: float = 120) -> tuple[dict, str]:
    """The answer, and which replica gave it."""
    request = urllib.request.Request(
        f"{url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read()), answer.headers["x-ggfw-replica"]


def chat(url: str, messages: list[dict], **more: object) -> tuple[dict, str]:
    return post(
        url, "/v1/chat/completions", {"messages": messages, "max_tokens": 8, "temperature": 0, **more}
    )


def test_follow_up_turns_go_where_their_prefix_is(url: str) -> None:
    homes = {}
    talks = {
        name: [{"role": "user", "content": f"{name}: {LONG}"}] for name in ("one", "two", "three", "four")
    }
    for name, talk in talks.items():
        answer, homes[name] = chat(url, talk)
        talk.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or "."})
        time.sleep(0.2)
    assert len(set(homes.values())) == 2, "new conversations spread"
    hits = 0
    for turn in range(3):
        for name, talk in talks.items():
            talk.append({"role": "user", "content": f"And then, {turn}?"})
            answer, replica = chat(url, talk)
            assert replica == homes[name], f"{name}, turn {turn}"
            hits += answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
            talk.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or "."})
    assert hits == 12, "what was said before was not evaluated again"


def test_other_families_and_streams_come_through(url: str) -> None:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
        name = json.load(answer)["data"][0]["id"]
    answer, _ = post(
        url, "/api/generate", {"model": name, "prompt": "abc", "stream": False, "options": {"num_predict": 4}}
    )
    assert answer["done"]
    body = json.dumps({"prompt": "abc", "max_tokens": 6, "stream": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body), timeout=60) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = [line for line in stream.read().decode().split("\n\n") if line]
    assert len(events) > 2 and events[-1] == "data: [DONE]"
    with pytest.raises(urllib.error.HTTPError) as wrong:
        post(url, "/v1/chat/completions", {"messages": "none"})
    assert wrong.value.code == 400 and "messages" in wrong.value.read().decode()


def test_a_dying_replica_loses_only_what_was_streamed(url: str) -> None:
    handle = serve.get_deployment_handle("ggfw", app_name="ggfw")
    pids = {handle.pid.remote().result() for _ in range(20)}
    assert len(pids) == 2
    done: list[tuple[str, str]] = []
    started = threading.Semaphore(0)

    def ask(i: int, stream: bool) -> None:
        body = {"prompt": f"{i} " + LONG, "max_tokens": 120, "ignore_eos": True, "stream": stream}
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
        try:
            started.release()
            with urllib.request.urlopen(request, timeout=180) as answer:
                text = answer.read().decode()
            if stream:
                done.append(
                    ("streamed", "whole" if "[DONE]" in text else "told" if "replica died" in text else "cut")
                )
            else:
                whole = json.loads(text)["usage"]["completion_tokens"] == 120
                done.append(("at once", "whole" if whole else "cut"))
        except OSError as exc:
            done.append(("streamed" if stream else "at once", f"lost: {exc}"))

    threads = [threading.Thread(target=ask, args=(i, i % 4 == 0)) for i in range(24)]
    for thread in threads:
        thread.start()
    for _ in threads:
        started.acquire(timeout=30)
    time.sleep(0.7)
    os.kill(pids.pop(), signal.SIGKILL)  # a replica that this test has started
    for thread in threads:
        thread.join(timeout=240)
    assert len(done) == 24
    assert all(end == "whole" for kind, end in done if kind == "at once"), done
    assert all(end in ("whole", "told") for kind, end in done if kind == "streamed"), done

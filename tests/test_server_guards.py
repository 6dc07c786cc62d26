"""What must hold for every family alike: full queues, a server that ends, progress, leaving, keys, logs."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli_support import COMMAND
from fake_model import wait_until
from served import HI, TOOLS_CHATML, Served
from test_server_operation import STREAMS, read_until

from ggfw.cli.serve import _keys, serve_verb
from ggfw.errors import InvalidRequest
from ggfw.server.app import GRACE, REQUEST_TIMEOUT, RESPONSE_TIMEOUT

ASKED: dict[str, dict[str, Any]] = {
    **{path: {**body, "stream": False} for path, body in STREAMS.items()},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
}
MARKS = ["<PRE>", "<SUF>", "<MID>"]


def shaped(path: str, response: httpx.Response) -> str:
    """The sentence of an error; checks that it has the shape of its family."""
    found = response.json()
    if path.startswith("/api/"):
        assert isinstance(found["error"], str)
        return str(found["error"])
    if path == "/v1/messages":
        assert found["type"] == "error" and found["request_id"] == response.headers["request-id"]
    else:
        assert set(found["error"]) >= {"message", "type", "param", "code"}
    return str(found["error"]["message"])


def test_a_full_queue_is_a_429_with_retry_after() -> None:
    with Served(
        script="x", n_parallel=1, template=TOOLS_CHATML, pieces=MARKS, app={"max_queue": 1}
    ) as served:
        served.fake.executor.gate = threading.Event()
        handles = [served.model.submit(served.model.request("a")) for _ in range(2)]
        for path in ASKED:
            for stream in (False, True):
                response = served.http.post(path, json={**ASKED[path], "stream": stream})
                assert response.status_code == 429, response.text
                assert int(response.headers["retry-after"]) >= 1
                assert "try again later" in shaped(path, response)
        served.fake.executor.gate.set()
        assert [handle.result(5).text for handle in handles] == ["x", "x"]
        served.idle()
        for path in ASKED:
            assert served.http.post(path, json=ASKED[path]).status_code == 200


def test_a_server_that_ends_takes_no_new_work() -> None:
    with Served(script="x", template=TOOLS_CHATML, pieces=MARKS) as served:
        served.state.ending = True
        for path in ASKED:
            response = served.http.post(path, json=ASKED[path])
            assert response.status_code == 503 and "being stopped" in shaped(path, response)
        ready = served.http.get("/ready")
        assert ready.status_code == 503 and "stopped" in ready.json()["reason"]
        assert served.http.get("/health").status_code == 200
        assert not served.seen


def test_timeouts_fit_processors() -> None:
    assert RESPONSE_TIMEOUT >= 3600 and REQUEST_TIMEOUT >= 60 and GRACE >= 10


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion", "/generate"])
def test_progress_of_the_prompt_is_told_where_it_is_asked_for(path: str) -> None:
    with Served(script="hello", n_ctx=4096, max_rows=32) as served:
        served.fake.executor.delay = 0.02
        text = "x" * 2000
        body: dict[str, Any] = {"stream": True, "return_progress": True}
        body |= {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
        response = served.http.post(path, json=body)
        rows = [json.loads(r[6:]) for r in response.text.splitlines() if r.startswith("data: {")]
        told = [row["prompt_progress"] for row in rows if "prompt_progress" in row]
        assert told and {p["total"] for p in told} == {len(served.seen[-1].prompt)}
        assert [p["processed"] for p in told] == sorted({p["processed"] for p in told})
        served.fake.executor.delay = 0
        quiet = served.http.post(path, json={**body, "return_progress": False, "cache_prompt": False})
        assert "prompt_progress" not in quiet.text


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed"])
def test_leaving_ends_embeddings(path: str) -> None:
    with Served(script="x", n_ctx=512) as served:
        served.fake.executor.delay = 0.02
        sock = served.raw(path, {"model": "fake", "input": [f"text {n}" for n in range(500)]})
        wait_until(lambda: served.fake.executor.n_fed > 20)
        sock.close()
        wait_until(lambda: not any(served.state.evaluating.values()), 2)
        seen = served.fake.executor.n_fed
        assert seen < 500 * 6 / 2
        served.idle()
        answer = served.http.post(path, json={"model": "fake", "input": "y"})
        assert answer.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_ends_all_choices(stream: bool) -> None:
    with Served(endless=True, n_ctx=4096, n_parallel=2) as served:
        served.fake.executor.delay = 0.005
        sock = served.raw("/v1/chat/completions", {"messages": HI, "n": 4, "stream": stream})
        wait_until(lambda: served.model.engine.n_running == 2 and served.model.engine.n_waiting == 2)
        if stream:
            read_until(sock, lambda seen: seen.count(b"data: ") > 8)
        sock.close()
        served.idle()
        assert sum(event == "inference_abandoned" for event, _ in served.lines) == 4


# -- keys, addresses, logs -------------------------------------------------------------------------


def test_the_server_listens_on_this_machine_only_by_default() -> None:
    host = next(p for p in serve_verb.params if p.name == "host")
    assert host.default == "127.0.0.1"


def test_keys_come_from_options_variables_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    path.write_text("one\n\n  two \n")
    assert _keys(("three",), str(path)) == ["three", "one", "two"]
    path.write_text("\n")
    with pytest.raises(InvalidRequest, match="holds no key"):
        _keys((), str(path))
    option = next(p for p in serve_verb.params if p.name == "api_keys")
    assert "GGFW_API_KEY" in (option.envvar or ()) and COMMAND


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key is compared, by the comparison made for secrets, whatever the first one says."""
    import hmac

    seen: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def compare(a: Any, b: Any) -> bool:
        seen.append((a, b))
        return real(a, b)

    monkeypatch.setattr("ggfw.server.gate.hmac.compare_digest", compare)
    with Served(script="x", app={"api_keys": ["right", "other", "third"]}) as served:
        for key, status in (("right", 200), ("wrong", 401), ("righ", 401), ("ü", 401)):
            seen.clear()
            headers = {"Authorization": f"Bearer {key}".encode()}
            response = served.http.get("/v1/models", headers=headers)  # type: ignore[arg-type]
            assert response.status_code == status, key
            assert [b for _, b in seen] == [b"right", b"other", b"third"]


def test_an_unforeseen_error_says_nothing_to_clients_and_no_text_to_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*args: Any, **more: Any) -> Any:
        raise KeyError("secret words of a user")

    with Served(script="x") as served:
        monkeypatch.setattr("ggfw.server.answers.submit", broken)
        for path, body in ASKED.items():
            if path == "/infill":
                continue
            response = served.http.post(path, json=body)
            assert response.status_code == 500, path
            assert "secret" not in response.text and "Traceback" not in response.text
            shaped(path, response)
        failed = [fields for event, fields in served.lines if event == "request_failed"]
        assert failed and all(f["error_type"] == "KeyError" and ":" in f["where"] for f in failed)
        assert "secret" not in json.dumps(served.lines)


def test_no_header_tells_of_versions_or_places() -> None:
    with Served(script="x") as served:
        for response in (served.http.get("/health"), served.http.get("/nowhere"), served.post()):
            assert "server" not in response.headers and "x-powered-by" not in response.headers
            assert not re.search(r"/(work|home|usr|tmp)/", response.text)
            assert response.headers["x-content-type-options"] == "nosniff"

"""What requests can reach: no host, whatever they name; and with ``--fixed-models`` no change of the models either."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from live_server import LiveServer
from server_process import ServerProcess
from test_server_folders import FAMILIES
from tiny_models import write_llama

from ggfw.cli.serve import _Served, serve_verb
from ggfw.server import create_app

HI = [{"role": "user", "content": "x"}]
#: References that ``ggfw pull`` would follow, and addresses.
NAMES = (
    "hf:owner/repo", "hf:owner/repo:Q4_0@main", "hf.co/owner/repo:Q4_0", "huggingface.co/owner/repo", "pypi:some-model",
    "https://example.com/m.gguf", "http://127.0.0.1:1/m.gguf", "ftp://example.com/m", "//example.com/share/m.gguf",
    r"\\example.com\share\m.gguf", "smollm2",
)  # fmt: skip
#: Fields that name a place elsewhere.
FIELDS: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://example.com/a.png"}}]}]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "http://example.com/s"}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$schema": "http://example.com/"}}}},
    {"chat_template_kwargs": {"documents": [{"url": "http://example.com/"}]}},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "http://example.com/s"}}}],
     "tool_choice": "required"},
    {"skills": ["http://example.com/skill"]},
    {"grammar": '%import "http://example.com/g.lark"'},
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_llama(folder / "own.gguf")
    return folder


def serve(folder: Path, **options: Any) -> _Served:
    given = {"models_dir": str(folder), "keep_alive": -1.0, "memory": None, **options}
    return _Served(
        (str(folder / "own.gguf"),), {"n_parallel": 1, "max_queue": 4, "threads": 1, "ctx": 128}, given
    )


@pytest.fixture(scope="module")
def http(folder: Path) -> Iterator[httpx.Client]:
    served = serve(folder)
    with (
        LiveServer(create_app(pool=served.pool, store=served.store)) as live,
        httpx.Client(base_url=live.url, timeout=30) as client,
    ):
        yield client
    served.pool.close()


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """All hosts that this process, the server's too, asks for or connects to, but that of the tests' own client."""
    hosts: list[Any] = []
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def connecting(self: socket.socket, address: Any) -> Any:
        if not (isinstance(address, tuple) and address[0] == "127.0.0.1" and address[1] > 1):
            hosts.append(address)
            raise OSError("the test lets nobody out")
        return connect(self, address)

    def looking(host: Any, *args: Any, **kw: Any) -> Any:
        if host not in ("127.0.0.1", b"127.0.0.1"):
            hosts.append(host)
            raise socket.gaierror("the test lets nobody out")
        return look_up(host, *args, **kw)

    monkeypatch.setattr(socket.socket, "connect", connecting)
    monkeypatch.setattr(socket, "getaddrinfo", looking)
    yield hosts


@pytest.mark.parametrize("path", FAMILIES)
def test_the_name_of_a_model_is_never_followed(http: httpx.Client, reached: list[Any], path: str) -> None:
    for name in NAMES:
        answer = http.post(path, json={**FAMILIES[path], "model": name})
        assert answer.status_code == 404 and "Traceback" not in answer.text, (name, answer.text)
    assert reached == []


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: next(iter(fields)))
def test_nothing_in_a_request_is_fetched(
    http: httpx.Client, reached: list[Any], fields: dict[str, Any]
) -> None:
    answer = http.post("/v1/chat/completions", json={"messages": HI, "max_tokens": 1, **fields})
    assert answer.status_code < 500, answer.text
    assert reached == []


def test_pull_would_be_seen(http: httpx.Client, reached: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The one request that may go out does: otherwise the tests above would prove nothing."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    answer = http.post("/api/pull", json={"model": "hf:owner/repo", "stream": False})
    assert answer.status_code != 200 and reached, answer.text


def change(http: httpx.Client) -> list[httpx.Response]:
    """One request of each kind that changes what models there are."""
    digest = "0" * 64
    return [
        *(http.post("/api/pull", json={"model": name, "stream": False}) for name in NAMES),
        http.post("/api/create", json={"model": "new", "from": "own", "system": "x"}),
        http.post("/api/copy", json={"source": "own", "destination": "new"}),
        http.request("DELETE", "/api/delete", json={"model": "own"}),
        http.head(f"/api/blobs/sha256:{digest}"),
        http.post(f"/api/blobs/sha256:{digest}", content=b"x" * 100_000),
    ]


def test_fixed_models(folder: Path, reached: list[Any]) -> None:
    before = sorted(folder.rglob("*"))
    served = serve(folder, fixed_models=True)
    with (
        LiveServer(create_app(pool=served.pool, store=served.store)) as live,
        httpx.Client(base_url=live.url, timeout=30) as http,
    ):
        for answer in change(http):
            assert answer.status_code == 403, (answer.request.url, answer.text)
            if answer.request.method != "HEAD":
                assert "fixed" in answer.json()["error"]
        streamed = http.post("/api/pull", json={"model": "hf:owner/repo"})
        assert "fixed" in streamed.text and "success" not in streamed.text
        known = http.post(
            "/api/pull", json={"model": "own", "stream": False}
        )  # clients that pull before they ask
        assert known.json() == {"status": "success"}
        assert http.post("/v1/chat/completions", json={"messages": HI, "max_tokens": 1}).status_code == 200
    served.pool.close()
    assert reached == [] and sorted(folder.rglob("*")) == before


def test_the_option_and_its_variable(folder: Path) -> None:
    assert "--fixed-models" in CliRunner().invoke(serve_verb, ["--help"]).output
    with ServerProcess(
        folder / "own.gguf", "--threads", "1", "--ctx", "64", env={"GGFW_FIXED_MODELS": "1"}
    ) as process:
        assert process.http.post("/api/pull", json={"model": "hf:a/b", "stream": False}).status_code == 403

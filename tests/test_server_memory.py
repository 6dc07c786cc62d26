"""Several models in one server: how much memory they may take, who has to go, and files that break while in use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli_support import COMMAND
from fake_model import FakeModel, wait_until
from live_server import LiveServer
from served import HI, TOOLS_CHATML
from test_server_operation import STREAMS, read_until
from tiny_models import write_llama

import ggfw
from ggfw.errors import GgfwError, ModelNotFound
from ggfw.footprint import Footprint, MemoryShort
from ggfw.library import Model
from ggfw.server import create_app
from ggfw.server.entries import Entry
from ggfw.server.pool import Pool

pytest_plugins = ["cli_support"]

MIB = 1 << 20


def footprint(name: str, mib: int, *, asked: bool = True, n_ctx: int = 4096) -> Footprint:
    """A model that needs ``mib`` MiB at its context, of which a sixteenth at each halving stays away."""
    base = Footprint(name, 0, n_ctx, 1, ((n_ctx, 0),)).needed()
    most = mib * MIB - base
    return Footprint(
        name, 0, n_ctx, 1, ((n_ctx // 4, most // 4), (n_ctx // 2, most // 2), (n_ctx, most)), asked
    )


class Several:
    """A server with models of given sizes, all made on demand."""

    def __init__(
        self, sizes: dict[str, int], memory: int | None = None, free: int | None = None, asked: bool = True
    ) -> None:
        self.now = 1000.0
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.made: dict[str, FakeModel] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.contexts: list[tuple[str, int | None]] = []
        self.pool = Pool(
            clock=lambda: self.now,
            memory=None if memory is None else memory * MIB,
            available=lambda: None if free is None else free * MIB,
        )
        for name, mib in sizes.items():
            entry = Entry(name, lambda name=name, ctx=None: self.load(name, ctx))
            entry.footprint = lambda name=name, mib=mib: footprint(name, mib, asked=asked)
            self.pool.add(entry)
        app = create_app(pool=self.pool, log=lambda e, f: self.lines.append((e, f)), heartbeat=0.05)
        self.live = LiveServer(app)

    def load(self, name: str, ctx: int | None) -> Model:
        assert self.gate.wait(10)
        self.contexts.append((name, ctx))
        self.made[name] = FakeModel(f"I am {name}", template=TOOLS_CHATML, n_ctx=512)
        return Model(self.made[name])  # type: ignore[arg-type]

    def fail(self, ctx: int | None = None) -> Model:
        assert self.gate.wait(10)
        raise GgfwError("the disk is gone")

    def __enter__(self) -> Several:
        self.live.__enter__()
        self.http = httpx.Client(base_url=self.live.url, timeout=20)
        return self

    def __exit__(self, *error: object) -> None:
        self.gate.set()
        self.http.close()
        self.live.__exit__()
        self.pool.close()

    def chat(self, model: str, **body: Any) -> httpx.Response:
        self.now += 1
        return self.http.post(
            "/v1/chat/completions", json={"model": model, "messages": HI, "temperature": 0, **body}
        )

    def says(self, model: str) -> str:
        response = self.chat(model)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])

    def loaded(self) -> list[str]:
        return [row["name"].removesuffix(":latest") for row in self.http.get("/api/ps").json()["models"]]

    def unloaded(self) -> list[tuple[str, str]]:
        return [(f["model"], f["reason"]) for e, f in self.lines if e == "model_unloaded"]


def test_the_model_longest_unused_makes_way() -> None:
    with Several({"a": 300, "b": 300, "c": 300}, memory=700) as server:
        assert [server.says(name) for name in "aba"] == ["I am a", "I am b", "I am a"]
        assert server.loaded() == ["a", "b"]
        first = server.made["b"]
        assert server.says("c") == "I am c"
        assert server.loaded() == ["a", "c"] and first.closed
        assert server.unloaded() == [("b", "memory")]
        assert server.says("b") == "I am b" and server.loaded() == ["b", "c"]
        assert sum(not model.closed for model in server.made.values()) == 2


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/chat/completions", {"messages": HI}),
    "completions": ("/v1/completions", {"prompt": "x"}),
    "responses": ("/v1/responses", {"input": "x"}),
    "embeddings": ("/v1/embeddings", {"input": "x"}),
    "anthropic": ("/v1/messages", {"messages": HI, "max_tokens": 5}),
    "ollama": ("/api/chat", {"messages": HI}),
    "native": ("/models/load", {}),
}


def sentence(family: str, response: httpx.Response) -> str:
    error = response.json()["error"]
    if family == "ollama":
        return str(error)
    if family == "anthropic":
        assert response.json()["type"] == "error"
    return str(error["message"])


@pytest.mark.parametrize("family", FAMILIES)
def test_too_much_is_one_sentence_with_figures(family: str) -> None:
    with Several({"small": 200, "big": 2000}, memory=1200) as server:
        server.says("small")
        path, body = FAMILIES[family]
        response = server.http.post(path, json={"model": "big", **body})
        assert response.status_code == 400, response.text
        text = sentence(family, response)
        assert "2.0 GiB" in text and "1.2 GiB" in text and "context of 4096" in text and "--ctx 2048" in text
        assert server.loaded() == ["small"], "what can never fit costs nobody his model"
        assert not server.contexts[1:]


def test_a_model_that_answers_never_makes_way() -> None:
    with Several({"a": 300, "b": 300}, memory=500) as server:
        server.says("a")
        server.made["a"].executor.gate = gate = threading.Event()
        sock = server.http.stream(
            "POST", "/v1/chat/completions", json={"model": "a", "messages": HI, "stream": True, "seed": 5}
        )
        with sock as stream:
            lines = stream.iter_lines()
            next(lines)
            for family, (path, body) in FAMILIES.items():
                response = server.http.post(path, json={"model": "b", **body})
                assert response.status_code == 503, (family, response.text)
                assert int(response.headers["retry-after"]) > 0
                assert "other models are answering" in sentence(family, response)
            gate.set()
            assert any("[DONE]" in line for line in lines)
        assert not server.made["a"].closed and server.says("b") == "I am b" and server.loaded() == ["b"]


def test_the_machine_is_the_bound_where_none_is_given() -> None:
    with Several({"a": 300}, free=200) as server:  # somebody chose the context
        response = server.chat("a")
        assert (
            response.status_code == 400 and "what the machine has free" in response.json()["error"]["message"]
        )
        assert response.json()["error"]["largest_n_ctx"] == 2048
    with Several({"a": 300}, free=200, asked=False) as server:  # nobody did: it is made to fit
        assert server.says("a") == "I am a" and server.contexts == [("a", 2048)]
        (line,) = [fields for event, fields in server.lines if event == "context_reduced"]
        assert (line["n_ctx"], line["n_ctx_train"]) == (2048, 4096)
    with Several({"a": 300}, memory=200, asked=False) as server:  # a bound is kept strictly
        assert server.chat("a").status_code == 400


def test_loads_at_once_share_the_bound() -> None:
    with Several({"a": 300, "b": 300}, memory=500) as server:
        server.gate.clear()
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda name=name: answers.append(server.chat(name).status_code))
            for name in "ab"
        ]
        threads[0].start()
        wait_until(lambda: server.pool.entries["a"].reserved > 0)
        threads[1].start()
        threads[1].join(10)
        assert answers == [503], "the other one's memory is spoken for"
        server.gate.set()
        threads[0].join(10)
        assert answers == [503, 200]


# -- loading ---------------------------------------------------------------------------------------


def test_loading_is_told(tmp_path: Path) -> None:
    with Several({"a": 300}, memory=500) as server:
        server.gate.clear()
        with server.http.stream("POST", "/models/load", json={"model": "a", "stream": True}) as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("data: "))
            first = httpx.Response(200, text=next(lines)[6:]).json()
            assert first["status"] == "loading" and first["model"] == "a"
            assert first["total"] == 300 * MIB and 0 <= first["progress"] < 1 and first["seconds"] >= 0
            health = server.http.get("/health")
            assert health.status_code == 503 and health.json()["error"]["message"] == "Loading model"
            assert health.json()["loading"]["total"] == 300 * MIB
            (row,) = server.http.get("/models").json()["models"]
            assert row["state"] == "loading" and "progress" in row["loading"]
            assert server.http.get("/ready").status_code == 503
            server.gate.set()
            last = [httpx.Response(200, text=line[6:]).json() for line in lines][-1]
        assert last["status"] == "loaded" and last["ok"] and last["model"]["loaded"] and last["load_ms"] > 0
        assert server.http.get("/health").status_code == 200
        (row,) = server.http.get("/models").json()["models"]
        assert row["state"] == "loaded" and "loading" not in row
        missing = server.http.post("/models/load", json={"model": "nope", "stream": True})
        assert missing.status_code == 404


def test_a_client_that_leaves_while_a_model_is_loaded_leaves_nothing_behind() -> None:
    with Several({"a": 300, "b": 300}, memory=700) as server:
        server.gate.clear()
        with pytest.raises(httpx.ReadTimeout):
            server.http.post("/v1/chat/completions", json={"model": "a", "messages": HI}, timeout=0.2)
        entry = server.pool.entries["a"]
        wait_until(lambda: entry.users == 0)
        assert entry.state == "loading", "what others may wait for goes on"
        server.gate.set()
        wait_until(lambda: entry.slot is not None)
        assert entry.slot is not None and entry.slot.users == 0 and not entry.slot.model.engine.scheduler
        assert server.made["a"].executor.n_fed == 0, "nothing was evaluated for nobody"
        assert server.says("a") == "I am a"


BEATS = {"/api/chat": b'"content":""', "/api/generate": b'"response":""'}


def streamed(server: Several, path: str, model: str = "a") -> socket.socket:
    """Send a request for a stream and read nothing."""
    data = json.dumps({**STREAMS[path], "model": model}).encode()
    sock = socket.create_connection(("127.0.0.1", server.live.port))
    sock.sendall(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
    )
    return sock


@pytest.mark.parametrize("path", STREAMS)
def test_streams_show_that_they_are_alive_while_their_model_is_loaded(path: str) -> None:
    with Several({"a": 300}, memory=500) as server:
        server.gate.clear()
        sock = streamed(server, path)
        sign = BEATS.get(path, b": still here")
        read_until(sock, lambda seen: seen.count(sign) >= 3)
        server.gate.set()
        rest = read_until(sock, lambda seen: seen.endswith(b"0\r\n\r\n"))
        assert '"error":{' not in rest and '"error":"' not in rest and "I" in rest
        sock.close()


@pytest.mark.parametrize("path", STREAMS)
def test_an_error_after_a_stream_had_to_begin_is_in_the_stream(path: str) -> None:
    with Several({"a": 300}, memory=500) as server:
        server.gate.clear()
        good, server.pool.entries["a"].load = server.pool.entries["a"].load, server.fail
        sock = streamed(server, path)
        read_until(sock, lambda seen: seen.count(BEATS.get(path, b": still here")) >= 2)
        server.gate.set()
        rest = read_until(sock, lambda seen: seen.endswith(b"0\r\n\r\n"))
        assert "the disk is gone" in rest and ('"error":{' in rest or '"error":"' in rest)
        assert ("event: error" in rest) == (path == "/v1/messages")
        sock.close()
        server.pool.entries["a"].load = good
        assert server.says("a") == "I am a", "the server goes on"


def test_leaving_while_a_stream_waits_for_its_model() -> None:
    with Several({"a": 300}, memory=500) as server:
        server.gate.clear()
        sock = streamed(server, "/v1/chat/completions")
        read_until(sock, lambda seen: seen.count(b": still here") >= 2)
        sock.close()
        wait_until(lambda: server.pool.entries["a"].users == 0)
        server.gate.set()
        wait_until(lambda: server.pool.entries["a"].slot is not None)
        assert server.made["a"].executor.n_fed == 0


# -- files that break ------------------------------------------------------------------------------


@contextlib.contextmanager
def real(folder: Path, *names: str) -> Iterator[tuple[Pool, httpx.Client]]:
    pool = Pool()
    for name in names:
        path = write_llama(folder / f"{name}.gguf")
        pool.add(
            Entry(name, lambda path=path: ggfw.load(path, threads=1, ctx=128), facts={"path": str(path)})
        )
    with LiveServer(create_app(pool=pool)) as live, httpx.Client(base_url=live.url, timeout=30) as http:
        yield pool, http
    pool.close()


@pytest.mark.skipif(os.name == "nt", reason="mapped files cannot shrink on Windows")
@pytest.mark.parametrize("stream", [False, True])
def test_a_model_whose_file_breaks_is_loaded_again_when_it_is_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr("ggfw.execute.file_guard.INTERVAL", 0.0)

    def ask(http: httpx.Client, name: str, stream: bool = False) -> httpx.Response:
        body = {"model": name, "messages": HI, "max_tokens": 3, "temperature": 0, "stream": stream}
        return http.post("/v1/chat/completions", json=body)

    with real(tmp_path, "bad", "good") as (pool, http):
        before = ask(http, "bad").json()["choices"][0]["message"]["content"]
        assert ask(http, "good").status_code == 200
        path = tmp_path / "bad.gguf"
        data = path.read_bytes()
        os.truncate(path, len(data) // 2)
        response = ask(http, "bad", stream)
        assert response.status_code == (200 if stream else 500)
        assert '"error":' in response.text and "bad.gguf" in response.text
        wait_until(lambda: pool.entries["bad"].slot is None)
        refused = ask(http, "bad")  # it is read anew, and still is no good file
        assert refused.status_code == 400 and "truncated" in refused.json()["error"]["message"]
        assert ask(http, "good").status_code == 200
        path.write_bytes(data)
        answer = ask(http, "bad").json()
        assert answer["choices"][0]["message"]["content"] == before


# -- the command line ------------------------------------------------------------------------------


def test_serve_refuses_what_does_not_fit(cli: Any, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf", n_ctx=1 << 20)
    said = cli("serve", path, "--memory", "150M", "--port", "0")
    assert said.code == 1
    assert "tiny.gguf with a context of 1048576 for 4 requests at once needs" in said.error
    assert "150 MiB are to be had (--memory 150 MiB)" in said.error
    fits = re.search(r"a context of (\d+) fits \(--ctx (\d+)\)", said.error)
    assert fits and fits[1] == fits[2]
    n_ctx = int(fits[1])
    found = Footprint.of(path, n_parallel=4)
    assert found.needed(n_ctx) <= 150 * MIB < found.needed(2 * n_ctx)
    for bad in ("lots", "0", "-1", "1e9", "5X", "G"):
        said = cli("serve", path, "--memory", bad, "--port", "0")
        assert said.code == 2 and "no size" in said.error, bad
    said = cli("serve", path, "--memory", "1M", "--port", "0")
    assert said.code == 1 and "no context fits" in said.error


def test_memory_is_a_variable_and_a_key_of_the_configuration(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_llama(tmp_path / "tiny.gguf", n_ctx=1 << 20)
    monkeypatch.setenv("GGFW_MEMORY", "120M")
    assert "--memory 120 MiB" in cli("serve", path, "--port", "0").error
    monkeypatch.delenv("GGFW_MEMORY")
    (tmp_path / "c.toml").write_text('[serve]\nmemory = "130M"\n')
    chosen = tmp_path / "c.toml"
    assert "--memory 130 MiB" in cli("--config", chosen, "serve", path, "--port", "0").error
    assert "--memory 130 MiB" in cli("serve", path, "--port", "0", "--config", chosen).error
    assert "--memory 120 MiB" in cli("serve", f"--config={chosen}", path, "--memory", "120M").error
    assert cli("serve", path, "--config").code == 2
    shown = cli("config", "show", "--json", "--config", chosen)
    assert {"verb": "serve", "setting": "memory", "value": "130M", "source": "file"} in json.loads(shown.out)[
        "settings"
    ]
    chosen.write_text('[serve]\nmemry = "1G"\n')
    assert "unknown key of [serve] 'memry'" in cli("serve", path, "--config", chosen).error
    assert "did you mean memory?" in cli("serve", path, "--config", chosen).error
    chosen.write_text("[serve]\nmemory = [1]\n")
    said = cli("serve", path, "--config", chosen)
    assert said.code == 2 and "memory in the configuration file" in said.error


def test_every_option_of_serve_is_a_key_and_a_variable(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ggfw.cli.serve import serve_verb
    from ggfw.cli.settings import Setting

    keys = [key for p in serve_verb.params if isinstance(p, Setting) for key in p.keys]
    assert {
        "memory",
        "unix",
        "host",
        "port",
        "keep-alive",
        "api-key",
        "api-key-file",
        "isolate-cache",
    } <= set(keys)
    chosen = tmp_path / "c.toml"
    chosen.write_text("[serve]\n" + "".join(f'{key} = "x"\n' for key in keys))
    found = json.loads(cli("config", "show", "--json", "--config", chosen).out)["settings"]
    assert {row["setting"] for row in found if row["source"] == "file"} == set(keys) - {"local"}
    assert {row["value"] for row in found if row["setting"] == "api-key"} == {"(set, not shown)"}
    for name in ("GGFW_MEMORY", "GGFW_UNIX", "GGFW_KEEP_ALIVE"):
        monkeypatch.setenv(name, "1")
    found = json.loads(cli("config", "show", "--json").out)["settings"]
    assert {"GGFW_MEMORY", "GGFW_UNIX", "GGFW_KEEP_ALIVE"} <= {row["source"] for row in found}


def test_needs_are_told_from_headers(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf", n_ctx=4096)
    one, four = Footprint.of(path), Footprint.of(path, n_parallel=4)
    # Two layers, two key heads of 8, F32: 2 * 2 * (8 + 8) * 4 bytes a position.
    assert four.needed() - one.needed() == 3 * 4096 * 2 * 2 * 16 * 4
    assert Footprint.of(path, ctx=1024).needed() == one.needed(1024) < one.needed()
    assert one.largest(one.needed()) == 4096 and one.largest(one.needed() - 1) == 2048
    assert one.largest(1) is None and not one.asked and Footprint.of(path, ctx=1024).asked
    error = one.short(1, "because")
    assert isinstance(error, MemoryShort) and error.largest is None


def test_a_host_s_own_model_is_counted_and_never_closed() -> None:
    async def main() -> None:
        fake = FakeModel("x", template=TOOLS_CHATML)
        pool = Pool(memory=200 * MIB, available=lambda: None)
        own = pool.add_model(Model(fake), "own")  # type: ignore[arg-type]
        assert own.slot is not None
        own.slot.n_bytes = 150 * MIB
        other = pool.add(Entry("other", lambda: Model(FakeModel("y"))))  # type: ignore[arg-type]
        other.footprint = lambda: footprint("other", 120)
        with pytest.raises(MemoryShort):
            async with pool.lease("other"):
                pass
        assert not fake.closed and own.slot is not None
        with pytest.raises(ModelNotFound):
            pool.find("nobody")

    asyncio.run(main())


def test_models_are_in_the_order_they_are_named(tmp_path: Path) -> None:
    for name in "ab":
        write_llama(tmp_path / f"{name}.gguf", seed=ord(name))
    command = [*COMMAND, "serve", "b", "a", "--models-dir", str(tmp_path), "--port", "0", "--no-ui"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        found = None
        while found is None and (line := process.stderr.readline()):
            found = re.search(r"on (http://127\.0\.0\.1:\d+)/v1", line)
        assert found
        rows = httpx.get(f"{found[1]}/models", timeout=20).json()["models"]
        assert [(row["id"], row["state"]) for row in rows] == [("b", "loaded"), ("a", "loaded")]
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


TAKEN = """
import resource, sys
import ggfw
with ggfw.load(sys.argv[1], ctx=2048, n_parallel=2) as model:
    for n in range(3):
        model.generate([5 + n] * 1900, max_tokens=8, ignore_eos=True)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2_path", "gemma3_path"])
def test_needs_are_near_what_real_models_take(name: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(name)
    done = subprocess.run(
        [sys.executable, "-c", TAKEN, str(path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    taken, told = int(done.stdout), Footprint.of(path, ctx=2048, n_parallel=2).needed()
    assert 0.7 * told <= taken <= 1.1 * told, (taken >> 20, told >> 20)

"""Requests that ask for much, against a server process: answered or refused at little cost, and the next goes well.

Bounds: 2 s of CPU and, at its peak, 64 MiB above the idle process for each request.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import LINUX, N_VOCAB, ServerProcess, write_model

pytestmark = pytest.mark.skipif(not LINUX, reason="reads what a process costs from /proc")

CPU_SECONDS, BYTES = 2.0, 64 << 20


@contextlib.contextmanager
def warm_server(folder: Path) -> Iterator[ServerProcess]:
    """A server process that has answered before it is measured, and still answers at the end."""
    path = write_model(folder / "m.gguf")
    with ServerProcess(path, "--parallel", "2", "--max-queue", "16", "--threads", "1") as process:
        for _ in range(3):
            process.alive()
        yield process
        process.alive()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with warm_server(tmp_path_factory.mktemp("model")) as process:
        yield process


def schema(value: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


def nested(depth: int) -> dict[str, Any]:
    out: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        out = {"type": "object", "properties": {"a": out}}
    return out


def function(i: int) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    return {"type": "function", "function": {"name": f"f{i}", "parameters": parameters}}


def many_definitions(n: int) -> dict[str, Any]:
    """A tool whose arguments have a definition each, one of which cannot be enforced, beside a JSON answer."""
    properties: dict[str, Any] = {f"p{i}": {"$ref": f"#/$defs/d{i}"} for i in range(n)}
    tool = function(0)
    tool["function"]["parameters"] = {
        "type": "object",
        "properties": {**properties, "x": {"type": "string", "$id": "http://x/y"}},
        "$defs": {f"d{i}": {"type": "string", "maxLength": 1 + i} for i in range(n)},
    }
    return {"tools": [tool], "response_format": {"type": "json_object"}}


def says(text: str, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text}, {"role": "user", "content": "x"}]}


def call(arguments: str) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]}


#: What is asked -> (fields of the request, statuses that are right).
ASKED: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "system prompt of 1 MB": (says("word " * 200_000, "system"), (400,)),
    "word of 1 MB": (says("q" * 1_000_000), (400,)),
    "2,000 tools": ({"tools": [function(i) for i in range(2000)]}, (400,)),
    "2,000 tools, one required": (
        {"tools": [function(i) for i in range(2000)], "tool_choice": "required"},
        (400,),
    ),
    "1,000 definitions of a tool": (many_definitions(1000), (200, 400)),
    "1,000 definitions of a tool, required": ({**many_definitions(1000), "tool_choice": "required"}, (200, 400)),
    "10,000 stop strings": ({"stop": [f"s{i}" for i in range(10_000)]}, (200,)),
    "10,000 stop strings that begin alike": ({"stop": ["ee" + f"{i}" for i in range(9_000)]}, (200,)),
    "stop string of 1 MB": ({"stop": ["a" * 1_000_000]}, (400,)),
    "a million answers": ({"n": 1_000_000}, (400,)),
    "128 answers": ({"n": 128}, (429, 400)),
    "bias for the vocabulary": ({"logit_bias": {str(i): 1 for i in range(N_VOCAB)}}, (200,)),
    "bias for what is not there": ({"logit_bias": {str(10**9 + i): 1 for i in range(50_000)}}, (400,)),
    "nested schema": (schema(nested(90)), (400,)),
    "wide schema": (schema({"type": "object", "properties": {f"p{i}": {} for i in range(2000)}}), (200, 400)),
    "enum of 50,000": (schema({"enum": [f"v{i}" * 10 for i in range(50_000)]}), (400,)),
    "schema that doubles": (
        schema({
            "$defs": {
                **{f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(40)},
                "a40": {"type": "string"},
            },
            "$ref": "#/$defs/a0",
        }),
        (200, 400),
    ),
    "smallest integer in a schema": (schema({"enum": [-(2**63)]}), (400,)),
    "long strings by schema": (schema({"type": "string", "minLength": 100_000}), (200, 400)),
    "grammar nested 60,000 deep": ({"grammar": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000}, (400,)),
    "grammar that repeats repetitions": (
        {"grammar": 'root ::= ((("a"{0,1000}){0,1000}){0,1000}){0,1000}'},
        (200, 400),
    ),
    "grammar that doubles": (
        {"grammar": "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40)) + '\nr40 ::= "x"?'},
        (200, 400),
    ),
    "100,000 messages": ({"messages": [{"role": "user", "content": "a"}] * 100_000}, (400,)),
    "16,000 messages": ({"messages": [{"role": "user", "content": "a"}] * 16_000}, (400,)),
    "as many template variables as may be": ({"chat_template_kwargs": {f"k{i}": "x" for i in range(1000)}}, (200, 400)),
    "100,000 parts": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 100_000}]}, (400,)),
    "combining marks": (says("\u0301" * 100_000), (400,)),
    "joined emoji": (says("\u200d\U0001f468" * 50_000), (400,)),
    "directions and zeros": (says("a\u202e\ufeff\0" * 20), (200,)),
    "200,000 unknown fields": ({f"k{i}": 1 for i in range(200_000)}, (200,)),
    "100,000 template variables": ({"chat_template_kwargs": {f"k{i}": "x" for i in range(100_000)}}, (200, 400)),
    "20,000 sequence breakers": (
        {"dry_multiplier": 1.0, "dry_sequence_breakers": [f"b{i}" * 20 for i in range(20_000)]},
        (400,),
    ),
    "64 sequence breakers": (
        {"dry_multiplier": 1.0, "dry_sequence_breakers": [chr(97 + i % 26) * (1 + i) for i in range(64)]},
        (200,),
    ),
    "100,000 sampler stages": ({"samplers": ["top_k"] * 100_000}, (400,)),
    "file as an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]},
        (400,),
    ),
    "huge max_tokens": ({"max_tokens": 10**30}, (200, 400)),
    "huge seed": ({"seed": 10**300}, (400,)),
    "arguments that open for ever": (call("{" * 50_000), (400,)),
    "arguments nested 20,000 deep": (call('{"a":' * 20_000 + "1" + "}" * 20_000), (400,)),
}  # fmt: skip

#: Bytes of the longest body.
LIMIT = 4 << 20
HEAD = b'{"max_tokens":1,"messages":[{"role":"user","content":"x"}]'


def filled(before: bytes, each: bytes, after: bytes) -> bytes:
    """A body of as many ``each`` as there is room for."""
    return before + each * ((LIMIT - len(before) - len(after)) // len(each)) + after


def at_the_limit() -> dict[str, tuple[bytes, tuple[int, ...]]]:
    """Bodies of just the length that is taken, full of what costs most."""
    keys = b",".join(b'"k%d":1' % i for i in range(290_000))
    return {
        "words to the limit": (filled(HEAD[:-3], b"word ", b'"}]}'), (400,)),
        "letters to the limit": (filled(HEAD[:-3], b"q", b'"}]}'), (400,)),
        "escapes to the limit": (filled(HEAD[:-3], b"\\u00e9", b'"}]}'), (400,)),
        "quotes to the limit": (filled(HEAD[:-3], b'\\"', b'"}]}'), (400,)),
        "commas in text": (filled(HEAD[:-3], b",", b'"}]}'), (400,)),
        "messages to the limit": (
            filled(b'{"messages":[', b'{"role":"user","content":"a"},', b'{"role":"user","content":"a"}]}'), (400,)
        ),
        "numbers to the limit": (filled(HEAD + b',"x":[', b"1,", b"1]}"), (400,)),
        "lists to the limit": (filled(HEAD + b',"x":[', b"[],", b"1]}"), (400,)),
        "objects to the limit": (filled(HEAD + b',"metadata":{"a":[', b"{},", b"1]}}"), (400,)),
        "keys to the limit": (HEAD + b"," + keys + b"}", (200,)),
        "variables to the limit": (HEAD + b',"chat_template_kwargs":{' + keys + b"}}", (400,)),
        "biases that are none": (HEAD + b',"logit_bias":{' + keys.replace(b":1", b":{}") + b"}}", (400,)),
        "stop ids that are none": (HEAD + b',"stop_token_ids":[' + b'"a",' * 290_000 + b"1]}", (400,)),
        "schema to the limit": (
            filled(HEAD + b',"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"enum":[',
                   b'"value number one",', b"1]}}}}"), (400,)
        ),
    }  # fmt: skip


RAW = {
    "brackets": (b'{"messages":' + b"[" * 4_000_000, (400,)),
    "objects": (b'{"messages":[{"role":"user","content":' + b'{"a":' * 800_000, (400,)),
    "body over the limit": (b'{"messages":[],"x":"' + b"a" * (5 << 20) + b'"}', (413,)),
    "body far over the limit": (b'{"messages":[],"x":"' + b"a" * (65 << 20) + b'"}', (413,)),
    **at_the_limit(),
    "long number": (b'{"messages":[],"seed":' + b"9" * 3_000_000 + b"}", (400,)),
    "bytes that are no text": (b'{"messages":[{"role":"user","content":"\xff\xfe"}]}', (400,)),
    "half a surrogate pair": (b'{"messages":[{"role":"user","content":"\\ud800"}]}', (400,)),
    "no object": (b"[1, 2]", (400,)),
    "nothing": (b"", (400,)),
}


def check(server: ServerProcess, body: bytes, right: tuple[int, ...]) -> None:
    server.forget_peak()
    cpu, memory = server.cpu(), server.resident()
    answer = server.http.post("/v1/chat/completions", content=body)
    assert answer.status_code in right, answer.text[:500]
    if answer.status_code != 200:
        assert answer.json()["error"]["message"] and "Traceback" not in answer.text
    spent, grown = server.cpu() - cpu, server.peak() - memory
    assert spent <= CPU_SECONDS, f"{spent:.1f} s of CPU"
    assert grown <= BYTES, f"{grown >> 20} MiB"


@pytest.mark.parametrize("name", list(ASKED))
def test_expensive_requests(server: ServerProcess, name: str) -> None:
    fields, right = ASKED[name]
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0, **fields}
    check(server, json.dumps(body).encode(), right)
    server.alive()


@pytest.mark.parametrize("name", list(RAW))
def test_bodies(server: ServerProcess, name: str) -> None:
    check(server, *RAW[name])
    server.alive()


def test_a_flood_is_refused_with_a_time_to_come_back(server: ServerProcess) -> None:
    statuses: list[int] = []
    server.forget_peak()
    memory = server.resident()

    def ask() -> None:
        answer = server.http.post(
            "/v1/completions", json={"prompt": "a", "max_tokens": 100, "ignore_eos": True}
        )
        statuses.append(answer.status_code)
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1

    threads = [threading.Thread(target=ask) for _ in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(statuses) == 60 and set(statuses) <= {200, 429} and statuses.count(200) >= 10
    assert server.peak() - memory <= BYTES
    server.alive()


def idle_connections(server: ServerProcess, n: int) -> None:
    memory, cpu, files = server.resident(), server.cpu(), server.n_files()
    socks = []
    try:
        for i in range(n):
            sock = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            if i % 2:
                sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
            socks.append(sock)
        server.alive()
        time.sleep(1)
        assert server.cpu() - cpu < CPU_SECONDS
        assert server.resident() - memory < BYTES
    finally:
        for sock in socks:
            sock.close()
    end = time.monotonic() + 10
    while server.n_files() > files + 4 and time.monotonic() < end:
        time.sleep(0.05)
    assert server.n_files() <= files + 4, "connections that were closed are still open"
    server.alive()


def test_idle_connections(server: ServerProcess) -> None:
    idle_connections(server, 200)


@pytest.mark.slow
def test_2000_idle_connections(server: ServerProcess) -> None:
    idle_connections(server, 2000)


def test_slow_readers_do_not_hold_others_up(server: ServerProcess) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True, "logprobs": 5})
    request = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    )
    memory = server.resident()
    socks = []
    for _ in range(8):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(request.encode())
        socks.append(sock)
    time.sleep(1)
    begin = time.monotonic()
    assert server.chat().status_code == 200
    assert time.monotonic() - begin < 20
    assert server.resident() - memory < BYTES
    for sock in socks:
        sock.close()
    server.alive()

"""What costs at the level of HTTP itself: chunks, headers, packing, lengths that lie; refused early, at little cost."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator

import pytest
from server_process import LINUX, ServerProcess
from test_pressure import BYTES, CPU_SECONDS, LIMIT, warm_server

pytestmark = pytest.mark.skipif(not LINUX, reason="reads what a process costs from /proc")

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\n"
)
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}).encode()
BOMB = gzip.compress(b" " * (50 << 20) + BODY)


def chunks(data: bytes, size: int) -> bytes:
    parts = (data[i : i + size] for i in range(0, len(data), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


#: What is sent, in pieces -> statuses that are right.
SENT: dict[str, tuple[list[bytes], tuple[int, ...]]] = {
    "small body in chunks of one byte": ([CHUNKED, chunks(BODY, 1)], (200,)),
    "large body in chunks of 64 KiB": (
        [CHUNKED, chunks(BODY + b" " * (LIMIT - len(BODY) - 100), 1 << 16)], (200,)
    ),
    "body at the limit in chunks of one byte": ([CHUNKED, chunks(BODY + b" " * (LIMIT - 1000), 1)], (400,)),
    "the same for nobody": (
        [CHUNKED.replace(b"/v1/chat/completions", b"/nothing/here"), chunks(b" " * (LIMIT - 1000), 1)], (404,)
    ),
    "body far over the limit in chunks": ([CHUNKED, *[b"10000\r\n" + b"a" * 65536 + b"\r\n"] * 1000], (413,)),
    "chunk of more bytes than there are": ([CHUNKED, b"ffffffffffffffffffffffff\r\naaa"], (413,)),
    "chunk of fewer bytes than none": ([CHUNKED, b"-5\r\naaa\r\n0\r\n\r\n"], (400,)),
    "size of a chunk that never ends": ([CHUNKED, *[b"0" * 65536] * 300], (400,)),
    "header of 64 MiB": ([GET + b"X: ", *[b"a" * 65536] * 1000], (413,)),
    "a million headers": ([GET, *[b"X: a\r\n" * 10_000] * 100], (413,)),
    "address of 1 MB": ([b"GET /", *[b"a" * 65536] * 16, b" HTTP/1.1\r\nHost: localhost\r\n\r\n"], (413,)),
    "packed bomb": ([POST + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB), BOMB], (400,)),
    "chunks and a length": ([POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"], (400,)),
    "two lengths": ([POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\naaaaaa"], (400,)),
    "length below zero": ([POST + b"Content-Length: -5\r\n\r\naaaaaa"], (400,)),
    "length beyond all": ([POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\naaaaaa"], (413,)),
    "length of another alphabet": ([POST + b"Content-Length: 1_0\r\n\r\naaaaaaaaaa"], (400,)),
    "noise": ([b"\0\xff" * 50_000], (400, 413)),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with warm_server(tmp_path_factory.mktemp("model")) as process:
        yield process


def status(server: ServerProcess, pieces: list[bytes]) -> int:
    """Send pieces until the server has had enough; gives what it answers."""
    got = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        try:
            for piece in pieces:
                sock.sendall(piece)
        except OSError:  # it has answered, and closed
            pass
        while b"\r\n" not in got:
            data = sock.recv(4096)
            assert data, f"no answer, but {got!r}"
            got += data
    return int(got.split()[1])


@pytest.mark.parametrize("name", list(SENT))
def test_what_is_sent(server: ServerProcess, name: str) -> None:
    pieces, right = SENT[name]
    server.forget_peak()
    cpu, memory = server.cpu(), server.resident()
    assert status(server, pieces) in right
    spent, grown = server.cpu() - cpu, server.peak() - memory
    assert spent <= CPU_SECONDS, f"{spent:.1f} s of CPU"
    assert grown <= BYTES, f"{grown >> 20} MiB"
    server.alive()

"""Where a server listens, and how it is reached: Unix sockets, and addresses as ``GGFW_HOST`` holds them."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli_support import COMMAND
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import write_llama

from ggfw.cli.address import Address
from ggfw.cli.client import Server
from ggfw.cli.listening import listening
from ggfw.errors import InvalidRequest

pytest_plugins = ["cli_support"]
UNIX = pytest.mark.skipif(not hasattr(socket, "AF_UNIX") or os.name == "nt", reason="needs Unix sockets")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("box", ("http", "box", None, "")),
        ("box:9", ("http", "box", 9, "")),
        (":9", ("http", "127.0.0.1", 9, "")),
        ("::1", ("http", "::1", None, "")),
        ("[::1]:9", ("http", "::1", 9, "")),
        ("0.0.0.0:11434", ("http", "0.0.0.0", 11434, "")),
        ("http://box", ("http", "box", 80, "")),
        ("https://box", ("https", "box", 443, "")),
        ("HTTP://Box:7/", ("http", "box", 7, "")),
        ("https://box:1/x/", ("https", "box", 1, "/x")),
        ("unix:///run/g.sock", ("unix", "", None, "/run/g.sock")),
        ("unix:/run/g.sock", ("unix", "", None, "/run/g.sock")),
    ],
)
def test_addresses(text: str, expected: tuple[Any, ...]) -> None:
    found = Address.parse(text)
    assert (found.scheme, found.host, found.port, found.path) == expected
    assert Address.parse(found.url(8080)) is not None


BAD = [
    "", "ftp://x", "http://", "box:port", "box:99999", "http://a b", "box:1?x", "http://u:p@box", "unix://x",
    "unix:", "[::1", "http://box#x", "://x",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_bad_addresses_are_one_sentence(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no address of a server") as caught:
        Address.parse(text)
    assert "\n" not in str(caught.value) and caught.value.param == "host"


@given(st.text(max_size=40))
def test_no_text_breaks_the_reading_of_addresses(text: str) -> None:
    try:
        found = Address.parse(text)
    except InvalidRequest:
        return
    assert found.scheme in ("http", "https", "unix") and (found.host or found.path.startswith("/"))


def test_serve_understands_its_host(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_llama(tmp_path / "a.gguf")
    for host, why in (
        ("ftp://x", "is no address of a server"),
        ("https://127.0.0.1", "TLS"),
        ("http://127.0.0.1:9/x", "has a path"),
        ("box:port", "is no address of a server"),
    ):
        monkeypatch.setenv("GGFW_HOST", host)
        said = cli("serve", path)
        assert said.code == 1 and why in said.error, (host, said.err)
    with listening("http://127.0.0.1:0", 1, None, port_given=False) as (sock, url):
        assert url == f"http://127.0.0.1:{sock.getsockname()[1]}" and not url.endswith(":1")
        taken = sock.getsockname()[1]
        with (
            pytest.raises(InvalidRequest, match="cannot listen on 127.0.0.1 port"),
            listening(f"127.0.0.1:{taken}", 1, None, port_given=False),
        ):
            pass
        with listening(f"http://127.0.0.1:{taken}", 0, None, port_given=True) as (other, _):
            assert other.getsockname()[1] != taken, "the port that the user typed wins"
    if socket.has_ipv6:
        with listening("[::1]:0", 1, None, port_given=False) as (_, url):
            assert url.startswith("http://[::1]:")


# -- Unix sockets ----------------------------------------------------------------------------------


@UNIX
def test_a_socket_belongs_to_its_owner_and_goes_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "g.sock"
    with listening("x", 1, str(path), port_given=False) as (_, url):
        assert url == f"unix://{path}" and stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [p.name for p in tmp_path.iterdir()] == ["g.sock"]
        with (
            pytest.raises(InvalidRequest, match="a server answers on .* already"),
            listening("x", 1, str(path), port_given=False),
        ):
            pass
    assert not path.exists()


@UNIX
def test_what_a_dead_server_left_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "g.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with listening("x", 1, str(path), port_given=False) as (sock, _):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            sock.accept()[0].close()
        path.unlink()  # somebody else's now
        path.write_text("mine")
    assert path.read_text() == "mine"
    with (
        pytest.raises(InvalidRequest, match="is no socket"),
        listening("x", 1, str(path), port_given=False),
    ):
        pass
    for bad in (tmp_path / ("x" * 200), tmp_path / "no" / "where"):
        with (
            pytest.raises(InvalidRequest, match="cannot listen on the Unix socket"),
            listening("x", 1, str(bad), port_given=False),
        ):
            pass


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("u")
    model = write_llama(folder / "Tiny.gguf", n_ctx=512)
    path = folder / "g.sock"
    command = [*COMMAND, "serve", str(model), "--unix", str(path), "--models-dir", str(folder), "--no-ui"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert f"unix://{path}" in said, said
        yield path
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        assert not path.exists(), "it is removed at exit"
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


@UNIX
def test_clients_and_verbs_reach_it(server: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(server)), base_url="http://localhost") as http:
        answer = http.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True},
            timeout=30,
        )
        assert answer.text.endswith("data: [DONE]\n\n")
    monkeypatch.delenv("GGFW_LOCAL")
    monkeypatch.setenv("GGFW_HOST", f"unix://{server}")
    assert '"Tiny"' in cli("ps", "--json").out
    said = cli("run", "tiny", "hello", "-n", "4", "--temp", "0")
    assert said.code == 0, said.err
    assert Server(f"unix://{server}").ask("GET", "/api/version")["ggfw"]
    monkeypatch.setenv("GGFW_HOST", f"unix://{server}x")
    said = cli("ps")
    assert said.code == 1 and "does not answer" in said.error
    monkeypatch.setenv("GGFW_HOST", f"unix://{server}")
    said = cli("serve", server.parent / "Tiny.gguf", "--port", "0")
    assert said.code == 1 and re.search("a server answers on .* already", said.error)


def test_help_tells_of_it() -> None:
    said = subprocess.run([*COMMAND, "serve", "--help"], capture_output=True, text=True, timeout=60)
    assert "--unix PATH" in said.stdout and "--memory SIZE" in said.stdout, sys.executable

"""The verbs that talk to a running server."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli_support import COMMAND
from tiny_models import write_llama

import ggfw
from ggfw.cli.client import Server, ServerError, find_server
from ggfw.cli.remote import RemoteModel
from ggfw.errors import GenerationCanceled, InvalidRequest

if TYPE_CHECKING:
    from cli_support import Cli

pytest_plugins = ["cli_support"]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "Tiny-Llama.gguf", n_ctx=4096)


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    """A server with the key ``secret``."""
    command = [*COMMAND, "serve", str(model), "--port", "0", "--api-key", "secret", "--no-ui"]
    command += ["--models-dir", str(model.parent)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        found = None
        while found is None and (line := process.stderr.readline()):
            found = re.search(r"on (http://127\.0\.0\.1:\d+)", line)
        assert found
        yield found[1]
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def served(url: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line, with the server named by GGFW_HOST."""
    monkeypatch.delenv("GGFW_LOCAL")
    monkeypatch.setenv("GGFW_HOST", url)
    monkeypatch.setenv("GGFW_API_KEY", "secret")
    return cli


def test_run_gives_what_it_gives_here(served: Cli, model: Path) -> None:
    args = ("hello", "--temp", "0", "-n", "12", "--json")
    there, here = served("run", "tiny-llama", *args), served("run", model, *args, "--local")
    assert there.code == here.code == 0, there.err + here.err
    there_json, here_json = json.loads(there.out), json.loads(here.out)
    for key in ("text", "reasoning", "finish_reason"):
        assert there_json[key] == here_json[key]
    assert there_json["usage"]["completion_tokens"] == 12
    assert served("run", "hello there", "--temp", "0", "-n", "3").code == 0, "its only model answers"
    raw = served("run", "tiny-llama", "hello", "--raw", *args[1:])
    assert (
        json.loads(raw.out)["text"]
        == json.loads(served("run", model, "hello", "--raw", "--local", *args[1:]).out)["text"]
    )


def test_a_model_goes_by_every_name_that_the_server_takes(served: Cli, url: str, model: Path) -> None:
    """Lists have one name of it; the tutorial serves and asks under that of the catalogue, which is another."""
    server = Server(url, "secret")
    assert server.knows("tiny-llama.GGUF") == server.knows("TINY-LLAMA:latest") == "Tiny-Llama"
    assert all(
        server.knows(name) is None for name in ("nonsense", "a/b?c#d", "hello there", "", "x" * 9000, "%")
    )
    assert served("run", "Tiny-Llama.gguf", "hello", "-n", "2").code == 0
    assert "is unloaded" in served("stop", "tiny-llama.gguf").err


def test_run_with_a_schema(served: Cli, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "boolean"}')
    said = served("run", "tiny-llama", "hello", "--schema", tmp_path / "s.json")
    assert json.loads(said.out) in (True, False)


def test_chat(served: Cli) -> None:
    said = served("chat", "--temp", "0", "-n", "6", stdin=b"one\n/show\n/model\n/bye\n")
    assert said.code == 0 and "Tiny-Llama" in said.out and "Tiny-Llama" in said.err.split()


def test_list(served: Cli) -> None:
    (row,) = json.loads(served("list", "--json").out)
    assert row["id"] == "Tiny-Llama" and row["size_bytes"] > 0
    assert json.loads(served("list", "--json", "--local").out) == []


def test_ps_and_stop(served: Cli) -> None:
    assert served("run", "tiny-llama", "x", "-n", "1").code == 0
    (row,) = json.loads(served("ps", "--json").out)
    assert row["name"] == "Tiny-Llama" and row["context"] == 4096 and row["until"]
    assert "Tiny-Llama" in served("ps").out
    assert served("stop").code == 2
    said = served("stop", "no-such")
    assert said.code == 1 and "no-such" in said.error


def test_bench_of_a_server(served: Cli, url: str) -> None:
    args = ("--serve", f"{url}/v1", "-p", "20", "-n", "8", "--repeat", "1", "--parallel", "1,2")
    rows = json.loads(served("bench", "Tiny-Llama", *args, "--json").out)
    assert [row["parallel"] for row in rows] == [1, 2] and url in rows[0]["mode"]
    assert rows[1]["samples"][0]["generated_tokens"] == 16
    assert all(row["decode_tokens_per_second"] > 0 and row["ttft_ms"] > 0 for row in rows)
    table = served("bench", *args[:-2]).out
    assert "through HTTP" in table and len(table.splitlines()[-1].split()) == 6, "no load time, no memory"
    said = served("bench", "nonsense", *args)
    assert said.code == 1 and "nonsense" in said.error


def test_errors(served: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = served("run", "nonsense", "hello")
    assert said.code == 1 and "has no model 'nonsense'" in said.error and "Tiny-Llama" in said.error
    said = served("run", "tiny-llama", "hello", "--threads", "2")
    assert said.code == 2 and "--threads" in said.error and "--local" in said.error
    said = served("run", "tiny-llama", "x" * 9000)
    assert said.code == 1 and "4096" in said.error
    monkeypatch.setenv("GGFW_API_KEY", "wrong")
    said = served("ps")
    assert said.code == 1 and "GGFW_API_KEY" in said.error
    monkeypatch.setenv("GGFW_HOST", "127.0.0.1:1")
    said = served("run", "hello there")
    assert said.code == 1 and "does not answer" in said.error
    monkeypatch.setenv("GGFW_HOST", "ftp://x")
    assert "is no address" in served("ps").error


def test_without_a_server(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGFW_PORT", "1")
    said = cli("ps")
    assert said.code == 1 and "ggfw serve" in said.error
    assert find_server(True) is None and find_server(False) is None


def test_a_server_on_the_default_port(
    cli: Cli, url: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGFW_LOCAL", "")
    monkeypatch.setenv("GGFW_PORT", url.rpartition(":")[2])
    monkeypatch.setenv("GGFW_API_KEY", "secret")
    found = find_server(False)
    assert found is not None and not found.named
    assert cli("run", "tiny-llama", "hello", "-n", "2").code == 0, "it knows the model"
    assert cli("run", model, "hello", "-n", "2", "--threads", "1").code == 0, "loaded here"
    assert cli("run", "no-such-model", "hello").code == 1


def test_an_answer_can_be_stopped(url: str) -> None:
    remote = RemoteModel(Server(url, "secret"), "Tiny-Llama")
    stream = ggfw.Stream(remote.submit_chat([ggfw.user("x")], max_tokens=3000, ignore_eos=True))  # type: ignore[arg-type]
    pieces = iter(stream)
    first = next(pieces)
    stream.close()
    with pytest.raises(GenerationCanceled) as caught:
        stream.result()
    assert caught.value.partial.text.startswith(first)
    with pytest.raises(InvalidRequest, match="own skills"):
        remote.submit_chat([], skills=[])


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("box", "http://box:8080"),
        ("box:9", "http://box:9"),
        ("0.0.0.0", "http://127.0.0.1:8080"),
        ("::1", "http://[::1]:8080"),
        ("[::1]:9", "http://[::1]:9"),
        ("https://box/x", "https://box/x"),
    ],
)
def test_addresses(host: str, expected: str) -> None:
    from ggfw.cli.client import _url

    assert _url(host, "8080") == expected
    with pytest.raises(ServerError):
        Server("http://127.0.0.1:1").ask("GET", "/", timeout=1)


@pytest.mark.parametrize(
    ("args", "offered"), [(["ps"], False), (["bench", "--serve", "URL"], False), (["run", "m", "x"], True)]
)
def test_working_without_a_server_is_offered_where_it_can_be_done(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, args: list[str], offered: bool
) -> None:
    with socket.socket() as closed:  # bound, but nobody listens
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.delenv("GGFW_LOCAL")
        monkeypatch.setenv("GGFW_HOST", url)
        error = cli(*[url if arg == "URL" else arg for arg in args]).error
    assert "start it with `ggfw serve`" in error and ("--local" in error) is offered

"""``ggfw run``: which argument is what, where text goes, how it ends."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tiny_models import write_llama

import ggfw
from ggfw.cli.run import split_words
from ggfw.errors import ModelNotFound
from ggfw.execute.native import NativeExecutor

if TYPE_CHECKING:
    from cli_support import Cli

pytest_plugins = ["cli_support"]

GREEDY = ["--temp", "0"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "Tiny-Llama.Q8_0.gguf", n_ctx=4096)


# -- arguments -------------------------------------------------------------------------------------------------------


def test_which_argument_is_the_model(home: Path, model: Path) -> None:
    folder = str(model.parent)
    assert split_words((), folder) == (None, [])
    assert split_words(("-",), folder) == (None, ["-"])
    assert split_words((str(model),), folder) == (str(model), [])
    assert split_words((folder,), None) == (folder, [])
    assert split_words(("tiny-llama",), folder) == ("tiny-llama", [])
    assert split_words(("hf:me/repo",), folder) == ("hf:me/repo", [])
    assert split_words(("smollm2-135m-instruct",), folder) == ("smollm2-135m-instruct", [])
    assert split_words(("Why is the sky blue?",), folder) == (None, ["Why is the sky blue?"])
    assert split_words(("hf: what is that?",), folder) == (None, ["hf: what is that?"])
    assert split_words(("x" * 5000 + " y",), folder) == (None, ["x" * 5000 + " y"])
    assert split_words(("m", "a", "b"), folder) == ("m", ["a", "b"])
    with pytest.raises(ModelNotFound, match="'tyni-lama'; did you mean Tiny-Llama.Q8_0"):
        split_words(("tyni-lama",), folder)


def answer(model: Path, prompt: str, n: int = 6) -> str:
    with ggfw.load(model) as loaded:
        return loaded.chat([ggfw.user(prompt)], max_tokens=n, temperature=0).text


def same(out: str, text: str) -> bool:
    return out == text + ("" if text.endswith("\n") else "\n")


@pytest.mark.parametrize(
    ("words", "stdin", "prompt"),
    [
        (["one two"], None, "one two"),
        (["one", "two"], None, "one two"),
        (["-"], b"from a pipe", "from a pipe"),
        ([], b"from a pipe", "from a pipe"),
        (["Say:", "-"], b"this\n", "Say:\n\nthis\n"),
        (["Say:"], b"this\n", "Say:\n\nthis\n"),
        (["one two"], b"", "one two"),
        (["é\u4e2d"], None, "é\u4e2d"),
    ],
)
def test_where_the_prompt_comes_from(
    cli: Cli, model: Path, words: list[str], stdin: bytes | None, prompt: str
) -> None:
    said = cli("run", model, *words, *GREEDY, "-n", "6", stdin=stdin)
    assert said.code == 0 and same(said.out, answer(model, prompt))


def test_a_model_found_by_name_and_in_a_folder(cli: Cli, model: Path) -> None:
    expected = answer(model, "hello")
    for args in (["tiny", "hello", "--models-dir", model.parent], [model.parent, "hello"]):
        assert same(cli("run", *args, *GREEDY, "-n", "6").out, expected)


def test_the_default_model_answers_without_a_name(
    cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the default's name and size in the folder is taken, without network."""
    from dataclasses import replace

    from ggfw import catalogue

    entry = replace(catalogue.DEFAULT, file=model.name, n_bytes=model.stat().st_size)
    monkeypatch.setattr(catalogue, "DEFAULT", entry)
    monkeypatch.setenv("GGFW_MODELS_DIR", str(model.parent))
    assert same(cli("run", "hello there", *GREEDY, "-n", "6").out, answer(model, "hello there"))
    assert same(cli("run", *GREEDY, "-n", "6", stdin=b"hello").out, answer(model, "hello"))


def test_system_prompt_and_raw(cli: Cli, model: Path) -> None:
    with ggfw.load(model) as loaded:
        messages = [ggfw.system("Be brief."), ggfw.user("hello")]
        expected = loaded.chat(messages, max_tokens=6, temperature=0).text
        raw = loaded.generate("hello", max_tokens=6, temperature=0).text
    assert same(cli("run", model, "hello", "--system", "Be brief.", *GREEDY, "-n", "6").out, expected)
    assert same(cli("run", model, "hello", "--raw", *GREEDY, "-n", "6").out, raw)
    said = cli("run", model, "hello", "--raw", "--system", "x")
    assert said.code == 2 and "--raw leaves the chat template out" in said.error


# -- what comes out --------------------------------------------------------------------------------------------------


def test_json(cli: Cli, model: Path) -> None:
    said = cli("run", model, "hello", "--json", "--seed", "7", "-n", "9")
    found = json.loads(said.out)
    assert said.code == 0 and said.err == ""
    assert list(found) == [
        "text",
        "reasoning",
        "tool_calls",
        "finish_reason",
        "token_ids",
        "usage",
        "timings",
    ]
    assert found["finish_reason"] == "length" and len(found["token_ids"]) == 9
    assert found["usage"]["completion_tokens"] == 9
    assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] + 9
    assert {"load", "queue", "ttft", "prefill", "decode", "total"} <= set(found["timings"])
    again = json.loads(cli("run", model, "hello", "--json", "--seed", "7", "-n", "9").out)
    assert again["token_ids"] == found["token_ids"]


def test_sampling_options_reach_the_sampler(cli: Cli, model: Path) -> None:
    given = {"temperature": 1.5, "top_k": 7, "top_p": 0.8, "min_p": 0.01, "typical_p": 0.9, "repeat_penalty": 1.3,
             "repeat_last_n": 5, "frequency_penalty": 0.1, "presence_penalty": 0.2, "seed": 3}  # fmt: skip
    with ggfw.load(model) as loaded:
        expected = loaded.chat(
            [ggfw.user("hello")], max_tokens=20, logit_bias={70: -5.0}, ignore_eos=True, **given
        )
        plain = loaded.chat([ggfw.user("hello")], max_tokens=20, seed=3, ignore_eos=True)
    options = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
    said = cli("run", model, "hello", "-n", "20", "--json", "--ignore-eos", "--logit-bias", "70=-5", *options)
    assert json.loads(said.out)["token_ids"] == list(expected.token_ids)
    assert expected.token_ids != plain.token_ids


def test_the_limit_is_said(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = cli("run", model, "hello", *GREEDY, "-n", "5", "--ignore-eos")
    assert said.err == "ggfw: stopped after 5 tokens; --max-tokens sets the limit\n"
    said = cli("run", model, "hello", *GREEDY, "-n", "-1", "--ctx", "64", "--ignore-eos")
    assert said.code == 0 and "at the end of the context; --ctx sets its size" in said.err
    monkeypatch.setattr("ggfw.cli.run.MAX_TOKENS", 3)
    assert "stopped after 3 tokens" in cli("run", model, "hello", *GREEDY, "--ignore-eos").err


def test_stop_strings(cli: Cli, model: Path) -> None:
    whole = answer(model, "hello", 200)
    cut = next(c for c in whole[3:] if c.isascii() and c.isprintable())
    said = cli("run", model, "hello", *GREEDY, "-n", "200", "--stop", "never this", "--stop", cut)
    assert said.err == "" and same(said.out, whole[: whole.index(cut)])


def test_stats(cli: Cli, model: Path) -> None:
    said = cli("run", model, "hello", *GREEDY, "-n", "5", "--stats")
    assert "answer 5 tokens" in said.err and "peak memory" in said.err and "answer" not in said.out


def test_timeout(cli: Cli, model: Path) -> None:
    said = cli("run", model, "hello", "-n", "-1", "--ignore-eos", "--timeout", "0.02")
    assert said.code == 1 and "deadline" in said.err and "0.02 s" in said.err
    assert said.out.endswith("\n"), "what had come is there"
    said = cli("run", model, "hello", "-n", "-1", "--ignore-eos", "--timeout", "0.02", "--json")
    assert said.code == 1 and json.loads(said.out)["finish_reason"] == "deadline"


class Pipe(io.RawIOBase):
    """Counts what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.writes.append(bytes(data))  # type: ignore[call-overload]
        return len(self.writes[-1])


def test_every_piece_is_written_at_once(model: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(pipe), encoding="ascii"))
    pieces: list[str] = []
    stream = ggfw.Stream.deltas

    def noting(self: ggfw.Stream) -> object:
        for delta in stream(self):
            pieces.append(delta.text)
            yield delta

    monkeypatch.setattr(ggfw.Stream, "deltas", noting)
    from ggfw.cli.main import main

    # Pieces that wait for the reader are handed over together, and the tiny model needs microseconds per token: with
    # the pace of a real one, each piece comes on its own.
    step = NativeExecutor.step

    def unhurried(self: NativeExecutor, batch: object) -> object:
        time.sleep(0.005)
        return step(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(NativeExecutor, "step", unhurried)
    assert main(["run", str(model), "hello", *GREEDY, "-n", "50"]) == 0
    assert len(pieces) > 5
    assert [piece.encode() for piece in pieces] == pipe.writes[: len(pieces)]


@pytest.mark.slow
def test_pieces_through_a_real_pipe(cli: Cli, smollm2_path: Path) -> None:
    command = [*cli.command, "run", str(smollm2_path), "Count to thirty.", *GREEDY, "-n", "60", "--stats"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None and process.stderr is not None
    reads = 0
    while os.read(process.stdout.fileno(), 1 << 16):
        reads += 1
    n_tokens = int(process.stderr.read().decode().split("answer ")[1].split()[0])
    assert process.wait() == 0 and n_tokens > 20
    assert reads >= n_tokens / 2


@pytest.mark.skipif(os.name == "nt", reason="POSIX locales")
def test_any_locale(cli: Cli, model: Path) -> None:
    env = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    prompt = "é\u4e2d\U0001f600"
    said = cli.process("run", model, prompt, *GREEDY, "-n", "6", env=env)
    assert said.returncode == 0 and same(said.stdout.decode(), answer(model, prompt))
    ids = cli.process("tokenize", model, prompt, env=env).stdout.decode()
    said = cli.process("detokenize", model, ids, env=env)
    assert said.stdout.decode() == prompt + "\n"


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c(cli: Cli, model: Path) -> None:
    command = [*cli.command, "run", str(model), "hello", "-n", "-1", "--ctx", "1000000", "--ignore-eos"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    os.read(process.stdout.fileno(), 10)  # it has begun to answer
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and err.strip() == b"", err.decode()
    assert time.monotonic() - begin < 10


def test_profile(cli: Cli, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    assert cli("run", model, "hello", "-n", "200", "--ignore-eos", "--profile", out).code == 0
    found = json.loads(out.read_text())
    assert found["$schema"].endswith("file-format-schema.json")
    native, *python = found["profiles"]
    frames = found["shared"]["frames"]
    assert native["name"] == "native steps" and sum(native["weights"]) == native["endValue"] > 0
    for profile in found["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(0 <= i < len(frames) for sample in profile["samples"] for i in sample)
    assert any("run_verb" in frames[i]["name"] for p in python for sample in p["samples"] for i in sample)
    talked = tmp_path / "chat.json"
    said = cli.process("chat", model, "--max-tokens", "3", "--profile", talked, input=b"Hello\n/bye\n")
    assert said.returncode == 0, said.stderr
    assert any(p["name"] == "native steps" for p in json.loads(talked.read_text())["profiles"])
    wrong = cli("run", model, "hello", "--profile", tmp_path / "no" / "p.json")
    assert wrong.code == 1 and "cannot be written" in wrong.error


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Here:\n```python\nprint(1)\n```\nand\n```\nno\n```", "print(1)\n"),
        ("~~~\na ``` b\n~~~\n", "a ``` b\n"),
        ("````md\n```sh\nls\n```\n````", "```sh\nls\n```\n"),
        ("```\ncut short", "cut short"),
        ("```\n```", ""),
        ("none, `inline` only", None),
        ("``` no `fence`", None),
    ],
)
def test_first_code(text: str, code: str | None) -> None:
    from ggfw.cli.run import first_code

    assert first_code(text) == code


def test_extract_needs_a_block(cli: Cli, model: Path) -> None:
    said = cli("run", model, "Hi", "-x", "--max-tokens", "3")
    assert said.code == 1 and not said.out and "no fenced block" in said.err
    assert cli("run", model, "Hi", "-x", "--json").code == 2


def test_packed_weights_are_mapped_or_not(cli: Cli, model: Path) -> None:
    def kept() -> list[Path]:
        return list(cli.home.rglob("*.packed"))

    words = ("run", model, "Hi", "--raw", "--max-tokens", "2", "--seed", "1")
    plain = cli(*words, "--no-mmap")
    assert plain.code == 0 and not kept()
    assert cli(*words).out == plain.out and kept()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mlockall of Linux")
def test_memory_can_be_locked_or_says_why_not(cli: Cli, model: Path) -> None:
    said = cli.process("run", model, "Hi", "--raw", "--max-tokens", "2", "--mlock")
    assert said.returncode == 0 or b"may not lock its memory" in said.stderr, said.stderr


def test_the_default_model_is_the_users(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("run", "some words", "--raw", "--max-tokens", "2", "--seed", "1")
    named = cli("run", model, *words[1:])
    assert named.code == 0
    assert cli(*words, "--default-model", model).out == named.out
    monkeypatch.setenv("GGFW_DEFAULT_MODEL", str(model))
    assert cli(*words).out == named.out
    assert cli("bench", "-p", "4", "-n", "2", "--repeat", "1").code == 0
    monkeypatch.setenv("GGFW_DEFAULT_MODEL", "nowhere-to-be-found")
    assert "nowhere-to-be-found" in cli(*words).error


def test_a_folder_for_models_that_cannot_be_written_says_the_way_out(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.delenv("GGFW_MODELS_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    said = cli("run", "hi there you")
    assert said.code == 1 and str(tmp_path / "file") in said.err
    assert "--models-dir" in said.err and "XDG_CACHE_HOME" in said.err

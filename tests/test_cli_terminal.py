"""``ggfw chat`` on a real terminal: editor, Markdown, Ctrl-C, history; and rendering by itself."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_support import COMMAND
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import write_llama

from ggfw.cli import terminal
from ggfw.cli.lines import MAX_HISTORY, _shorten
from ggfw.cli.markdown import MarkdownWriter, finished_blocks

pytest_plugins = ["cli_support"]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals are POSIX")


class Screen:
    """A program on a pseudo terminal."""

    def __init__(self, *args: str) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        env = {**os.environ, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            [*COMMAND, *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
        )
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, pattern: str, seconds: float = 15.0) -> str:
        """Read until ``pattern`` is there; returns and forgets everything up to its end."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.plain())):
            assert time.monotonic() < deadline, f"{pattern!r} did not come: {self.plain()!r}"
            if not self._read():
                break
        assert found, f"{pattern!r} did not come: {self.plain()!r}"
        text = self.plain()[: found.end()]
        self.seen = self.plain()[found.end() :]
        return text

    def _read(self) -> bool:
        ready, _, _ = select.select([self.master], [], [], 0.2)
        if not ready:
            return self.process.poll() is None
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)

    def plain(self) -> str:
        """What was written, without control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[=>]", "", self.seen)

    def end(self) -> int:
        deadline = time.monotonic() + 15
        while self._read():
            if time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"it did not end: {self.plain()!r}")
        code = self.process.wait(30)
        os.close(self.master)
        return code


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", n_ctx=4096))


def test_a_chat_on_a_terminal(model: str, home: Path) -> None:
    screen = Screen("chat", model, "--temp", "0", "-n", "4000", "--ignore-eos", "--no-markdown")
    screen.wait_for("/help lists the commands")
    screen.wait_for(">")
    screen.type("/set temp 0.5\r")
    screen.wait_for(r"temp = 0\.5")
    screen.wait_for(">")
    screen.type("first\x1b\rsecond\r")  # Alt-Enter breaks the line
    screen.wait_for("second")
    screen.wait_for(r"\n[^\s.>]")  # it answers
    screen.type("\x03")  # stops the answer only
    assert "^C" not in screen.wait_for(r"\(stopped\)"), (
        "it would push the answer about that is drawn again and again"
    )
    screen.wait_for(">")
    screen.type("\x1b[200~/save talk\npasted\x1b[201~")  # a pasted line break sends nothing
    screen.wait_for("pasted")
    screen.type("\x03\x03")  # the first throws away what was typed, and does not count
    screen.wait_for("once more.*leaves")
    screen.wait_for(">")
    screen.type("more")
    screen.wait_for("more")
    screen.type("\x03")  # nor does this one
    time.sleep(0.3)
    screen.type(f"/save {home / 'talk.json'}\r")
    screen.wait_for("2 messages written")
    screen.wait_for(">")
    screen.type("/sta\t")  # completed
    screen.wait_for("/stats")
    screen.type("\r")
    screen.wait_for("peak memory")
    screen.wait_for(">")
    screen.type("\x04")
    assert screen.end() == 0
    assert '"first\\nsecond"' in (home / "talk.json").read_text()
    history = home / ".local" / "share" / "ggfw" / "chat_history"
    assert "+first\n+second\n" in history.read_text() and history.stat().st_mode & 0o077 == 0


def test_markdown_on_a_terminal(model: str, home: Path) -> None:
    screen = Screen("chat", model, "-n", "30", "--ignore-eos", "--no-history")
    screen.wait_for(">")
    screen.type("hello\r")
    screen.wait_for("stopped after 30 tokens")
    screen.type("/bye\r")
    assert screen.end() == 0
    assert not (home / ".local" / "share" / "ggfw").exists()


def test_going_on_with_the_last_conversation(model: str, home: Path) -> None:
    screen = Screen("chat", model, "-n", "8", "--ignore-eos")
    screen.wait_for(">")
    screen.type("remember me\r")
    screen.wait_for("stopped after.*limit")
    screen.wait_for(">")
    screen.type("\x04")
    assert screen.end() == 0
    screen = Screen("chat", model, "-c")
    screen.wait_for("going on after 2 messages")
    screen.wait_for(">")
    screen.type("\x03")
    screen.wait_for("once more.*leaves")
    screen.wait_for(">")
    screen.type("\x03")
    assert screen.end() == 0


def test_an_interrupt_before_the_answer_begins_leaves_the_chat_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ggfw.cli.conversation import Conversation

    class Model:
        n_ctx = 64

        def submit_chat(self, messages: object, **options: object) -> object:
            raise KeyboardInterrupt  # while the prompt is put together

    options = {"system": None, "stats": False, "tools": None, "think": None, "skills": ()}
    talk = Conversation(Model(), options, {}, lambda name: Model().submit_chat([]))  # type: ignore
    talk.messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: stream is sys.stdin)
    monkeypatch.setattr(terminal, "without_echo", contextlib.nullcontext)
    assert talk.take("hello") and len(talk.messages) == 2
    assert talk.take("/model other") and len(talk.messages) == 2
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: False)
    with pytest.raises(KeyboardInterrupt):  # of a script that is interrupted
        talk.take("hello")


def test_what_is_typed_ahead_is_read_next(model: str) -> None:
    screen = Screen("chat", model, "-n", "400", "--ignore-eos", "--no-markdown", "--no-history")
    screen.wait_for(">")
    screen.type("first\r")
    screen.wait_for(r"\n\S")
    screen.type("/save\r")  # while it answers
    assert "/save" not in screen.wait_for("stopped after 400 tokens", 30.0)
    screen.wait_for("needs the name of a file")
    screen.wait_for(">")
    screen.type("\x04")
    assert screen.end() == 0


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("loading m.gguf", 14, "loading m.gguf"),
        ("loading m.gguf", 9, "loading …"),
        ("日本語", 5, "日本…"),
        ("x", 0, "…"),
    ],
)
def test_what_does_not_fit_is_cut(text: str, width: int, shown: str) -> None:
    """A line that is written anew each time must not go on in the next one."""
    assert terminal.cut(text, width) == shown


def test_tables_have_no_empty_lines_where_there_is_nothing_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor do characters that are two columns wide push what follows them about."""
    terminal.print_table(["name", "state", "reason"], [["a" * 30, "ok", ""], ["日本", "ok", "x"]], width=30)
    lines = capsys.readouterr().out.splitlines()
    assert all(lines) and lines[:2] == [f"{'NAME':30}  STATE", f"{'a' * 30}  ok"]
    assert lines[-2].startswith("日本" + " " * 28 + "ok")


def test_a_conversation_is_kept_whatever_ends_it(
    model: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ggfw.cli import chat as module

    kept: list[object] = []
    monkeypatch.setattr(module, "_keep", kept.append)
    monkeypatch.setattr(terminal, "interactive", lambda: True)

    class Talk:
        messages = ["m"]
        mark = staticmethod(lambda: "> ")
        model = type("Model", (), {"name": "m"})

        def take(self, line: str) -> bool:
            raise RuntimeError("a plugin's defect")

    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    with pytest.raises(RuntimeError):
        module._talk(Talk(), {})  # type: ignore[arg-type]
    assert len(kept) == 1


# -- Markdown --------------------------------------------------------------------------------------------------------


def rendered(*pieces: str, width: int = 60) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, height=20, force_terminal=False)
    with MarkdownWriter(console) as writer:
        for piece in pieces:
            writer.write(piece)
    out: str = console.file.getvalue()  # type: ignore[attr-defined]
    return out


TEXT = "# Title\n\nSome *words* with <b>tags</b>.\n\n- one\n\n- two\n  more\n\n```py\na = 1\n\nb = 2\n```\n\nend\n"


def test_nothing_of_a_text_is_lost() -> None:
    shown = rendered(TEXT)
    for word in ("Title", "Some words with <b>tags</b>.", "one", "two more", "a = 1", "b = 2", "end"):
        assert word in re.sub(r" +", " ", shown), word
    assert "[x](http://a/b)" not in rendered("[x](http://a/b)") and "http://a/b" in rendered(
        "[x](http://a/b)"
    )
    assert "\ufffd[31m" in rendered("\x1b[31mred")


@pytest.mark.parametrize("size", [1, 3, 7])
def test_pieces_give_what_the_whole_gives(size: int) -> None:
    assert rendered(*(TEXT[i : i + size] for i in range(0, len(TEXT), size))) == rendered(TEXT)


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("a\n\nb", "a\n\n"),
        ("a\n\n", ""),
        ("a\n\n ", ""),
        ("a\nb\n", ""),
        ("```\na\n\nb\n", ""),
        ("```\na\n\nb\n```\n\nc", "```\na\n\nb\n```\n\n"),
        ("~~~~\n```\n\nx\n~~~\n\ny", ""),
        ("- a\n\n  b\n\nc", "- a\n\n  b\n\n"),
        ("1. a\n\n2", ""),
        ("1. a\n\n2. b\n\n3 c", "1. a\n\n2. b\n\n"),
        ("a\n\n- b\n\n- c\n\n```", "a\n\n- b\n\n- c\n\n"),
    ],
)
def test_finished_blocks(text: str, done: str) -> None:
    assert text[: max(finished_blocks(text), default=0)] == done


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="a \n`~-#>", max_size=60), st.text(alphabet="a \n`~-#>", max_size=20))
def test_what_is_finished_stays_so(text: str, more: str) -> None:
    n = finished_blocks(text)
    assert finished_blocks(text + more)[: len(n)] == n


def test_a_history_is_shortened(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("".join(f"\n# 2026-01-01 00:00:00\n+line {i}\n" for i in range(MAX_HISTORY + 50)))
    _shorten(path)
    from prompt_toolkit.history import FileHistory

    kept = list(FileHistory(str(path)).load_history_strings())
    assert len(kept) == MAX_HISTORY and kept[0] == f"line {MAX_HISTORY + 49}"

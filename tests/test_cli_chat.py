"""``ggfw chat``: conversations through a pipe, commands, the picker."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tiny_models import write_llama

import ggfw
from ggfw.cli import resolve
from ggfw.cli.answering import AnswerStopped
from ggfw.cli.commands import HELP
from ggfw.cli.conversation import Conversation
from ggfw.cli.lines import Lines
from ggfw.cli.main import main
from ggfw.errors import ContextLengthExceeded, GgfwError, InvalidRequest, ModelNotFound
from ggfw.models import ModelEntry

if TYPE_CHECKING:
    from cli_support import Cli

pytest_plugins = ["cli_support"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", n_ctx=512)


@pytest.fixture(scope="module")
def loaded(model: Path) -> ggfw.Model:
    return ggfw.load(model)


OPTIONS: dict[str, Any] = {"system": None, "think": None, "stats": False}


@pytest.fixture
def talk(loaded: ggfw.Model) -> Conversation:
    return Conversation(loaded, dict(OPTIONS), {"temperature": 0, "max_tokens": 8})


def said_by_model(loaded: ggfw.Model, messages: list[dict[str, str]]) -> str:
    return loaded.chat(messages, temperature=0, max_tokens=8).text


def test_a_conversation_remembers(talk: Conversation, loaded: ggfw.Model) -> None:
    assert talk.take("one") and talk.take("two")
    first = said_by_model(loaded, [{"role": "user", "content": "one"}])
    second = said_by_model(loaded, [*talk.messages[:2], {"role": "user", "content": "two"}])
    assert [m["content"] for m in talk.messages] == ["one", first, "two", second]


def test_commands(talk: Conversation, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talk.take("one")
    before = list(talk.messages)
    talk.take("/regen")
    assert talk.messages == before  # greedy: the same answer
    talk.take("two")
    talk.take("/undo")
    assert talk.messages == before
    talk.take("/system Be brief.")
    assert talk.system == "Be brief."
    file = tmp_path / "talk.json"
    talk.take(f"/save {file}")
    talk.take("/clear")
    assert talk.messages == [] and talk.system == "Be brief."
    talk.take("/system")
    assert talk.system is None
    talk.take(f"/load {file}")
    assert talk.messages == before and talk.system == "Be brief."
    capsys.readouterr()
    talk.take("/stats")
    assert "answer" in capsys.readouterr().err
    talk.take("/help")
    assert "/regen" in capsys.readouterr().err
    talk.take("/show")
    assert json.loads(capsys.readouterr().out)["architecture"] == "llama"
    talk.take("//not a command")
    assert talk.messages[-2] == {"role": "user", "content": "/not a command"}
    assert talk.take("") and talk.take("  ")
    assert not talk.take("/bye") and not talk.take("/exit")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/nonsense", "no command /nonsense"),
        ("/regen", "no message to answer again"),
        ("/undo", "nothing to forget"),
        ("/save", "/save needs the name of a file"),
        ("/load /no/such/file", "cannot be read"),
        ("/stats", "no answer yet"),
    ],
)
def test_bad_commands(talk: Conversation, line: str, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        talk.take(line)  # stdin is no terminal: it is the program's error


def test_bad_commands_on_a_terminal_do_not_end_it(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ggfw.cli.terminal.is_terminal", lambda stream: stream is sys.stdin)
    assert talk.take("/nonsense") and "ggfw: error: there is no command" in capsys.readouterr().err
    assert talk.take("x" * 2000), "longer than the context"
    assert talk.messages == [] and "the context holds" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"messages": [{"role": "tool", "content": "x"}]}', '{"messages": 5}']
)
def test_loading_something_else(talk: Conversation, tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    talk.take("one")
    before = list(talk.messages)
    with pytest.raises(InvalidRequest, match="is no saved conversation"):
        talk.take(f"/load {tmp_path / 'x.json'}")
    assert talk.messages == before


def test_options_are_set(talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("/set top-k 5", "/set temperature 0.5", "/set parameter num_predict 3", "/set stop END"):
        talk.take(line)
    assert talk.generation == {"top_k": 5, "temperature": 0.5, "max_tokens": 3, "stop": ["END"]}
    talk.take("one")
    assert talk.last is not None and talk.last.usage.completion_tokens <= 3
    talk.take("/set top_k")
    talk.take("/set verbose")
    assert "top_k" not in talk.generation and talk.stats
    talk.take("/think off")
    assert talk.how["think"] is False
    talk.take("/set think")
    assert talk.how["think"] is True
    talk.take("/think low")
    assert talk.how == {"reasoning_effort": "low"}
    talk.take("/think")
    assert talk.how == {}
    capsys.readouterr()
    talk.take("/set")
    assert "max_tokens = 3" in capsys.readouterr().err


def test_nothing_is_lost_when_an_answer_is_refused(
    talk: Conversation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the message that /regen was to answer again, nor a file that was to go with a message."""
    talk.take("one")
    before = list(talk.messages)
    talk.how["reasoning_effort"] = "sideways"
    with pytest.raises(InvalidRequest, match="reasoning_effort"):
        talk.take("/regen")
    assert talk.messages == before
    (tmp_path / "notes.txt").write_text("notes")
    talk.take(f"/read {tmp_path / 'notes.txt'}")
    with pytest.raises(InvalidRequest, match="reasoning_effort"):
        talk.take("two")
    assert talk.messages == before and len(talk.read) == 1
    talk.take("/think")
    talk.take("two")
    assert talk.messages[-2]["content"] == "notes.txt:\nnotes\n\ntwo" and not talk.read
    (tmp_path / "long.txt").write_text("long " * 2000)
    talk.take(f"/read {tmp_path / 'long.txt'}")
    with pytest.raises(ContextLengthExceeded):
        talk.take("three")
    assert not talk.read, "else no message would be short enough again"


def test_models_to_go_on_with(
    loaded: ggfw.Model, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """/model lists those of the folder that --models-dir names."""
    lines = iter(["/model", "/bye"])
    monkeypatch.setattr(Lines, "__iter__", lambda self: lines)
    assert main(["chat", str(model), "--models-dir", str(model.parent), "--local", "--no-history"]) == 0
    assert "\ntiny\n" in f"\n{capsys.readouterr().err}"


def test_help_fits_a_terminal() -> None:
    assert max(map(len, HELP.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/set tmp 1", "no option 'tmp'.*temp"),
        ("/set top-k many", "not a valid integer"),
        ("/set mirostat 9", "mirostat"),
        ("/set logit-bias 99999=1", "vocabulary has"),
        ("/sett", "did you mean /set"),
        ("/read", "needs the name"),
        ("/tools /no/such", "cannot be read"),
        ("/model other", "another model cannot be loaded"),
        ("/think sideways", "/think takes on, off, or none, minimal"),
        ("/compact", "nothing to summarize"),
    ],
)
def test_what_cannot_be_set(talk: Conversation, line: str, expected: str) -> None:
    before = dict(talk.generation)
    with pytest.raises(InvalidRequest, match=expected):
        talk.take(line)
    assert talk.generation == before


def test_a_file_goes_with_the_next_message(talk: Conversation, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("milk")
    talk.take(f"/read {tmp_path / 'notes.txt'}")
    talk.take("what?")
    assert talk.messages[0]["content"] == "notes.txt:\nmilk\n\nwhat?"
    talk.take("again")
    assert talk.messages[2]["content"] == "again"


def test_compacting(talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    talk.take("one")
    talk.take("two")
    kept = talk.messages[2:]
    talk.take("/compact")
    assert talk.messages == kept and talk.summary
    assert talk.prompt()[0]["role"] == "system" and talk.summary in talk.prompt()[0]["content"]
    talk.take("three")
    assert talk.messages[:-2] == kept
    talk.take("/clear")
    assert talk.summary is None and talk.prompt() == []


def test_compacting_a_full_context(talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    talk.messages = [
        {"role": role, "content": "word " * 8} for _ in range(12) for role in ("user", "assistant")
    ]
    with pytest.raises(InvalidRequest, match=r"the prompt has \d+ tokens and the context holds 512"):
        talk.take("more")
    assert len(talk.messages) == 24
    talk.take("/compact")
    assert len(talk.messages) == 2 and talk.summary


def test_a_context_that_fills_up(
    talk: Conversation, loaded: ggfw.Model, capsys: pytest.CaptureFixture[str]
) -> None:
    talk.generation = {"temperature": 0, "ignore_eos": True}
    talk.take("go on")
    said = capsys.readouterr().err
    assert "the context is full: 512 of 512" in said
    for command in ("/compact", "/undo", "/clear"):
        assert command in said


def test_tools_are_answered_by_hand(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call = ggfw.ToolCall("abcdefgh1", "add", '{"a": 1}')
    answers = [ggfw.Result(tool_calls=(call,), finish_reason="tool_calls"), ggfw.Result(text="three")]
    monkeypatch.setattr("ggfw.cli.answering.write_answer", lambda *a, **o: answers.pop(0))
    monkeypatch.setattr(talk.model, "submit_chat", lambda *a, **o: None)
    (tmp_path / "tools.json").write_text('[{"type": "function", "function": {"name": "add"}}]')
    talk.take(f"/tools {tmp_path / 'tools.json'}")
    talk.take("what is it?")
    assert talk.mark() == "add = "
    talk.take("3")
    assert talk.mark() == "> "
    assert [m["role"] for m in talk.messages] == ["user", "assistant", "tool", "assistant"]
    assert talk.messages[2] == {"role": "tool", "tool_call_id": "abcdefgh1", "name": "add", "content": "3"}
    talk.take(f"/save {tmp_path / 'talk.json'}")
    before = list(talk.messages)
    talk.take(f"/load {tmp_path / 'talk.json'}")
    assert talk.messages == before
    talk.take("/undo")
    assert talk.messages == []
    talk.take("/tools off")
    assert "tools" not in talk.how


def test_ctrl_c_stops_the_answer_only(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*args: Any, **options: Any) -> Any:
        raise AnswerStopped(ggfw.Result(text="half an ans"))

    monkeypatch.setattr("ggfw.cli.answering.write_answer", stopped)
    assert talk.take("one")
    assert talk.messages[-1] == {"role": "assistant", "content": "half an ans"}
    assert "(stopped)" in capsys.readouterr().err


def test_an_interrupted_request_is_canceled(loaded: ggfw.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    from ggfw.cli import answering

    request = loaded.chat_request([ggfw.user("x")], max_tokens=400, ignore_eos=True)
    taken: list[str] = []

    def write(text: str) -> None:
        taken.append(text)
        if len(taken) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("ggfw.cli.terminal.write", write)
    with pytest.raises(AnswerStopped) as caught:
        answering.write_answer(loaded.submit(request))
    assert caught.value.partial is not None
    assert loaded.engine.n_running == 0


# -- lines -----------------------------------------------------------------------------------------------------------


def lines(text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    with Lines(remember=False) as given:
        return list(given)


def test_blocks_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines('a\n"""b\nc\n"""\n"""d"""\n"""\ne\nf"""\n', monkeypatch) == ["a", "b\nc", "d", "e\nf"]
    assert lines("a\nb", monkeypatch) == ["a", "b"]
    assert lines("", monkeypatch) == []


def test_through_a_pipe(cli: Cli, model: Path, loaded: ggfw.Model) -> None:
    said = cli("chat", model, "--temp", "0", "-n", "8", stdin=b"one\n/bye\ntwo\n")
    assert said.code == 0
    assert said.out.rstrip("\n") == said_by_model(loaded, [{"role": "user", "content": "one"}]).rstrip("\n")


def test_an_error_in_a_pipe_is_the_exit_code(cli: Cli, model: Path) -> None:
    said = cli("chat", model, stdin=b"/nonsense\n")
    assert said.code == 1 and "there is no command /nonsense" in said.error


# -- the picker ------------------------------------------------------------------------------------------------------


def entries(*ids: str, state: str = "ok") -> list[ModelEntry]:
    return [
        ModelEntry(i, "repo", f"{i}.gguf", Path(f"{i}.gguf"), 1, "llama", i, "Q4_0", 8, state) for i in ids
    ]


@pytest.mark.parametrize(
    ("typed", "chosen"),
    [
        ("2\n", "beta"),
        ("9\n1\n", "alpha"),
        ("gam\n", "gamma"),
        ("a\nq\n", None),
        ("ta\n", "beta"),
        ("q\n", None),
        ("", None),
    ],
)
def test_picker(monkeypatch: pytest.MonkeyPatch, typed: str, chosen: str | None) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    given = entries("alpha", "beta", "gamma") + entries("broken", state="broken")
    if chosen is None:
        with pytest.raises(ModelNotFound, match="no model was chosen"):
            resolve.pick(given)
    else:
        assert resolve.pick(given).id == chosen


def test_picker_without_models() -> None:
    with pytest.raises(GgfwError, match="fetch one with `ggfw pull"):
        resolve.pick(entries("broken", state="broken"))


def test_several_matches_on_a_terminal(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("small-a", "small-b"):
        write_llama(tmp_path / f"{name}.gguf")
    monkeypatch.setattr("ggfw.cli.terminal.interactive", lambda: True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("2\n"))
    assert resolve.find_model("small", str(tmp_path), ask=True).name == "small-b.gguf"
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\n"))
    assert resolve.find_model(str(tmp_path), None, ask=True).name == "small-a.gguf"

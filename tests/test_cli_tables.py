"""What verbs print for people and for programs: lines that fit, JSON that every reader takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_support import changed
from tiny_models import write_llama

from ggfw.cli import terminal
from ggfw.cli.derived import write_preset

if TYPE_CHECKING:
    from cli_support import Cli

pytest_plugins = ["cli_support"]


def test_lines_of_derived_models_fit_a_terminal(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_llama(tmp_path / "a-model-with-a-name-of-its-own.gguf")
    write_preset({"name": "short", "from": "a-model-with-a-name-of-its-own"}, str(tmp_path))
    assert len(cli("list", "--models-dir", str(tmp_path)).out.splitlines()) == 3, "one line each for programs"
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("list", "--models-dir", str(tmp_path)).out.splitlines()
    assert max(map(len, lines)) <= 80, lines
    assert "made from a-model-with-a-name-of-its-own" in "\n".join(lines)


def test_numbers_that_json_has_not_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_json({"a": float("nan"), "b": [float("-inf"), 1.5, (float("inf"),)], "c": {"d": "NaN"}})

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found == {"a": None, "b": [None, 1.5, [None]], "c": {"d": "NaN"}}


def test_what_a_file_says_does_not_command_the_terminal(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = "a\x1b]0;title\x07\x1b[2J\x9b1mz"
    keys = {"general.name": evil, f"x.{evil}": evil, "tokenizer.chat_template": evil}
    path = str(tmp_path / "evil.gguf")
    Path(path).write_bytes(changed(keys))
    assert "\x1b" in cli("show", path, "--template").out, "programs get what is there"
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: True)
    for more in ([], ["--metadata"], ["--template"], ["--tensors"], ["--json", "--metadata"]):
        said = cli("show", path, *more)
        assert said.code == 0 and not {"\x1b", "\x07", "\x9b"} & {*said.out, *said.err}, more


def test_nor_do_messages_and_tables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: True)
    terminal.say("loading \x1b[2J")
    terminal.error("no model \x1b[2J")
    terminal.print_table(["a", "b"], [["\x1b[2J", "one\x07"], ["x\ny", "z"]])
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err and "\x07" not in out
    assert len(out.splitlines()) == 3, "a row is a line"


def test_a_damaged_derived_model_costs_nothing_else(cli: Cli, tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf")
    folder = ("--models-dir", str(tmp_path))
    write_preset({"name": "mine", "from": "tiny"}, str(tmp_path))
    bad = write_preset({"name": "bad", "from": "tiny"}, str(tmp_path))
    bad.write_text("{")
    said = cli("list", "--json", *folder)
    rows = {row["id"]: row for row in json.loads(said.out)}
    assert rows["mine"]["state"] == "derived" and rows["tiny"]["state"] == "ok"
    assert rows[bad.stem]["state"] == "broken" and rows[bad.stem]["path"] == str(bad)
    assert cli("show", "tiny", *folder).code == 0 and cli("show", "mine", *folder).code == 0
    said = cli("show", "bad", *folder)
    assert said.code == 1 and "remove it" in said.err and str(bad) in said.err


def test_nothing_is_made_from_what_is_no_model(cli: Cli, tmp_path: Path) -> None:
    other = tmp_path / "passwd"
    other.write_text("root:x:0:0")
    said = cli("create", "q", "-f", "-", stdin=f"FROM {other}\n".encode())
    assert said.code == 1 and "not a GGUF file" in said.err and "is made" not in said.err

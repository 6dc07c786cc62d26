"""``ggfw plugins enable`` and ``disable``, and what the configuration file says of plugins."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ggfw.cli.plugin_switches import write_disabled
from ggfw.errors import InvalidRequest

if TYPE_CHECKING:
    from cli_support import Cli

pytest_plugins = ["cli_support"]

VARIABLE = "GGFW_DISABLE_PLUGINS"

COMMENTED = """\
# mine
threads = 1  # one

[run]
temp = 0.5
stop = ["]", "disable-plugins = []"]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path / "config.toml"


def state(cli: Cli, file: Path, name: str, kind: str = "architectures") -> str:
    out = cli("plugins", "list", "--json", "--kind", kind, "--config", file).out
    return next(row["state"] for row in json.loads(out) if row["name"] == name)


def test_a_plugin_is_left_out_and_used_again(cli: Cli, file: Path) -> None:
    file.write_text(COMMENTED)
    assert state(cli, file, "olmo2") == "ok"
    assert cli("plugins", "disable", "olmo2", "--config", file).code == 0
    assert state(cli, file, "olmo2") == "disabled" and VARIABLE not in os.environ
    assert cli("plugins", "disable", "quant_formats.Q4_0", "--config", file).code == 0
    assert state(cli, file, "Q4_0", "quant_formats") == "disabled" == state(cli, file, "olmo2")
    assert file.read_text() == 'disable-plugins = ["olmo2", "quant_formats.Q4_0"]\n' + COMMENTED
    listed = cli("plugins", "list", "--config", file).out
    assert "disable-plugins of the configuration" in " ".join(listed.split()) and VARIABLE not in listed
    (row,) = [
        row
        for row in json.loads(cli("config", "show", "--json", "--config", file).out)["settings"]
        if row["setting"] == "disable-plugins"
    ]
    assert row["source"] == "file" and row["value"] == ["olmo2", "quant_formats.Q4_0"]
    for name in ("olmo2", "quant_formats.Q4_0"):
        assert cli("plugins", "enable", name, "--config", file).code == 0
    assert file.read_text() == COMMENTED and state(cli, file, "olmo2") == "ok"


def test_the_variable_wins(cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('disable-plugins = ["olmo2"]\n')
    monkeypatch.setenv(VARIABLE, "llama")
    assert state(cli, file, "olmo2") == "ok" and state(cli, file, "llama") == "disabled"
    assert VARIABLE in cli("plugins", "enable", "llama", "--config", file).error


def test_what_cannot_be_switched(cli: Cli, file: Path) -> None:
    file.write_text('disable-plugins = ["llama"]\n')
    assert "near: olmo2" in cli("plugins", "disable", "olmo22", "--config", file).error
    assert "which has llama" in cli("plugins", "enable", "olmo2", "--config", file).error
    for value in ('"llama"', "[1]", '["a,b"]'):
        file.write_text(f"disable-plugins = {value}\n")
        assert "a list of names was expected" in cli("plugins", "list", "--config", file).error
    file.write_text('disabled-plugins = ["llama"]\n')
    assert "did you mean disable-plugins" in cli("plugins", "list", "--config", file).error


def test_a_file_that_does_not_exist_is_made(tmp_path: Path) -> None:
    write_disabled(tmp_path / "new" / "config.toml", ['a"b'])
    assert (tmp_path / "new" / "config.toml").read_text() == 'disable-plugins = ["a\\"b"]\n'


@pytest.mark.parametrize(
    "text",
    [
        'disable-plugins = [\n  "a",  # a\n  "b",\n]\nthreads = 2\n',
        '"disable-plugins" = ["a"]\n',
        'x = """\ndisable-plugins = ["a"]\n"""\n',
    ],
)
def test_nothing_else_of_the_file_changes(tmp_path: Path, text: str) -> None:
    """Either the name is exchanged, or it is refused and the file stays as it is."""
    path = tmp_path / "config.toml"
    path.write_text(text)
    try:
        write_disabled(path, ["c"])
    except InvalidRequest as exc:
        assert "by hand" in str(exc) and path.read_text() == text
    else:
        assert path.read_text() == 'disable-plugins = ["c"]\nthreads = 2\n'


@pytest.mark.skipif(sys.platform == "win32", reason="rights and links are POSIX's")
def test_links_rights_and_line_ends_of_the_file_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "config.toml"
    real.write_bytes(b"\xef\xbb\xbf[serve]\r\napi-key = ['secret']\r\n")
    real.chmod(0o600)
    link.symlink_to(real)
    write_disabled(link, ["a"])
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o600
    assert real.read_bytes() == b"disable-plugins = [\"a\"]\n[serve]\r\napi-key = ['secret']\r\n"
    assert sorted(tmp_path.iterdir()) == [link, real]


def test_a_byte_order_mark_is_no_mistake(cli: Cli, file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbfdisable-plugins = ["olmo2"]\r\n')
    assert state(cli, file, "olmo2") == "disabled"


@pytest.mark.parametrize("chosen", ["option", "variable"])
def test_the_chosen_file_need_not_be_there(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    file = tmp_path / "new" / "ggfw.toml"
    option = ["--config", str(file)] if chosen == "option" else []
    if chosen == "variable":
        monkeypatch.setenv("GGFW_CONFIG", str(file))
    said = cli("plugins", "enable", "olmo2", *option)
    assert said.code == 1 and "'olmo2' is not in disable-plugins" in said.error and "nothing" in said.error
    assert cli("plugins", "list", *option).error.startswith("there is no configuration file")
    assert cli("plugins", "disable", "olmo2", *option).code == 0
    assert file.read_text() == 'disable-plugins = ["olmo2"]\n'
    assert cli("plugins", "enable", "olmo2", *option).code == 0 and file.read_text() == ""

"""The configuration file: one that nobody asked for and that cannot be looked at does not end the program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tiny_models import write_llama

from ggfw.cli.settings import read_config
from ggfw.errors import InvalidRequest

if TYPE_CHECKING:
    from cli_support import Cli

pytest_plugins = ["cli_support"]


@pytest.fixture
def denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the user's that cannot be looked at, whoever runs the tests."""
    path = tmp_path / "config.toml"
    read = Path.read_text

    def read_text(self: Path, *args: Any, **more: Any) -> str:
        if self == path:
            raise PermissionError(13, "Permission denied", str(path))
        return read(self, *args, **more)

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr("platformdirs.user_config_path", lambda *args, **more: tmp_path)
    return path


def test_the_users_own_is_left_out_with_a_line(denied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_config() == {} == read_config()
    said = capsys.readouterr().err
    assert (
        said == f"ggfw: the configuration file {denied} cannot be read (Permission denied) and is left out\n"
    )


def test_one_that_was_asked_for_is_an_error(denied: Path, cli: Cli) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_config(str(denied))
    for words in (["--config", str(denied), "list"], ["list", "--config", str(denied)]):
        done = cli(*words)
        assert done.code != 0 and "cannot be read" in done.error


def test_a_home_that_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("platformdirs.user_config_path", lambda *args, **more: tmp_path / "file" / "ggfw")
    assert read_config() == {}
    with pytest.raises(InvalidRequest):
        read_config(str(tmp_path / "file" / "ggfw" / "config.toml"))


@pytest.mark.parametrize(
    ("variables", "text", "prefault"),
    [
        ({"GGFW_NO_PREFAULT": "1"}, "", False),
        ({"GGFW_NO_PREFAULT": "0"}, "", True),
        ({"GGFW_PREFAULT": "0"}, "", False),
        ({"GGFW_NO_PREFAULT": "1", "GGFW_PREFAULT": "1"}, "", True),
        ({}, "no-prefault = true", False),
        ({}, "[run]\nno_prefault = true", False),
        ({}, "no-prefault = false", True),
        ({"GGFW_PREFAULT": "1"}, "no-prefault = true", True),
    ],
)
def test_options_that_switch_off_are_variables_and_keys_too(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    text: str,
    prefault: bool,
) -> None:
    import ggfw

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "config.toml").write_text(text)
    monkeypatch.setenv("GGFW_CONFIG", str(tmp_path / "config.toml"))
    seen: list[bool] = []
    load = ggfw.load
    monkeypatch.setattr(
        ggfw, "load", lambda path, **given: (seen.append(given["prefault"]), load(path, **given))[1]
    )
    assert cli("run", write_llama(tmp_path / "m.gguf"), "hi", "-n", "1").code == 0
    assert seen == [prefault]
    shown = cli("config", "show").out
    assert all(name in shown for name in variables)

"""The command line as a whole: verbs, settings, exit codes, errors, start-up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from ggfw.cli import main as main_module
from ggfw.cli.main import VERBS
from ggfw.cli.main import cli as root
from ggfw.cli.settings import Setting, setting, verb
from ggfw.errors import GgfwError

if TYPE_CHECKING:
    from cli_support import Cli

pytest_plugins = ["cli_support"]

CONTEXT = click.Context(root)


def commands() -> list[tuple[str, click.Command]]:
    """All verbs, with those of families."""
    found = []
    for name in VERBS:
        command = root.get_command(CONTEXT, name)
        assert command is not None
        found.append((name, command))
        found += [(f"{name} {child}", c) for child, c in getattr(command, "commands", {}).items()]
    return found


# -- verbs ---------------------------------------------------------------------------------------------------------


def test_help_lists_every_verb(cli: Cli) -> None:
    said = cli("--help")
    assert said.code == 0 and said.err == ""
    for name, (_, text) in VERBS.items():
        assert f"  {name} " in said.out and text.split()[0] in said.out


@pytest.mark.parametrize(
    ("name", "command"), commands(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_verb_explains_itself(cli: Cli, name: str, command: click.Command) -> None:
    assert command.help, name
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.help, f"{name} {param.opts}"
            assert isinstance(param, Setting), f"{name} {param.opts} is no setting"
            for option in param.opts:
                if option.startswith("--"):
                    assert f"GGFW_{option[2:].upper().replace('-', '_')}" in param.envvar
    said = cli(*name.split(), "--help")
    assert said.code == 0 and said.out.startswith(f"Usage: ggfw {name}")


def test_version(cli: Cli) -> None:
    from importlib.metadata import version

    assert cli("--version").out == f"ggfw {version('ggfw')}\n"


@pytest.mark.parametrize("args", [[], ["plugins"]])
def test_no_arguments_is_wrong_usage_and_shows_the_help(cli: Cli, args: list[str]) -> None:
    said = cli(*args)
    assert said.code == 2 and not said.out
    assert said.err.startswith("Usage: ") and len(said.err.splitlines()) > 5, "help keeps its lines"


def test_unknown_verb(cli: Cli) -> None:
    said = cli("rnu")
    assert said.code == 2 and "'rnu'" in said.error and "run" in said.error


def test_unknown_option(cli: Cli) -> None:
    said = cli("run", "--tmp", "1")
    assert said.code == 2 and "--tmp" in said.error and "(see ggfw run --help)" in said.error


def test_bad_value(cli: Cli) -> None:
    said = cli("bench", "--parallel", "1,0")
    assert said.code == 2 and "'0' is not a positive number" in said.error


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """A verb that notes what it was called with."""
    seen: list[dict[str, object]] = []

    @verb("probe")
    @setting("--top-k", type=int, default=40)
    @setting("--temp", "--temperature", "temp", type=float)
    @setting("--stop", multiple=True)
    @setting("--raw", is_flag=True)
    @setting("--mmap/--no-mmap", default=True)
    def probe_verb(**options: object) -> None:
        """Note."""
        seen.append(options)

    module = types.ModuleType("ggfw.cli.probe")
    module.probe_verb = probe_verb  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ggfw.cli.probe", module)
    monkeypatch.setitem(VERBS, "probe", ("probe", "Note."))
    return seen


def write_config(home: Path, text: str) -> Path:
    path = home / ".config" / "ggfw" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_precedence(cli: Cli, probe: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("probe").code == 0
    write_config(cli.home, "top-k = 1\n[run]\ntop-k = 9\n")
    cli("probe")
    write_config(cli.home, "top-k = 1\n[probe]\ntop_k = 2\n")
    cli("probe")
    monkeypatch.setenv("GGFW_TOP_K", "3")
    cli("probe")
    cli("probe", "--top-k", "4")
    assert [options["top_k"] for options in probe] == [40, 1, 2, 3, 4]


def test_all_kinds_of_values(
    cli: Cli, probe: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(cli.home, 'temperature = 0\nraw = true\nmmap = false\nstop = ["a b", "c"]\n')
    cli("probe")
    assert probe[-1] == {"top_k": 40, "temp": 0.0, "stop": ("a b", "c"), "raw": True, "mmap": False}
    write_config(cli.home, 'stop = "a b"\n')
    cli("probe")
    assert probe[-1]["stop"] == ("a b",)
    monkeypatch.setenv("GGFW_STOP", "x y")
    monkeypatch.setenv("GGFW_MMAP", "0")
    monkeypatch.setenv("GGFW_RAW", "1")
    monkeypatch.setenv("GGFW_TEMPERATURE", "0.5")
    cli("probe")
    assert probe[-1] == {"top_k": 40, "temp": 0.5, "stop": ("x y",), "raw": True, "mmap": False}
    cli("probe", "--stop", "q", "--stop", "r", "--mmap")
    assert probe[-1]["stop"] == ("q", "r") and probe[-1]["mmap"] is True


def test_bad_values_name_their_origin(
    cli: Cli, probe: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(cli.home, 'top-k = "many"\n')
    said = cli("probe")
    assert said.code == 2 and "top-k in the configuration file" in said.error
    monkeypatch.setenv("GGFW_TOP_K", "lots")
    said = cli("probe")
    assert said.code == 2 and "GGFW_TOP_K" in said.error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("top_kk = 1", "unknown key 'top_kk'"),
        ("[prob]\nraw = true", "unknown table 'prob'"),
        ("[probe]\ntpo-k = 1", "unknown key of [probe] 'tpo-k'"),
        ("top-k = ", "is not TOML"),
    ],
)
def test_bad_configuration(cli: Cli, probe: list[dict[str, object]], text: str, expected: str) -> None:
    path = write_config(cli.home, text)
    said = cli("probe")
    assert said.code == 1 and expected in said.error and str(path) in said.error


def test_a_key_of_another_verb_is_no_error(cli: Cli, probe: list[dict[str, object]]) -> None:
    write_config(cli.home, "port = 9000\nparallel = 2\n")
    assert cli("probe").code == 0


def test_chosen_configuration(cli: Cli, probe: list[dict[str, object]], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("top-k = 7")
    assert cli("--config", tmp_path / "mine.toml", "probe").code == 0
    assert probe[-1]["top_k"] == 7
    said = cli("--config", tmp_path / "none.toml", "probe")
    assert said.code == 1 and "there is no configuration file" in said.error


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A verb that raises what it is given."""
    errors: list[BaseException] = []

    @verb("probe")
    def probe_verb() -> None:
        """Fail."""
        print("begun")
        raise errors[0]

    module = types.ModuleType("ggfw.cli.probe")
    module.probe_verb = probe_verb  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ggfw.cli.probe", module)
    monkeypatch.setitem(VERBS, "probe", ("probe", "Fail."))
    return errors


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (GgfwError("the thing\nis broken; mend it"), 1, "the thing is broken; mend it"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), 1, "a.txt: No such file or directory"),
        (MemoryError(), 1, "memory is short"),
        (ValueError("odd"), 1, "unexpected ValueError: odd; this is a defect"),
        (click.UsageError("no."), 2, "no (see ggfw probe --help)"),
    ],
)
def test_errors_are_one_line(
    cli: Cli, failing: list[BaseException], error: BaseException, code: int, expected: str
) -> None:
    failing.append(error)
    said = cli("probe")
    assert said.code == code and expected in said.error and said.out == "begun\n"


def test_interruption(cli: Cli, failing: list[BaseException]) -> None:
    failing.append(KeyboardInterrupt())
    said = cli("probe")
    assert said.code == 130 and said.err.strip() == ""


def test_traceback_on_request(
    cli: Cli, failing: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing.append(ValueError("odd"))
    monkeypatch.setenv("GGFW_TRACEBACK", "1")
    with pytest.raises(ValueError, match="odd"):
        cli("probe")


@pytest.mark.skipif(os.name == "nt", reason="pipes break differently on Windows")
def test_a_reader_that_leaves_is_no_error(cli: Cli) -> None:
    process = subprocess.Popen([*cli.command, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.wait(timeout=30)


# -- plugins ---------------------------------------------------------------------------------------------------------


def test_plugins_list(cli: Cli) -> None:
    import json

    said = cli("plugins", "list", "--json")
    rows = json.loads(said.out)
    assert said.code == 0
    assert {"kind", "name", "version", "distribution", "state", "reason"} == set(rows[0])
    assert {"kind": "architectures", "name": "llama"}.items() <= rows[1].items() or any(
        row["kind"] == "architectures" and row["name"] == "llama" for row in rows
    )
    only = json.loads(cli("plugins", "list", "--json", "--kind", "model_sources").out)
    assert {row["name"] for row in only} >= {"file", "hf", "pypi"}
    text = cli("plugins", "list").out.splitlines()
    assert text[0].split() == ["NAME", "VERSION", "DISTRIBUTION", "STATE", "REASON"]
    names = {line.split()[0] for line in text[1:] if line[:2] == "  " and line[2:3] != " "}
    assert names >= {row["name"] for row in rows}
    assert {line for line in text[1:] if line[:1] != " "} == {row["kind"] for row in rows}
    assert max(map(len, text)) <= 80


def plugin_on_path(folder: Path, name: str, code: str) -> None:
    """A distribution ``ggfw-NAME`` with one plugin module; a folder on the path is all it takes."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"ggfw_{name}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ggfw-{name}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[ggfw]\n{name} = {name}\n")


def test_a_broken_plugin_is_a_row_and_strict_makes_it_a_failure(cli: Cli, tmp_path: Path) -> None:
    plugin_on_path(tmp_path, "broken", "import module_that_is_not_there\n")
    env = {"PYTHONPATH": str(tmp_path)}
    said = cli.process("plugins", "list", env=env)
    assert said.returncode == 0 and b"module_that_is_not_there" in said.stdout
    assert cli.process("plugins", "list", "--strict", env=env).returncode == 1
    strict = cli.process("plugins", "list", env={**env, "GGFW_STRICT_PLUGINS": "1"})
    assert strict.returncode == 1 and b"module_that_is_not_there" in strict.stdout
    assert cli.process("plugins", "check", "broken", env=env).returncode == 1


def test_plugins_show_and_check(cli: Cli) -> None:
    said = cli("plugins", "show", "Q4_0")
    assert said.code == 0 and "block_size    32" in said.out
    assert cli("plugins", "check", "Q4_0").code == 0
    assert cli("plugins", "check", "model_sources.pypi").code == 0
    said = cli("plugins", "show", "Q4_00")
    assert said.code == 1 and "Q4_0" in said.error


# -- start-up --------------------------------------------------------------------------------------------------------

HEAVY = (
    "numpy",
    "rich",
    "platformdirs",
    "tokenizers",
    "jinja2",
    "sanic",
    "pydantic",
    "cffi",
    "huggingface_hub",
)


@pytest.mark.parametrize("args", [["--help"], ["plugins", "list"], ["run", "--help"], ["serve", "--help"]])
def test_nothing_heavy_is_imported(args: list[str]) -> None:
    allowed = {"platformdirs"} if args[0] != "--help" else set()  # looks for the configuration file
    code = (
        f"import sys; from ggfw.cli.main import main; main({args!r}); "
        f"print([n for n in {HEAVY!r} if n in sys.modules], file=sys.stderr)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(__import__("ast").literal_eval(said.stderr)) <= allowed


def test_an_interrupt_while_modules_are_imported_has_no_traceback() -> None:
    code = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
from importlib.metadata import entry_points
(script,) = [ep for ep in entry_points(group="console_scripts") if ep.name == "ggfw"]
sys.exit(script.load()())
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (said.returncode, said.stdout, said.stderr) == (130, "", "")


@pytest.mark.skipif(os.name == "nt", reason="needs the processor time of children")
@pytest.mark.parametrize("args", [["--help"], ["plugins", "list"]])
def test_start_is_quick(cli: Cli, args: list[str]) -> None:
    """Processor time, which other processes on the machine disturb less than the clock on the wall."""
    import resource

    def seconds() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    best = 9.0
    for _ in range(5):
        begin = seconds()
        assert cli.process(*args).returncode == 0
        best = min(best, seconds() - begin)
    assert best < 0.2, f"ggfw {' '.join(args)} takes {best:.3f} s at best"


def test_verbs_are_named_after_their_functions() -> None:
    for name, command in commands():
        assert command.name == name.split()[-1]
    assert main_module.VERBS is VERBS


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["rnu", "x"], "run"),
        (["sohw", "x"], "show"),
        (["run", "x", "--tempp", "1"], "--temp"),
        (["show", "x", "--metdata"], "--metadata"),
        (["plugins", "lst"], "list"),
        (["plugins", "list", "--knd", "x"], "--kind"),
        (["bench", "x", "--paralel", "4"], "--parallel"),
    ],
)
def test_wrong_verbs_and_options_get_a_suggestion(cli: Cli, words: list[str], hint: str) -> None:
    said = cli(*words)
    assert said.code == 2 and re.search(rf"did you mean.*{hint}\b", said.error, re.IGNORECASE)

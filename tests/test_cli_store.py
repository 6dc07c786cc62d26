"""Models that are made, copied and removed; settings that are shown; completion."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tiny_models import write_llama

import ggfw
from ggfw.cli.modelfile import parse
from ggfw.errors import InvalidRequest

if TYPE_CHECKING:
    from cli_support import Cli

pytest_plugins = ["cli_support"]

MODELFILE = '''\
# a comment
FROM tiny
PARAMETER temperature 0
PARAMETER num_predict 5
parameter stop "END"
PARAMETER stop STOP
PARAMETER num_thread 4
SYSTEM """You are
brief."""
MESSAGE user hi
MESSAGE assistant hello there
'''


@pytest.fixture
def folder(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the model ``tiny``, in which everything happens."""
    write_llama(tmp_path / "tiny.gguf", n_ctx=512)
    monkeypatch.setenv("GGFW_MODELS_DIR", str(tmp_path))
    return tmp_path


# -- Modelfiles ------------------------------------------------------------------------------------------------------


def test_a_modelfile() -> None:
    found = parse(MODELFILE)
    assert found.base == "tiny" and found.system == "You are\nbrief."
    assert found.options == {"temperature": 0, "num_predict": 5, "stop": ["END", "STOP"], "num_thread": 4}
    assert found.messages == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello there"},
    ]
    assert parse('FROM x\nTEMPLATE """\n{{ a }}\n"""').template == "{{ a }}"
    assert parse('from x\nSYSTEM "quoted"').system == "quoted"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "has no FROM"),
        ("FROM", "line 1 .* FROM needs a value"),
        ("FROM x\nFORM y", "line 2 .* no instruction 'FORM'"),
        ("FROM x\nPARAMETER top_k many", "top_k is 'many'"),
        ('FROM x\nSYSTEM """open', "is not closed"),
        ("FROM x\nMESSAGE robot hi", "MESSAGE is for"),
        ("FROM x\nADAPTER y", "adapters are not supported"),
    ],
)
def test_bad_modelfiles(text: str, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        parse(text)


def test_create_run_copy_remove(cli: Cli, folder: Path) -> None:
    (folder / "Modelfile").write_text(MODELFILE)
    said = cli("create", "brief", "-f", folder / "Modelfile")
    assert said.code == 0 and "left out" not in said.err
    answer = json.loads(cli("run", "brief", "what", "--json").out)
    with ggfw.load(folder / "tiny.gguf") as model:
        messages = [ggfw.system("You are\nbrief."), ggfw.user("hi"), ggfw.assistant("hello there")]
        expected = model.chat(
            [*messages, ggfw.user("what")], temperature=0, max_tokens=5, stop=["END", "STOP"]
        )
    assert answer["text"] == expected.text and answer["usage"]["completion_tokens"] <= 5
    assert json.loads(cli("run", "brief", "what", "--json", "-n", "2").out)["usage"]["completion_tokens"] <= 2

    assert cli("create", "briefer", "-f", "-", stdin=b"FROM brief\nPARAMETER top_k 3\n").code == 0
    assert cli("cp", "briefer", "other:1b").code == 0
    presets = {p["name"]: p for f in (folder / "derived").glob("*.json") for p in [json.loads(f.read_text())]}
    assert set(presets) == {"brief", "briefer", "other:1b"}
    assert presets["other:1b"]["from"] == "tiny" and presets["other:1b"]["options"]["top_k"] == 3
    rows = {row["id"]: row for row in json.loads(cli("list", "--json").out)}
    assert rows["briefer"]["state"] == "derived" and rows["briefer"]["reason"] == "made from tiny"
    assert "architecture   llama" in cli("show", "other:1b").out

    said = cli("rm", "tiny")
    assert said.code == 1 and "brief" in said.error and (folder / "tiny.gguf").is_file()
    assert cli("rm", "brief", "briefer", "other:1b").code == 0
    assert cli("rm", "tiny").code == 0
    assert not (folder / "tiny.gguf").exists() and not list((folder / "derived").iterdir())


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["rm", "tin"], "did you mean tiny"),  # a part of a name removes nothing
        (["cp", "tiny", "tiny"], "there is a file of the name"),
        (["cp", "tiny", "../x"], "cannot be a model's name"),
        (["cp", "nothing", "x"], "no model is called 'nothing'"),
    ],
)
def test_what_is_refused(cli: Cli, folder: Path, args: list[str], expected: str) -> None:
    said = cli(*args)
    assert said.code == 1 and expected in said.error
    assert (folder / "tiny.gguf").is_file()


def test_a_template_of_its_own(cli: Cli, folder: Path) -> None:
    text = 'FROM tiny\nTEMPLATE """{% for m in messages %}Q: {{ m.content }}\nA:{% endfor %}"""\n'
    assert cli("create", "plain", "-f", "-", stdin=text.encode()).code == 0
    with ggfw.load(folder / "tiny.gguf") as model:
        expected = model.generate("Q: hi\nA:", temperature=0, max_tokens=6).text
        own = model.chat([ggfw.user("hi")], temperature=0, max_tokens=6).text
    said = json.loads(cli("run", "plain", "hi", "-n", "6", "--json", "--temp", "0").out)
    assert said["text"].strip() == expected.strip() != own.strip()
    assert cli("chat", "plain", "-n", "6", "--temp", "0", stdin=b"hi\n").out.strip() == expected.strip()
    go = b'FROM tiny\nTEMPLATE """{{ if .System }}{{ .System }}{{ end }}{{ .Prompt }}"""\n'
    said = cli("create", "go", "-f", "-", stdin=go)
    assert said.code == 1 and "Go's language" in said.error


def test_bad_parameters_are_refused(cli: Cli, folder: Path) -> None:
    said = cli("create", "x", "-f", "-", stdin=b"FROM tiny\nPARAMETER tpo_k 3\n")
    assert said.code == 1 and "tpo_k" in said.error
    assert cli("create", "x", "-f", folder / "none").code == 1


def test_models_of_other_programs_stay(cli: Cli, home: Path) -> None:
    theirs = home / ".lmstudio" / "models" / "theirs.gguf"
    theirs.parent.mkdir(parents=True)
    write_llama(theirs)
    said = cli("rm", "theirs")
    assert said.code == 1 and "another program" in said.error and theirs.is_file()


# -- what may be fetched ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["", "GGFW_OFFLINE", "HF_HUB_OFFLINE"])
@pytest.mark.parametrize("name", ["qwen3:0.6b", "hf:me/repo", "SmolLM2-135M-Instruct"])
def test_offline(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str, name: str) -> None:
    def never(*args: object, **options: object) -> None:
        raise AssertionError("something was fetched")

    monkeypatch.setattr("ggfw.catalogue.fetch_reference", never)
    if variable:
        monkeypatch.setenv(variable, "1")
    for args in (("show", name), ("run", name, "hello"), ("pull", name)):
        said = cli(*args, *([] if variable else ["--offline"]))
        assert said.code == 1 and "forbids to fetch it" in said.err


def test_everyday_names(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name leads to its reference, is said to be unverified, and is found again without a network."""
    asked = []

    def fetch(reference: str, *args: object) -> list[Path]:
        asked.append(reference)
        return [folder / "tiny.gguf"]

    monkeypatch.setattr("ggfw.catalogue.fetch_reference", fetch)
    said = cli("show", "Qwen3:0.6B")
    assert said.code == 0 and "unverified" in said.err and asked == ["hf:unsloth/Qwen3-0.6B-GGUF:Q4_K_M"]
    said = cli("show", "qwen3:0.6b", "--offline")
    assert said.code == 0 and "unverified" not in said.err and len(asked) == 1


# -- settings --------------------------------------------------------------------------------------------------------


def test_config(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / ".config" / "ggfw" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text('threads = 2\ntop-k = 7\n[serve]\napi-key = ["abc"]\n')
    monkeypatch.setenv("GGFW_TOP_K", "5")
    assert cli("config", "path").out.strip() == str(path)
    found = json.loads(cli("config", "show", "--json").out)
    rows = {row["setting"]: (row["verb"], row["value"], row["source"]) for row in found["settings"]}
    assert rows["top-k"] == (None, "5", "GGFW_TOP_K") and rows["threads"] == (None, 2, "file")
    assert rows["api-key"] == ("serve", "(set, not shown)", "file")
    table = cli("config", "show").out
    assert "abc" not in table and "GGFW_TOP_K" in table


# -- completion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(cli: Cli, shell: str) -> None:
    said = cli("completion", shell)
    assert said.code == 0 and "_GGFW_COMPLETE" in said.out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=said.out.encode(), check=True, timeout=20)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ggfw verif", ["verify"]),
        ("ggfw show tin", ["tiny"]),
        ("ggfw show other:", ["1b"]),
        ("ggfw show other:1", ["1b"]),
        ("ggfw show --tens", ["--tensors"]),
    ],
)
def test_bash_completes(cli: Cli, folder: Path, line: str, expected: list[str]) -> None:
    cli("cp", "tiny", "other:1b")
    script = cli("completion", "bash").out
    shell = f"""
ggfw() {{ {sys.executable} -c 'import sys; from ggfw.cli.main import main; sys.exit(main([]))'; }}
{script}
COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDBREAKS=$' \\n:='
_ggfw_completion
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == expected, done.stderr


def test_never_guesses_what_to_remove(cli: Cli, folder: Path) -> None:
    """An exact id beats an equal file name elsewhere; several equal file names are an error; near names are offered."""
    source = next(folder.glob("*.gguf"))
    for place in ("a/copy.gguf", "b/copy.gguf", "copy.gguf"):
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_bytes(source.read_bytes())
    assert cli("rm", "copy").code == 0
    assert not (folder / "copy.gguf").exists() and (folder / "a/copy.gguf").exists()
    said = cli("rm", "copy")
    assert "fits 2 models" in said.error and str(folder / "b/copy.gguf") in said.error
    assert (folder / "a/copy.gguf").exists() and (folder / "b/copy.gguf").exists()
    assert cli("rm", "b/copy").code == 0 and not (folder / "b/copy.gguf").exists()
    (folder / "Modelfile").write_text(f"FROM {source}\nSYSTEM Be brief.\n")
    assert cli("create", "pirate", "-f", folder / "Modelfile").code == 0
    assert "did you mean pirate?" in cli("rm", "pirat").error
    assert "pirate" in cli("run", "pirat", "x", "--local").error
    assert "mistral:7b" not in cli("rm", "mistral:7").error, "what could be fetched cannot be removed"


# -- what the makers of files get wrong -------------------------------------------------------------------------------


def test_a_modelfile_that_is_no_text(cli: Cli, folder: Path) -> None:
    (folder / "Modelfile").write_bytes(b"\xc3\x28FROM tiny")
    said = cli("create", "x", "-f", folder / "Modelfile")
    assert said.code == 1 and "Modelfile is no text in UTF-8" in said.error


def test_a_template_that_cannot_be_compiled_is_refused_at_once(cli: Cli, folder: Path) -> None:
    said = cli(
        "create", "x", "-f", "-", stdin=b'FROM tiny\nTEMPLATE """{% for m in messages %}{{ m.content }}"""\n'
    )
    assert said.code == 1 and "TEMPLATE: " in said.error and "cannot be compiled" in said.error
    assert not (folder / "derived").exists()


def test_a_model_is_loaded_as_its_modelfile_says(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, object]] = []
    load = ggfw.load
    monkeypatch.setattr(
        ggfw, "load", lambda path, **options: (seen.append(options), load(path, **options))[1]
    )
    text = b"FROM tiny\nPARAMETER num_ctx 128\nPARAMETER num_thread 1\n"
    said = cli("create", "small", "-f", "-", stdin=text)
    assert said.code == 0 and "left out" not in said.err
    assert cli("run", "small", "hi", "-n", "2").code == 0
    assert cli("chat", "small", "-n", "2", "--ctx", "64", stdin=b"hi\n").code == 0
    assert [(options["ctx"], options["threads"]) for options in seen] == [(128, 1), (64, 1)]
    said = cli("create", "x", "-f", "-", stdin=b"FROM tiny\nPARAMETER num_ctx 0\n")
    assert said.code == 1 and "num_ctx is 0; a positive whole number" in said.error


def test_a_file_outside_of_the_folders_is_not_called_missing(
    cli: Cli, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_llama(tmp_path_factory.mktemp("elsewhere") / "mine.gguf")
    said = cli("rm", path)
    assert said.code == 1 and "is in no model folder, so it is not removed" in said.error and path.is_file()


def test_folders_that_are_none(cli: Cli, tmp_path: Path) -> None:
    said = cli("list", "--models-dir", tmp_path / "gone")
    assert said.code == 0 and "gone (not there)" in said.err
    (tmp_path / "file").write_text("")
    said = cli("list", "--models-dir", tmp_path / "file")
    assert said.code == 1 and "is no folder" in said.error


def test_a_near_name_of_the_catalogue(cli: Cli) -> None:
    said = cli("pull", "qwen3:0.7b")
    assert said.code == 1 and "did you mean" in said.error and "qwen3:1.7b" in said.error
    assert "and not in the catalogue (" in cli("pull", "xyzzy").error


def test_a_folder_of_others_that_may_not_be_looked_at_is_left_out(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ggfw.cli.folders import model_folders

    folder = home / ".lmstudio" / "models"
    folder.mkdir(parents=True)
    assert model_folders(None) == [folder]
    is_dir = Path.is_dir

    def denied(self: Path) -> bool:
        if self == folder:
            raise PermissionError(13, "Permission denied", str(self))
        return is_dir(self)

    monkeypatch.setattr(Path, "is_dir", denied)
    assert model_folders(None) == [] and cli("list").code == 0

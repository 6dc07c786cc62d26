"""``ggfw plugins new``: every kind is written, found and sound; slow: it installs, and its own test passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ggfw import kernels_c
from ggfw.cli.plugin_new import SHORT, files, write
from ggfw.descriptors import KINDS
from ggfw.errors import InvalidRequest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib")


def ggfw(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ggfw.cli.main", *args]
    return subprocess.run(command, capture_output=True, text=True, env=env)


def beside(package: Path, folder: Path) -> dict[str, str]:
    """The environment in which the package counts as installed; its C code, if any, is compiled in place."""
    told = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    info = folder / "new-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {told['name']}\nVersion: {told['version']}\n")
    doors = "".join(f"{name} = {value}\n" for name, value in told["entry-points"]["ggfw"].items())
    (info / "entry_points.txt").write_text(f"[ggfw]\n{doors}")
    for source in package.rglob("kernels.c"):
        flags = ["-O1", "-fPIC", "-shared", f"-I{kernels_c.get_include()}"]
        subprocess.run(["cc", *flags, str(source), "-o", str(source.with_suffix(".so")), "-lm"], check=True)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(package)])}


def test_all_kinds_are_there() -> None:
    assert {plural for plural, _ in SHORT.values()} == KINDS.keys()


@pytest.mark.parametrize("kind", SHORT)
def test_it_is_sound_as_written(kind: str, tmp_path: Path) -> None:
    package = write(kind, "my-first", tmp_path)
    env = beside(package, tmp_path)
    said = ggfw("plugins", "check", "my-first", "--json", env=env)
    assert said.returncode == 0, said.stdout + said.stderr
    (row,) = json.loads(said.stdout)
    assert row["kind"] == SHORT[kind][0] and row["state"] == "ok"


def test_the_verb_writes_it_and_never_overwrites(tmp_path: Path) -> None:
    said = ggfw("plugins", "new", "skill", "proof", "--dir", str(tmp_path))
    assert said.returncode == 0 and (tmp_path / "ggfw-skill-proof" / "README.md").is_file()
    (tmp_path / "ggfw-skill-proof" / "README.md").write_text("mine")
    said = ggfw("plugins", "new", "skill", "proof", "--dir", str(tmp_path))
    assert said.returncode and "is there already" in said.stderr
    assert (tmp_path / "ggfw-skill-proof" / "README.md").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "../x", "A", "a b", "a--b", "1a", "class", "a/b", "a" * 50, "ä"])
def test_bad_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        write("skill", name, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", SHORT)
def test_nothing_is_left_to_fill_in(kind: str) -> None:
    made = files(kind, "toy")
    assert {"pyproject.toml", "README.md", "tests/test_toy.py"} <= made.keys()
    for path, text in made.items():
        assert "@" not in text.replace("@hookimpl", "").replace("@contextmanager", ""), path
        if path.endswith(".py"):
            compile(text, path, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHORT)
def test_it_installs(kind: str, tmp_path: Path) -> None:
    package, site = write(kind, "my-first", tmp_path), tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(package)], check=True)
    said = ggfw("plugins", "check", "my-first", env={**os.environ, "PYTHONPATH": str(site)})
    assert said.returncode == 0, said.stdout + said.stderr
    own = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(package),
        str(package),
    ]
    env = {**os.environ, "PYTHONPATH": str(site)}
    ran = subprocess.run(own, capture_output=True, text=True, env=env, cwd=site)
    assert ran.returncode == 0, ran.stdout


BROKEN: dict[str, tuple[str, list[str]]] = {
    "import": (
        "raise RuntimeError('mine')\n",
        ["import", "RuntimeError: mine (ggfw_skill_my_first.py line 1)"],
    ),
    "leaves": ("raise SystemExit(0)\n", ["import", "SystemExit: 0"]),
    "api": ("GGFW_PLUGIN_API = 7\n", ["validate", "plugin API 7"]),
}


@pytest.mark.parametrize("how", BROKEN)
def test_one_that_is_broken_is_told_which_rule_and_why(how: str, tmp_path: Path) -> None:
    package = write("skill", "my-first", tmp_path)
    env = beside(package, tmp_path)
    module = package / "ggfw_skill_my_first.py"
    code, expected = BROKEN[how]
    text = module.read_text()
    module.write_text(text.replace("GGFW_PLUGIN_API = 1\n", code) if how == "api" else code + text)
    said = ggfw("plugins", "check", "my-first", "--json", env=env)
    (row,) = json.loads(said.stdout)
    (rule,) = row["rules"]
    assert said.returncode == 1 and not said.stderr
    assert rule["rule"] == expected[0] and expected[1] in rule["reason"], rule
    assert row["reason"].startswith(expected[0])


def test_rules_that_rest_on_a_broken_one_are_one_line(tmp_path: Path) -> None:
    package = write("skill", "my-first", tmp_path)
    env = beside(package, tmp_path)
    module = package / "ggfw_skill_my_first.py"
    module.write_text(module.read_text().replace("lambda: BODY", "lambda: 1 / 0"))
    said = ggfw("plugins", "check", "my-first", env=env)
    shown = " ".join(said.stdout.split())
    assert said.returncode == 1 and "division by zero (ggfw_skill_my_first.py line" in shown
    assert shown.count("the rule load was not met") == 1 and "body … tools" in shown, shown

"""Every package of contrib/ beside ggfw: found, and sound by the rules of its kind; the slow tests build its wheel
and run its own tests with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib")

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(path.parent for path in (ROOT / "contrib").glob("*/pyproject.toml"))
#: Those with plugins; a package that only uses ggfw has no entry points.
PLUGINS = [
    p
    for p in PACKAGES
    if "ggfw" in tomllib.loads((p / "pyproject.toml").read_text())["project"].get("entry-points", {})
]
NATIVE = [p for p in PLUGINS if (p / "setup.py").exists()]
KINDS = {
    "architectures",
    "quant_formats",
    "kernel_backends",
    "chat_dialects",
    "skills",
    "model_sources",
    "sampler_stages",
}


def project(package: Path) -> dict:
    return tomllib.loads((package / "pyproject.toml").read_text())["project"]


def beside(package: Path, folder: Path) -> dict[str, str]:
    """The environment in which a package counts as installed: its folder on the path, and what an installer notes."""
    told = project(package)
    info = folder / f"{told['name'].replace('-', '_')}-{told['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {told['name']}\nVersion: {told['version']}\n"
    )
    doors = "".join(f"{name} = {value}\n" for name, value in told["entry-points"]["ggfw"].items())
    (info / "entry_points.txt").write_text(f"[ggfw]\n{doors}")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(package)])}


def checked(name: str, env: dict[str, str]) -> list[dict]:
    said = subprocess.run(
        [sys.executable, "-m", "ggfw.cli.main", "plugins", "check", name, "--json"],
        env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
    return json.loads(said.stdout)


def test_there_is_one_for_each_kind() -> None:
    texts = "".join(path.read_text() for p in PLUGINS for path in p.rglob("*.py"))
    assert all(f"ggfw_register_{kind}" in texts for kind in KINDS)


@pytest.mark.parametrize("package", [p for p in PLUGINS if p not in NATIVE], ids=lambda p: p.name)
def test_it_is_found_and_sound(package: Path, tmp_path: Path) -> None:
    found = checked(project(package)["name"], beside(package, tmp_path))
    assert found and {row["state"] for row in found} == {"ok"}


@pytest.mark.slow
@pytest.mark.parametrize("package", PLUGINS, ids=lambda p: p.name)
def test_its_wheel_installs_and_is_sound(package: Path, tmp_path: Path) -> None:
    """Built from a copy, so that nothing but what the wheel holds can be found."""
    import shutil

    copy, target = tmp_path / package.name, tmp_path / "site"
    shutil.copytree(
        package, copy, ignore=shutil.ignore_patterns("*.so", "build", "*.egg-info", "__pycache__")
    )
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(copy)], check=True)
    env = {**os.environ, "PYTHONPATH": str(target)}
    found = checked(project(package)["name"], env)
    assert found and {row["state"] for row in found} == {"ok"}
    tests = tmp_path / "tests"
    shutil.copytree(package / "tests", tests)
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout

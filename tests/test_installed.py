"""What an installation must have, whether it is a checkout's or a wheel's; CI runs this file against the wheel too."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ggfw
from ggfw import kernels_c
from ggfw.registry import Registry

HOME = Path(ggfw.__file__).parent


def ggfw_command(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the console script that was installed with this Python."""
    script = Path(sys.executable).with_name("ggfw")
    assert script.exists(), "the console script is not installed"
    env = {**os.environ, "LC_ALL": "C", **environ}
    return subprocess.run(
        [str(script), *args], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env
    )


def test_version() -> None:
    version = importlib.metadata.version("ggfw")
    assert ggfw.__version__ == version
    run = ggfw_command("--version")
    assert (run.returncode, run.stdout.strip()) == (0, f"ggfw {version}")


def test_every_module_of_every_entry_point_is_there() -> None:
    doors = [ep for ep in importlib.metadata.distribution("ggfw").entry_points if ep.group == "ggfw"]
    assert doors
    for ep in doors:
        importlib.import_module(ep.value)
    assert not Registry.load(doors, {}).broken()


def test_headers_libraries_and_declarations_are_there() -> None:
    include = Path(kernels_c.get_include())
    assert {"ggfw_kernels.h", "ggfw_executor.h"} <= {path.name for path in include.glob("*.h")}
    for path in (kernels_c.executor_path(), kernels_c.library_path("generic"), kernels_c.bindings_path()):
        assert Path(path).is_file()
    assert kernels_c.usable(kernels_c.library_path("generic"))


def test_a_header_compiles_elsewhere(tmp_path: Path) -> None:
    source = tmp_path / "mine.c"
    source.write_text(
        '#include "ggfw_kernels.h"\nint32_t ggfw_kernels_abi(void) { return GGFW_KERNELS_ABI; }\n'
    )
    args = [
        "cc",
        "-std=c11",
        f"-I{kernels_c.get_include()}",
        "-c",
        str(source),
        "-o",
        str(tmp_path / "mine.o"),
    ]
    subprocess.run(args, check=True)


def test_plugins_list_shows_the_builtins() -> None:
    run = ggfw_command("plugins", "list", "--strict")
    assert run.returncode == 0, run.stderr
    for name in ("llama", "gemma3", "Q4_K", "generic"):
        assert name in run.stdout


def test_errors_are_one_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03")
    run = ggfw_command("run", str(broken), "Hello there")
    assert (run.returncode, run.stdout) == (1, "")
    assert "Traceback" not in run.stderr and "broken.gguf" in run.stderr


def test_a_real_model_answers(smollm2_path: Path) -> None:
    run = ggfw_command(
        "run", str(smollm2_path), "Name three rivers in Europe.", "--max-tokens", "12", "--temp", "0"
    )
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) >= 4


@pytest.mark.parametrize("args", [("--help",), ("plugins", "list")])
def test_quick_to_start(args: tuple[str, ...]) -> None:
    resource = pytest.importorskip("resource")
    used = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert ggfw_command(*args).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    # Processor time, because the clock of a busy machine says more about its other processes.
    assert min(used) < 0.2, f"seconds of processor time: {used}"

"""The executor library under the compiler's sanitizers: data races, memory errors, undefined behaviour.

``executor_stress.c`` runs plans from several callers, ``executor_stalls.c`` the same while threads are stopped;
``memory_stress.c`` moves and cuts mapped files under readers and draws with samplers in several threads.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ggfw.kernels_c import get_include

HERE = Path(__file__).parent
SOURCES = Path(get_include()).parent / "src"


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize("compiler", ["clang-19", "clang", "gcc"])
@pytest.mark.parametrize("source", ["executor_stress.c", "executor_stalls.c", "memory_stress.c"])
def test_stress(source: str, compiler: str, sanitizer: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    program = tmp_path / "stress"
    command = [
        compiler, "-std=c11", "-D_GNU_SOURCE", "-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all",
        f"-I{get_include()}", f"-I{SOURCES}", str(HERE / source), *map(str, sorted(SOURCES.glob("*.c"))),
        "-o", str(program), "-pthread", "-lm",
    ]  # fmt: skip
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode and "-fsanitize" in built.stderr:
        pytest.skip(f"{compiler} has no {sanitizer} sanitizer")
    assert built.returncode == 0, built.stderr
    run = subprocess.run([str(program)], capture_output=True, text=True, timeout=300)
    if "unexpected memory mapping" in run.stderr:
        pytest.skip(f"{compiler}'s {sanitizer} sanitizer does not run on this kernel")
    assert run.returncode == 0 and run.stdout.startswith("good"), run.stdout + run.stderr

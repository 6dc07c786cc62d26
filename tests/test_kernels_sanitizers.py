"""The kernel tests once more, on units that are compiled with ASan and UBSan."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import kernels_linear_twin as twin
import pytest
from kernels_variants import build_module

HERE = Path(__file__).parent
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g1")
TESTS = [
    *(
        "test_kernels_linear",
        "test_kernels_linear_moe",
        "test_kernels_linear_rows",
        "test_kernels_activations",
    ),
    *("test_executor_ops", "test_executor_attention", "test_executor_kernels", "test_no_repack"),
]

#: A pytest plugin: the backends of the child process are the libraries of a folder.
PLUGIN = """
import os
from pathlib import Path
from ggfw import kernels_c

own, folder = kernels_c._path, Path(os.environ["GGFW_TEST_LIBRARIES"])

def sanitized(name):
    path = folder / f"libggfw_{name}.so"
    return str(path) if path.exists() else own(name)

kernels_c._path = sanitized
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="puts the sanitizers before other libraries"
    ),
]


def runtime(compiler: str, name: str) -> str:
    """The path of a sanitizer's library; skips the test where the compiler has none."""
    said = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = said.stdout.strip()
    if not os.path.isabs(path):
        pytest.skip(f"{compiler} has no {name}")
    return path


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a process that runs on sanitized libraries of all units that this machine can run."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    build, folder = build_module(), tmp_path_factory.mktemp("plugin")
    libraries = build.OBJECTS / "sanitized"
    target = build.Target.here()
    flags = target.units()
    for unit in twin.units():
        command = [compiler, *SANITIZE]
        path = build.build_variant(unit, unit, (*flags[unit], "-O1"), compiler=command, libraries=libraries)
    (folder / "sanitized_units.py").write_text(PLUGIN)
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(runtime(compiler, name) for name in ("libasan.so", "libubsan.so")),
        # Python's own memory is not given back at its end; the guard of mapped files handles SIGSEGV and SIGBUS itself.
        "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0:handle_sigbus=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "GGFW_TEST_LIBRARIES": str(path.parent),
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }


def test_the_libraries_are_those_with_sanitizers(environment: dict[str, str]) -> None:
    """A read behind a matrix's end is reported, so the other test can fail."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import numpy as np, kernels_linear_twin as twin\n"
        "rows = np.zeros((1, 64), np.uint8)\n"
        "kernel = twin.library('generic').kernel(twin.EMBED, 'F32')\n"
        "out = np.zeros(1 << 20, np.float32)\n"
        "ids = np.array([1], np.int32)\n"
        "f = twin.ffi()\n"
        "kernel.unpack_rows(twin.pointer(rows), 2, 1 << 18, twin.pointer(ids, 'int32_t *'), 1,\n"
        "                   twin.pointer(out, 'float *'), 1 << 20)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(HERE)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode and "AddressSanitizer" in done.stderr, (done.returncode, done.stderr[-2000:])


def test_kernel_tests_pass_with_sanitizers(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "sanitized_units", "-p", "no:cacheprovider"]
    paths = [str(HERE / f"{name}.py") for name in TESTS]
    done = subprocess.run(
        [*command, "-m", "not slow", *paths], env=environment, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout

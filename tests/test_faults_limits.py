"""Memory, threads, disk and time that run out; processes that are killed while they write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_support import COMMAND
from tiny_models import write_llama

import ggfw

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")


def run(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, timeout=60
    )


def leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def test_memory_that_is_not_to_be_had_is_told_with_its_size(tmp_path: Path) -> None:
    code = """
import resource, sys, ggfw
with ggfw.load(sys.argv[1], threads=1, ctx=64) as model:
    model.generate("a", max_tokens=1)
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
try:
    ggfw.load(sys.argv[1], threads=1, ctx=1 << 20, n_parallel=4)
except ggfw.GgfwError as error:
    print("MiB" in str(error), error)
with ggfw.load(sys.argv[1], threads=1, ctx=64) as model:
    print(model.generate("a", max_tokens=1).usage.completion_tokens)
"""
    done = run(code, write_llama(tmp_path / "m.gguf", n_ctx=1 << 21))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True ") and done.stdout.endswith("\n1\n"), done.stdout


#: Lets a process have so many threads and no more, whoever it belongs to (ulimit -u means nothing to root).
FEW_THREADS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
typedef int creator(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    static _Atomic long made;
    if (atomic_fetch_add(&made, 1) >= atol(getenv("MOST_THREADS"))) return EAGAIN;
    return ((creator *)dlsym(RTLD_NEXT, "pthread_create"))(thread, attributes, run, argument);
}
"""


@pytest.fixture(scope="module")
def few_threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few")
    (folder / "few.c").write_text(FEW_THREADS)
    library = folder / "few.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(folder / "few.c"), "-o", str(library), "-ldl"], check=True)
    return library


@pytest.mark.parametrize("most", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 9))])
def test_no_threads_to_be_had(few_threads: Path, tmp_path: Path, most: int) -> None:
    """What only makes something faster is done without; where there is none for the engine, one sentence says so."""
    path = write_llama(tmp_path / "m.gguf")
    env = {
        **os.environ,
        "LD_PRELOAD": str(few_threads),
        "MOST_THREADS": str(most),
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*COMMAND, "run", str(path), "hello", "--raw", "--max-tokens", "2", "--threads", "2", "--ctx", "64"],
        capture_output=True, text=True, timeout=60, env=env,
    )  # fmt: skip
    assert done.returncode in ((1,) if most == 0 else (0, 1)), done.stderr
    if done.returncode:
        assert "ggfw: error: the system gives no thread for" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and done.stderr.count("ggfw: error:") == 1


def test_a_request_that_finds_no_thread_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ggfw.load(write_llama(tmp_path / "m.gguf"), threads=1, ctx=64, max_queue=1) as model:
        with monkeypatch.context() as patched:
            patched.setattr("threading.Thread.start", no_thread)
            for _ in range(5):  # more than the queue has places
                with pytest.raises(ggfw.GgfwError, match="gives no thread for ggfw-engine"):
                    model.generate("a", max_tokens=1)
        assert model.generate("a", max_tokens=1).usage.completion_tokens == 1


def no_thread(self: object) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("how", ["full", "killed"])
def test_quantize_leaves_no_half_file(tmp_path: Path, how: str) -> None:
    source, target = write_llama(tmp_path / "m.gguf", n_layer=40), tmp_path / "out" / "q.gguf"
    target.parent.mkdir()
    command = [*COMMAND, "quantize", str(source), str(target), "Q8_0"]
    if how == "full":
        code = (
            "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2);"
            "from ggfw.cli.main import main; sys.exit(main(sys.argv[1:]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *command[3:]], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1, done.stdout + done.stderr
        assert "Traceback" not in done.stderr and done.stderr.count("ggfw: error:") == 1, done.stderr
        assert leftovers(target.parent) == []
        return
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 20
    while process.poll() is None and not leftovers(target.parent) and time.monotonic() < end:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if target.exists():  # it was done before
        from ggfw.gguf import GGUF

        with GGUF.open(target) as gguf:
            assert len(gguf.tensors) == 40 * 9 + 3


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "m.gguf")
    target = tmp_path / "not" / "there" / "q.gguf"
    done = subprocess.run(
        [*COMMAND, "quantize", str(source), str(target), "Q8_0"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.startswith("ggfw: error: ") and not target.exists()


def test_a_clock_that_jumps(tmp_path: Path) -> None:
    """Deadlines and rates go by the monotonic clock: setting the wall clock back does no harm."""
    code = """
import sys, time, ggfw
real, jumps = time.time, [0]
def wild():
    jumps[0] += 1
    return real() + (-1) ** jumps[0] * 10**6
time.time = wild
with ggfw.load(sys.argv[1], threads=1, ctx=64) as model:
    result = model.generate("a", max_tokens=5, ignore_eos=True, timeout=30)
    assert result.usage.completion_tokens == 5 and 0 <= result.timings.total < 30e3, result.timings
    print("good")
"""
    done = run(code, write_llama(tmp_path / "m.gguf"))
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stdout + done.stderr

"""How much memory is to be had: the machine's, that of control groups of both versions, and models that need more."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cli_support import COMMAND
from tiny_models import write_llama

import ggfw
from ggfw.footprint import MemoryShort
from ggfw.free_memory import available_memory

INFO = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    8000 kB\n"}
V2 = {**INFO, "proc/self/cgroup": "0::/a/b\n"}
V1 = {**INFO, "proc/self/cgroup": "4:memory:/x\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        (INFO, 8000 << 10),
        ({**INFO, "sys/fs/cgroup/memory.max": "5000\n", "sys/fs/cgroup/memory.current": "2000\n"}, 3000),
        ({**V2, "sys/fs/cgroup/a/memory.max": "5000\n", "sys/fs/cgroup/a/memory.current": "4000\n"}, 1000),
        ({**V2, "sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "1\n"}, 8000 << 10),
        ({**V2, "sys/fs/cgroup/a/b/memory.max": "5000\n", "sys/fs/cgroup/a/b/memory.current": "9000\n"}, 0),
        (
            {**V2, "sys/fs/cgroup/a/memory.max": "5000\n", "sys/fs/cgroup/a/memory.current": "4500\n",
             "sys/fs/cgroup/a/memory.stat": "anon 1500\nactive_file 1000\ninactive_file 2000\nfile 3500\n"},
            3500,
        ),  # what is kept of files goes first
        (
            {**V1, "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "5000\n",
             "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "3000\n",
             "sys/fs/cgroup/memory/x/memory.stat": "active_file 9\ntotal_active_file 400\ntotal_inactive_file 600\n"},
            3000,
        ),
        (
            {**V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
             "sys/fs/cgroup/memory/memory.usage_in_bytes": "3000\n"},
            8000 << 10,
        ),
        ({**INFO, "sys/fs/cgroup/memory.max": "nonsense\n", "sys/fs/cgroup/memory.current": "\n"}, 8000 << 10),
    ],
)  # fmt: skip
def test_what_is_free(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert available_memory(tmp_path) == expected


def test_weights_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_llama(tmp_path / "m.gguf")
    monkeypatch.setattr("ggfw.free_memory.available_memory", lambda: 1 << 20)
    with pytest.raises(MemoryShort, match=r"m\.gguf needs at least 32 MiB, but 1 MiB are to be had"):
        ggfw.load(path)
    with ggfw.load(
        path, backend="reference", ctx=64
    ) as model:  # reads the mapped file, which needs no memory
        assert model.generate("a", max_tokens=1).usage.completion_tokens == 1


GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.mark.slow
@pytest.mark.skipif(
    not os.access(GROUPS / "cgroup.procs", os.W_OK), reason="no control group may be made here"
)
@pytest.mark.parametrize("mib", [80, 110, 140, 170, 400])
def test_a_control_group_that_is_too_small(smollm2_path: Path, tmp_path: Path, mib: int) -> None:
    """A sentence before the kernel ends the process; with enough memory, an answer."""
    group = GROUPS / f"ggfw-test-{os.getpid()}-{mib}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(mib << 20))
        command = [*COMMAND, "run", str(smollm2_path), "hello", "--max-tokens", "4", "--ctx", "256"]
        done = subprocess.run(
            ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *command],
            capture_output=True, text=True, timeout=120, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        )  # fmt: skip
    finally:
        group.rmdir()
    assert done.returncode in (0, 1), (done.returncode, done.stderr[-2000:])
    if done.returncode:
        assert done.stderr.startswith("ggfw: error: ") and "are to be had" in done.stderr, done.stderr[-2000:]
    assert done.returncode == (0 if mib == 400 else 1) or 110 < mib < 400

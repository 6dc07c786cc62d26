"""Files that are written while the disk fills up, the process is killed, or somebody else writes the same one."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_support import COMMAND
from server_process import ServerProcess
from test_server_ollama import Pooled
from tiny_models import write_llama

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")


def run(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, timeout=60
    )


SAVED = """
import resource, signal, sys, ggfw
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
target = Path(sys.argv[2])
with ggfw.load(sys.argv[1], threads=1, ctx=256) as model:
    prompt = model.tokenize("the sea and the stars and the hills " * 4)
    model.generate(prompt, max_tokens=1)
    model.save_cache(target, prompt)
    before = target.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        model.save_cache(target, prompt)
    except OSError as error:
        assert "too large" in str(error), error
    else:
        raise SystemExit("no error")
    assert target.read_bytes() == before and [p.name for p in target.parent.iterdir()] == [target.name]
    model.load_cache(target)
    print("good")
"""


def test_a_disk_that_is_full_leaves_the_cache_that_was_saved_before(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    done = run(SAVED, write_llama(tmp_path / "m.gguf"), tmp_path / "c" / "saved")
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("n_bytes", [1, 200_000])
def test_killed_while_it_writes_packed_weights(tmp_path: Path, n_bytes: int) -> None:
    """No half file under a name that is looked for; the next start packs and answers as the first."""
    path = write_llama(tmp_path / "m.gguf", n_layer=40)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [*COMMAND, "run", str(path), "hello", "--raw", "--max-tokens", "3", "--temperature", "0"]
    whole = subprocess.run(
        [*command, "--packed-cache-mb", "0"], env=env, capture_output=True, text=True, timeout=60
    )
    assert whole.returncode == 0, whole.stderr
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < end:
        if any(f.stat().st_size >= n_bytes for f in (tmp_path / "cache").rglob("*.part*") if f.exists()):
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(2):
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, whole.stdout), done.stderr


DATA = b"GGUF" + bytes(range(256)) * 2000
DIGEST = hashlib.sha256(DATA).hexdigest()


def test_two_who_send_the_same_file_do_not_spoil_it(tmp_path: Path) -> None:
    """Even where they call their requests the same, and one of them sends something else."""
    go_on, begun = threading.Event(), threading.Event()

    def slowly() -> Iterator[bytes]:
        yield DATA[:300_000]
        begun.set()
        assert go_on.wait(20)
        yield DATA[300_000:]

    statuses: list[int] = []
    with Pooled(tmp_path) as server:

        def send() -> None:
            answer = server.http.post(
                f"/api/blobs/sha256:{DIGEST}", content=slowly(), headers={"X-Request-ID": "same"}
            )
            statuses.append(answer.status_code)

        first = threading.Thread(target=send)
        first.start()
        assert begun.wait(20)
        time.sleep(0.2)  # it has been written down
        wrong = server.http.post(
            f"/api/blobs/sha256:{DIGEST}", content=b"something else", headers={"X-Request-ID": "same"}
        )
        go_on.set()
        first.join(20)
        assert wrong.status_code == 400 and statuses == [201]
        (stored,) = (tmp_path / "blobs").iterdir()
        assert stored.read_bytes() == DATA


def test_what_killed_servers_left_of_uploads_is_removed(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for name, age in (("sha256-" + "1" * 64 + ".00.part", 90_000), ("sha256-" + "2" * 64 + ".00.part", 60),
                      ("sha256-" + "3" * 64, 900_000)):  # fmt: skip
        (blobs / name).write_bytes(b"x")
        os.utime(blobs / name, (time.time() - age,) * 2)
    with Pooled(tmp_path) as server:
        assert server.http.post(f"/api/blobs/sha256:{DIGEST}", content=DATA).status_code == 201
    assert sorted(p.name[7:9] for p in blobs.iterdir()) == sorted(["22", "33", DIGEST[:2]])


@pytest.mark.slow
def test_a_server_that_is_killed_while_a_file_is_sent(tmp_path: Path) -> None:
    path, folder = write_llama(tmp_path / "m.gguf"), tmp_path / "models"
    folder.mkdir()
    begun = threading.Event()

    def slowly() -> Iterator[bytes]:
        yield DATA[:300_000]
        begun.set()
        time.sleep(20)
        yield DATA[300_000:]

    env = {"GGFW_MODELS_DIR": str(folder)}
    with ServerProcess(path, "--threads", "1", "--ctx", "64", env=env) as server:

        def send() -> None:
            try:
                server.http.post(f"/api/blobs/sha256:{DIGEST}", content=slowly())
            except Exception:
                pass  # the connection ends with the server

        threading.Thread(target=send, daemon=True).start()
        assert begun.wait(20)
        time.sleep(0.5)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    assert not [p for p in folder.rglob("*") if p.is_file() and p.name == f"sha256-{DIGEST}"]
    with ServerProcess(path, "--threads", "1", "--ctx", "64", env=env) as server:
        assert server.http.head(f"/api/blobs/sha256:{DIGEST}").status_code == 404
        assert server.http.post(f"/api/blobs/sha256:{DIGEST}", content=DATA).status_code == 201
        assert server.http.head(f"/api/blobs/sha256:{DIGEST}").status_code == 200

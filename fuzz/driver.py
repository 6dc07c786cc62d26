"""Runs targets: a child process executes inputs, this one watches it. Findings are files with the input.

The child writes every input into shared memory before it runs it, so that a crash leaves its cause behind, and counts,
so that a hang is seen from outside.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import mmap
import operator
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.target import Target, make

#: Bytes of the longest input.
LONGEST = 1 << 16
#: Executions, length of the input, size at the beginning, size now, MiB that it may grow by: 8 bytes each.
_HEAD = 40
#: Types whose comparisons tell a fuzzer something.
_PLAIN = frozenset({int, str, bytes, bool, float, type(None)})
_COMPARISONS = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)


def python() -> str:
    """The interpreter for children: that of this process."""
    return sys.executable


# -- outside ----------------------------------------------------------------------------------------------------------


def fuzz(name: str, seconds: float, *, seed: int, engine: str, findings: Path) -> dict[str, Any]:
    """Run one target for a while, going on behind crashes and hangs.

    Returns:
        {target, engine, executions, seconds: of the wall, cpu_seconds: with what the target started, grown_mib: of
        resident memory since the 500th execution, resident_mib: at ten times of the last child, coverage: edges,
        features, corpus (None where nobody counts them), findings: [names of files]}
    """
    folder = findings / name
    folder.mkdir(parents=True, exist_ok=True)
    before = {path.name for path in folder.iterdir()}
    shared = folder / ".running"
    shared.write_bytes(bytes(_HEAD + LONGEST))
    begin, cpu = time.monotonic(), children_cpu()
    end, executions, grown, allowed, restarts = begin + seconds, 0, 0, 64, 0
    sizes: list[int] = []
    coverage: dict[str, int] | None = None
    with shared.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        while (left := end - time.monotonic()) > 0.2 and restarts < 1000:
            memory[:_HEAD] = bytes(_HEAD)
            command = [
                python(), "-m", "fuzz", "--inside", name, "--seconds", f"{left:.1f}", "--seed", str(seed + restarts),
                "--engine", engine, "--findings", str(findings),
            ]  # fmt: skip
            log = folder / ".log"
            with log.open("wb") as output:
                temporary = folder / ".tmp"
                temporary.mkdir(exist_ok=True)
                child = subprocess.Popen(
                    command, stdout=output, stderr=output, start_new_session=True,
                    env={**os.environ, "TMPDIR": str(temporary.resolve())},
                )  # fmt: skip
                try:
                    why, sizes = _watch(child, memory, left)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL)  # with what it has started and could not end
                    shutil.rmtree(temporary, ignore_errors=True)
            executions += _field(memory, 0)
            grown = max(grown, (_field(memory, 3) - _field(memory, 2)) >> 20)
            allowed = _field(memory, 4) or allowed
            restarts += 1
            told = log.read_text("utf-8", "replace")
            coverage = _coverage(told) or coverage
            if why:
                _save(folder, why, _input(memory), told[-6000:])
            if not _field(memory, 0) and why:
                break  # it cannot even begin
    if grown > allowed:
        _save(folder, "grown", b"", f"the process grew by {grown} MiB")
    new = sorted(
        path.name for path in folder.iterdir() if path.suffix == ".input" and path.name not in before
    )
    return {
        "target": name, "engine": engine, "executions": executions, "seconds": round(time.monotonic() - begin, 1),
        "cpu_seconds": round(children_cpu() - cpu, 1), "grown_mib": grown, "resident_mib": sizes, "coverage": coverage,
        "findings": new,
    }  # fmt: skip


def children_cpu() -> float:
    """Seconds of CPU of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _coverage(told: str) -> dict[str, int] | None:
    """What libFuzzer, which atheris drives, last said of edges and of the inputs that it keeps."""
    said = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", told)
    return dict(zip(("edges", "features", "corpus"), map(int, said[-1]), strict=True)) if said else None


def _watch(child: subprocess.Popen[bytes], memory: mmap.mmap, seconds: float) -> tuple[str, list[int]]:
    """Wait for a child; gives how it went wrong, or an empty string, and its size in MiB at ten times."""
    count, waited, begin = 0, 0.0, time.monotonic()
    last = begin
    sizes: list[int] = []
    patience = 60.0  # imports, a server's start
    while child.poll() is None:
        time.sleep(0.05)
        now, executed = time.monotonic(), _field(memory, 0)
        if executed and now - begin > seconds * (len(sizes) + 0.5) / 10:
            sizes += [size >> 20] if (size := _resident(child.pid)) else []  # none: it has just ended
        waited += min(now - last, 0.5)  # not the time in which all of it was suspended
        last = now
        if executed != count:
            count, waited, patience = executed, 0.0, 5.0 + 5.0  # ours and that of a loaded machine
        if waited > patience:
            child.send_signal(signal.SIGABRT)  # faulthandler says where it was
            child.wait()
            return "hang", sizes
        if now - begin > seconds + 30:
            child.kill()
            child.wait()
            return "", sizes
    if child.returncode < 0:
        return f"signal{-child.returncode}", sizes
    return "" if child.returncode == 0 else "exit", sizes


def _field(memory: mmap.mmap, index: int) -> int:
    return int.from_bytes(memory[8 * index : 8 * index + 8], "little")


def _input(memory: mmap.mmap) -> bytes:
    return memory[_HEAD : _HEAD + _field(memory, 1)]


def _save(folder: Path, what: str, data: bytes, text: str) -> None:
    stem = folder / f"{what}-{hashlib.sha256(data).hexdigest()[:12]}"
    stem.with_suffix(".input").write_bytes(data)
    stem.with_suffix(".txt").write_text(text, "utf-8", "backslashreplace")


# -- inside -----------------------------------------------------------------------------------------------------------


class Inside:
    """The child: runs inputs of one target and notes what goes wrong, each kind of error once."""

    def __init__(self, name: str, findings: Path) -> None:
        faulthandler.enable()
        self._folder = findings / name
        file = (self._folder / ".running").open("r+b")
        self._memory = mmap.mmap(file.fileno(), 0)
        self.target: Target = make(name)
        self._memory[32:40] = self.target.grows.to_bytes(8, "little")
        self._seen: set[str] = set()
        self.executions = 0

    def one(self, data: bytes) -> None:
        """Run one input."""
        data = data[:LONGEST]
        memory = self._memory
        memory[8:16] = len(data).to_bytes(8, "little")
        memory[_HEAD : _HEAD + len(data)] = data
        begin = time.process_time()  # by the clock of the wall, a suspended machine would be slow
        try:
            self.target.run(data)
        except self.target.errors:
            pass
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._note(error, data)
        took = time.process_time() - begin
        if took > self.target.seconds:
            _save(self._folder, "slow", data, f"took {took:.1f} s of CPU")
        self.executions += 1
        memory[0:8] = self.executions.to_bytes(8, "little")
        if self.executions in (50, 500) or self.executions % 1000 == 0:
            at = 24 if self.executions > 500 else 16
            memory[at : at + 8] = _resident().to_bytes(8, "little")
            if self.executions <= 500:
                memory[24:32] = memory[16:24]

    def _note(self, error: BaseException, data: bytes) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__}-{Path(last.filename).stem}-{last.lineno}"
        if kind in self._seen:
            return
        self._seen.add(kind)
        _save(self._folder, kind, data, "".join(traceback.format_exception(error)))


def _resident(process: int | str = "self") -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def inside(name: str, seconds: float, *, seed: int, engine: str, findings: Path) -> None:
    """What the child does."""
    if engine == "atheris":
        import atheris

        with atheris.instrument_imports(include=["ggfw"]):
            runner = Inside(name, findings)
        corpus = findings / name / ".corpus"
        corpus.mkdir(exist_ok=True)
        for data in runner.target.seeds:
            (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
        end = time.monotonic() + seconds
        options = [f"-max_total_time={int(seconds) + 60}", f"-seed={seed + 1}", f"-max_len={LONGEST}"]
        options.append(f"-artifact_prefix={findings / name}/.")
        guarded = False

        def one(data: bytes) -> None:
            nonlocal guarded
            if not guarded:  # not before: Fuzz() itself puts another function there
                guarded = True
                _plain_comparisons(atheris)
            runner.one(data)
            if time.monotonic() > end:  # libFuzzer would not let the target close what it has opened
                runner.target.close()
                os._exit(0)

        options += [
            "-timeout=1000000",
            "-rss_limit_mb=4096",
        ]  # hangs are seen from outside, where pauses are known
        atheris.Setup([sys.argv[0], *options, str(corpus)], one)
        atheris.Fuzz()
        return
    runner = Inside(name, findings)
    mutate(runner.one, list(runner.target.seeds), random.Random(seed), time.monotonic() + seconds)
    runner.target.close()
    os._exit(0)  # threads of servers and engines need not be waited for


def _plain_comparisons(atheris: Any) -> None:
    """Trace only comparisons of numbers and text.

    atheris 3.0 never gives back the result of a comparison that it traces. That costs nothing where it is True or
    False; arrays of NumPy have grown to a GiB in three minutes.
    """
    trace = atheris._trace_cmp

    def compare(left: Any, right: Any, operation: int, where: int, constant: bool) -> Any:
        if type(left) in _PLAIN and type(right) in _PLAIN:
            return trace(left, right, operation, where, constant)
        return _COMPARISONS[operation](left, right)

    atheris._trace_cmp = compare


def mutate(run: Callable[[bytes], None], seeds: list[bytes], rng: random.Random, end: float) -> None:
    """Run seeds, mutations of seeds, and noise until ``end``."""
    for data in seeds:
        if time.monotonic() > end:
            return
        run(data)
    pool = seeds or [b""]
    while time.monotonic() < end:
        kind = rng.random()
        if kind < 0.5 or not seeds:
            data = rng.randbytes(int(2 ** rng.uniform(0, 11)))
        else:
            data = mutation(rng, rng.choice(pool), rng.choice(pool))
        run(data)


def mutation(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """``data`` with a few changes; ``other`` gives parts."""
    out = bytearray(data)
    for _ in range(1 + int(rng.expovariate(0.5))):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(7)
        if kind == 0 and out:
            out[at % len(out)] = rng.randrange(256)
        elif kind == 1 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del out[at : at + int(rng.expovariate(0.1)) + 1]
        elif kind == 3:
            out[at:at] = rng.randbytes(int(rng.expovariate(0.3)) + 1)
        elif kind == 4:
            begin = rng.randrange(len(other) + 1)
            out[at:at] = other[begin : begin + int(rng.expovariate(0.03)) + 1]
        elif kind == 5:
            out[at:at] = out[at : at + int(rng.expovariate(0.05)) + 1] * rng.choice((1, 2, 50))
        else:
            width = rng.choice((1, 2, 4, 8))
            value = rng.choice(
                (0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), 2 ** (8 * width - 1) - 1, 32)
            )
            out[at : at + width] = value.to_bytes(width, "little")
    return bytes(out[:LONGEST])


def report(results: list[dict[str, Any]]) -> str:
    """Results as lines of JSON."""
    return "\n".join(json.dumps(r) for r in results)

"""The measures of `bench/peers.py`: which command each side runs, and how its answer is read.

A measure is one number per process run. Both sides get the same file, thread count and lengths; what is
compared with what is in bench/README.md. Parsing is kept apart from running so that it can be tested.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from peers_build import Build, PeersError
from peers_machine import CpuClock

START_PROMPT = "Name three rivers in Europe."
RUN_TIMEOUT_SECONDS = 900.0
# A run is called disturbed when others used more than this share of the machine's CPU time during it.
DISTURBED_SHARE = 0.10


@dataclass(frozen=True)
class Lengths:
    """Token counts and context sizes of all measures (`--prompt-tokens` and so on)."""

    prompt: int = 512
    new: int = 128
    depth: int = 0  # tokens already in the cache when decoding begins (ggfw needs at least one: BOS)
    parallel: int = 16
    parallel_prompt: int = 32
    parallel_new: int = 32
    ctx: int = 1024  # start and memory: context per sequence


@dataclass(frozen=True)
class Task:
    """One comparison: a model, the threads, the lengths, and ggfw's route and extra options."""

    model: Path
    threads: int
    lengths: Lengths
    repeat: int = 1
    raw: bool = False  # ggfw bench --raw: the step loop alone, as llama-bench times it
    ggfw_backend: str | None = None


@dataclass(frozen=True)
class Outcome:
    """One finished process: times in seconds, memory in bytes.

    ``first_byte`` is from just before exec to the first byte on stdout (None: it printed nothing);
    ``peak_rss`` is the VmHWM of the process (ru_maxrss of wait4); ``foreign`` the share of the machine's
    CPU time that other processes used meanwhile.
    """

    stdout: str
    first_byte: float | None
    wall: float
    cpu: float
    peak_rss: int
    foreign: float


@dataclass(frozen=True)
class Sample:
    """A value with the conditions under which it was measured."""

    value: float
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    foreign_cpu: float

    def as_dict(self) -> dict[str, float]:
        """JSON-ready fields."""
        return asdict(self)


@dataclass(frozen=True)
class Measure:
    """How one quantity is measured on both sides.

    ``timed`` is False where the value does not depend on how fast the process ran, so that other processes
    cannot disturb it; ``beside`` is True where another process takes all it can get of one core meanwhile.
    ``llama(build, task, fa)`` and ``ggfw(command, task)`` give argument vectors, ``read_llama`` and
    ``read_ggfw`` turn an `Outcome` into the value.
    """

    name: str
    title: str
    unit: str
    higher_is_better: bool
    llama: Callable[[Build, Task, int], list[str]]
    ggfw: Callable[[list[str], Task], list[str]]
    read_llama: Callable[[Outcome], float]
    read_ggfw: Callable[[Outcome], float]
    timed: bool = True
    beside: bool = False


# --------------------------------------------------------------------------------------------- commands


def _llama_bench(build: Build, task: Task, fa: int, prompt: int, new: int, depth: int) -> list[str]:
    program = str(build.program("llama-bench"))
    sizes = ["-p", str(prompt), "-n", str(new), "-d", str(depth)]
    common = ["-t", str(task.threads), "-fa", str(fa), "-r", str(task.repeat), "-o", "json"]
    return [program, "-m", str(task.model), *sizes, *common]


def _llama_batched(
    build: Build, task: Task, fa: int, prompt: int, new: int, parallel: int, ctx: int
) -> list[str]:
    program = str(build.program("llama-batched-bench"))
    sizes = ["-npp", str(prompt), "-ntg", str(new), "-npl", str(parallel), "-c", str(ctx)]
    common = ["-t", str(task.threads), "-fa", "on" if fa else "off", "--output-format", "jsonl"]
    return [program, "-m", str(task.model), *sizes, *common]


def _llama_start(build: Build, task: Task, fa: int) -> list[str]:
    # Conversation mode is automatic: the file's template is used where there is one, as `ggfw run` does.
    # Its warm-up run would only delay the first token, so it is off: the better setting for llama.cpp.
    program = str(build.program("llama-completion"))
    once = ["-n", "1", "--temp", "0", "-st", "--no-display-prompt", "--simple-io", "--no-warmup"]
    common = ["-t", str(task.threads), "-c", str(task.lengths.ctx), "-fa", "on" if fa else "off"]
    return [program, "-m", str(task.model), "-p", START_PROMPT, *once, *common]


def _ggfw_options(task: Task) -> list[str]:
    backend = ["--backend", task.ggfw_backend] if task.ggfw_backend else []
    return ["--threads", str(task.threads), *backend]


def _ggfw_bench(
    command: list[str], task: Task, prompt: int, new: int, extra: list[str], repeat: int
) -> list[str]:
    sizes = ["-p", str(prompt), "-n", str(new), "--repeat", str(repeat), "--json"]
    raw = ["--raw"] if task.raw else []
    return [*command, "bench", str(task.model), *sizes, *_ggfw_options(task), *raw, *extra]


# ----------------------------------------------------------------------------------------------- parsing


def parse_llama_bench(text: str) -> float:
    """Median tokens per second of llama-bench's JSON: the only test in it, all its repetitions."""
    tests = json.loads(text)
    if len(tests) != 1 or not tests[0].get("samples_ts"):
        raise ValueError(f"expected one test with samples_ts, got {len(tests)} tests")
    return float(statistics.median(tests[0]["samples_ts"]))


def parse_batched_bench(text: str, key: str = "speed_tg") -> float:
    """``key`` of the only result line of llama-batched-bench's JSONL (S_TG: all sequences added up)."""
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if len(rows) != 1:
        raise ValueError(f"expected one result line, got {len(rows)} (is the context large enough?)")
    return float(rows[0][key])


def parse_ggfw_bench(text: str, key: str, parallel: int = 1) -> float:
    """``key`` of the object for ``parallel`` sequences in `ggfw bench --json`'s list."""
    rows = [row for row in json.loads(text) if row["parallel"] == parallel]
    if len(rows) != 1:
        raise ValueError(f"expected one object with parallel = {parallel}, got {len(rows)}")
    value = float(rows[0][key])
    if not value > 0:
        raise ValueError(f"{key} is {value}, expected a positive number")
    return value


def parse_ggfw_bench_any(text: str, key: str) -> float:
    """``key`` of the only object in `ggfw bench --json`'s list, whatever its ``parallel``."""
    rows = json.loads(text)
    if len(rows) != 1:
        raise ValueError(f"expected one object, got {len(rows)}")
    return parse_ggfw_bench(text, key, rows[0]["parallel"])


def _first_byte(outcome: Outcome) -> float:
    if outcome.first_byte is None:
        raise ValueError("the process wrote nothing to stdout, so it has no first token")
    return outcome.first_byte


def _peak_memory(outcome: Outcome) -> float:
    return float(outcome.peak_rss)


# ---------------------------------------------------------------------------------------------- measures

_DECODE = Measure(
    "decode",
    "decode {new} tokens at depth {depth}",
    "tok/s",
    True,
    lambda build, task, fa: _llama_bench(build, task, fa, 0, task.lengths.new, task.lengths.depth),
    lambda command, task: _ggfw_bench(
        command, task, max(1, task.lengths.depth), task.lengths.new, [], task.repeat
    ),
    lambda out: parse_llama_bench(out.stdout),
    lambda out: parse_ggfw_bench(out.stdout, "decode_tokens_per_second"),
)

MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(
            "prompt",
            "prompt {prompt} tokens",
            "tok/s",
            True,
            lambda build, task, fa: _llama_bench(build, task, fa, task.lengths.prompt, 0, 0),
            lambda command, task: _ggfw_bench(command, task, task.lengths.prompt, 1, [], task.repeat),
            lambda out: parse_llama_bench(out.stdout),
            lambda out: parse_ggfw_bench(out.stdout, "prompt_tokens_per_second"),
        ),
        _DECODE,
        Measure(
            "parallel",
            "decode {parallel} sequences, {parallel_prompt}+{parallel_new}",
            "tok/s",
            True,
            lambda build, task, fa: _llama_batched(
                build,
                task,
                fa,
                task.lengths.parallel_prompt,
                task.lengths.parallel_new,
                task.lengths.parallel,
                # llama.cpp rounds each sequence's share up to 256 cells
                task.lengths.parallel
                * -(-(task.lengths.parallel_prompt + task.lengths.parallel_new) // 256)
                * 256,
            ),
            lambda command, task: _ggfw_bench(
                command,
                task,
                task.lengths.parallel_prompt,
                task.lengths.parallel_new,
                ["--parallel", str(task.lengths.parallel)],
                task.repeat,
            ),
            lambda out: parse_batched_bench(out.stdout),
            lambda out: parse_ggfw_bench_any(out.stdout, "decode_tokens_per_second"),
        ),
        # The same commands as for decode; what differs is what runs beside them.
        replace(_DECODE, name="busy", title="decode {new} tokens beside a busy process", beside=True),
        Measure(
            "start",
            "start to first token, context {ctx}",
            "s",
            False,
            _llama_start,
            lambda command, task: [
                *command,
                *["run", str(task.model), START_PROMPT, "--max-tokens", "1", "--temp", "0"],
                *["--ctx", str(task.lengths.ctx), *_ggfw_options(task)],
            ],
            _first_byte,
            _first_byte,
        ),
        Measure(
            "memory",
            "peak memory, {prompt}+{new} tokens in context {ctx}",
            "bytes",
            False,
            lambda build, task, fa: _llama_batched(
                build, task, fa, task.lengths.prompt, task.lengths.new, 1, task.lengths.ctx
            ),
            lambda command, task: _ggfw_bench(
                command, task, task.lengths.prompt, task.lengths.new, ["--ctx", str(task.lengths.ctx)], 1
            ),
            _peak_memory,
            _peak_memory,
            timed=False,
        ),
    )
}


def describe(measure: Measure, lengths: Lengths) -> str:
    """The measure's title with its lengths filled in."""
    return measure.title.format(**asdict(lengths))


# ----------------------------------------------------------------------------------------------- running


def child_environment() -> dict[str, str]:
    """This environment without llama.cpp's own variables, which would override the options given here."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("LLAMA_", "GGML_"))}


class Spinner:
    """Context manager: a process that takes all it can get of one core, not pinned, at normal priority.

    ``cpu`` is the CPU time that it has used, once it has been left.
    """

    cpu = 0.0

    def __enter__(self) -> Spinner:
        self._child = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
        time.sleep(0.2)  # the interpreter starts
        return self

    def __exit__(self, *error: object) -> None:
        self._child.kill()
        _, status, usage = os.wait4(self._child.pid, 0)
        self._child.returncode = os.waitstatus_to_exitcode(status)
        self.cpu = usage.ru_utime + usage.ru_stime


def run_process(argv: list[str], timeout: float = RUN_TIMEOUT_SECONDS, beside: bool = False) -> Outcome:
    """Run ``argv`` with stdin empty and stdout piped, ``beside`` a `Spinner` where asked for; see `Outcome`.

    The spinner's CPU time does not count as that of others.

    Raises `PeersError` with the end of stderr when it cannot be started, fails or exceeds ``timeout``
    seconds (it is killed then).
    """
    with tempfile.TemporaryFile() as errors, contextlib.ExitStack() as stack:
        clock, spinner = CpuClock(), stack.enter_context(Spinner()) if beside else None
        start = time.perf_counter()
        try:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=child_environment()
            )
        except OSError as error:
            raise PeersError(
                f"{argv[0]} could not be started ({error}): check that it is installed"
            ) from error
        assert child.stdout is not None
        killer = threading.Timer(timeout, os.kill, (child.pid, signal.SIGKILL))
        killer.start()
        try:
            pipe, pieces, first_byte = child.stdout.fileno(), [], None
            while piece := os.read(pipe, 1 << 16):
                if first_byte is None:
                    first_byte = time.perf_counter() - start
                pieces.append(piece)
            _, status, usage = os.wait4(child.pid, 0)
            wall = time.perf_counter() - start
        except BaseException:
            child.kill()  # interrupted: a benchmark that nobody waits for must not go on
            child.wait()
            raise
        finally:
            killer.cancel()
            child.stdout.close()
        child.returncode = os.waitstatus_to_exitcode(status)  # reaped above: Popen must not wait again
        cpu = usage.ru_utime + usage.ru_stime
        stack.close()
        foreign = clock.foreign_share(cpu + (spinner.cpu if spinner else 0.0))
        if child.returncode != 0:
            errors.seek(0)
            tail = "\n".join(errors.read().decode(errors="replace").strip().splitlines()[-8:])
            how = f"exit code {child.returncode}" if child.returncode > 0 else f"signal {-child.returncode}"
            raise PeersError(f"{' '.join(argv)} failed ({how}) after {wall:.1f} s:\n{tail}")
    stdout = b"".join(pieces).decode(errors="replace")
    return Outcome(stdout, first_byte, wall, cpu, usage.ru_maxrss * 1024, foreign)


def take_sample(argv: list[str], read: Callable[[Outcome], float], beside: bool = False) -> Sample:
    """Run ``argv`` once (`run_process`) and read its value; unreadable output is a `PeersError` that shows it."""
    outcome = run_process(argv, beside=beside)
    try:
        value = read(outcome)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        shown = outcome.stdout.strip()[-300:] or "(nothing)"
        raise PeersError(f"{' '.join(argv)} printed what cannot be read ({error}): {shown}") from error
    return Sample(value, outcome.wall, outcome.cpu, outcome.peak_rss, outcome.foreign)


def is_disturbed(foreign_cpu: float) -> bool:
    """Whether others used so much of the CPUs during a run that its value is not to be trusted."""
    return foreign_cpu > DISTURBED_SHARE


def choose_flash_attention(
    measure: Measure, build: Build, task: Task, rounds: int = 2, extra: int = 2
) -> dict[str, object]:
    """llama.cpp's better ``-fa`` for this measure: both settings in turn, the best value of each.

    ``rounds`` rounds, and up to ``extra`` more until each setting has two undisturbed values; disturbed
    values count only when a setting has no other. The best, not the median, because disturbance only ever
    makes a run worse. Returns ``chosen`` (0 or 1) and the values and others' shares seen for ``off``, ``on``.
    """
    seen: dict[int, list[Sample]] = {0: [], 1: []}

    def calm(fa: int) -> list[Sample]:
        return [sample for sample in seen[fa] if not (measure.timed and is_disturbed(sample.foreign_cpu))]

    for done in range(rounds + extra):
        if done >= rounds and min(len(calm(0)), len(calm(1))) >= 2:
            break
        for fa in (0, 1):
            seen[fa].append(take_sample(measure.llama(build, task, fa), measure.read_llama, measure.beside))
    best = max if measure.higher_is_better else min
    values = {fa: best(sample.value for sample in calm(fa) or seen[fa]) for fa in (0, 1)}
    return {
        "chosen": best((0, 1), key=lambda fa: values[fa]),
        "off": [[sample.value, sample.foreign_cpu] for sample in seen[0]],
        "on": [[sample.value, sample.foreign_cpu] for sample in seen[1]],
    }

#!/usr/bin/env python3
"""Soak test: a server under many clients, good and bad ones, for a long time.

    python bench/soak.py [MODEL] --minutes 30 --clients 32 [--faults]

Starts ``ggfw serve`` on a small cache with a short queue, lets the clients of ``soak_clients.py`` loose on it, and
watches it from outside: memory, threads, open files, ``/metrics``. After warm-up (the prefix cache is filled, every
slot has been used to its end) memory must stay as it is. When the clients are gone the server must be idle and empty,
answer a fixed question as before, and end in good order. The report names all that did not hold.

With ``--faults`` there is a second model, to which harm is done at random all the time (``soak_faults.py``): only what
a fault explains may fail, and when that model has been unloaded at the end, memory is what it was before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers import ROOT, find_ggfw, find_models, model_folders
from peers_build import PeersError
from peers_run import child_environment
from server_load import free_port
from soak_clients import Outcome, Visitor
from soak_faults import Faults, visit_victim

#: Growth of resident memory after warm-up that counts as none, in MiB per hour of a fitted line and in all.
MAX_SLOPE, MAX_GROWTH = 32.0, 16.0
#: MiB that may be left when a model that was loaded dozens of times has been unloaded.
MAX_LEFT = (
    112.0  # the other model's compiled grammars, 64 MiB at most, and what is allocated once come on top
)
#: Clients of the model to which harm is done.
VICTIMS = 3
#: Seconds after the last client within which a server must be idle.
IDLE = 60.0
#: What a log of a healthy server does not have.
BAD_LOG = re.compile(r"Traceback|Exception|never (?:retrieved|awaited)|Segmentation|request_failed|\bERROR\b")
GAUGES = {
    "running": "ggfw_requests_running",
    "waiting": "ggfw_requests_waiting",
    "pages_in_use": "ggfw_kv_cache_usage_ratio",
    "kept_bytes": "ggfw_prefix_cache_bytes",
}


@dataclass(frozen=True)
class Sample:
    """The server at one moment.

    Args:
        t: seconds since the clients began.
        rss: resident memory in bytes; threads, files: of its process.
        running, waiting: requests.
        pages_in_use: share of the cache's pages that requests hold.
        kept_bytes: what the prefix cache keeps.
    """

    t: float
    rss: int
    threads: int
    files: int
    running: int
    waiting: int
    pages_in_use: float
    kept_bytes: int


@dataclass
class Watch:
    """Samples of a server, and what its clients saw."""

    pid: int
    visitor: Visitor
    samples: list[Sample] = field(default_factory=list)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    async def sample(self) -> Sample:
        """Look at it now."""
        status, text = await self.visitor.exchange("GET", "/metrics", None)
        if status != 200:
            raise PeersError(f"/metrics answered {status}: {text[:200]}")
        found = {}
        for key, name in GAUGES.items():
            found[key] = sum(float(v) for v in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))
        process = Path(f"/proc/{self.pid}")
        lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        one = Sample(
            t=round(time.monotonic() - self.started, 1),
            rss=int(lines["VmRSS"].split()[0]) << 10,
            threads=int(lines["Threads"]),
            files=len(os.listdir(process / "fd")),
            running=int(found["running"]),
            waiting=int(found["waiting"]),
            pages_in_use=found["pages_in_use"],
            kept_bytes=int(found["kept_bytes"]),
        )
        self.samples.append(one)
        return one

    def note(self, outcome: Outcome) -> None:
        """Count what a client saw."""
        self.outcomes[outcome.act, "left" if outcome.left else str(outcome.status)] += 1
        if outcome.fault and len(self.faults) < 50:
            self.faults.append(f"{outcome.act}: {outcome.fault}")


def slope(samples: Sequence[Sample]) -> float:
    """Growth of resident memory in MiB per hour: the line that fits best (least squares)."""
    if len(samples) < 3:
        return 0.0
    fit = statistics.linear_regression([s.t for s in samples], [s.rss for s in samples])
    return fit.slope * 3600 / 2**20


def growth(samples: Sequence[Sample]) -> float:
    """MiB between the medians of the first and the last fifth of the samples."""
    n = max(1, len(samples) // 5)
    first, last = (statistics.median(s.rss for s in part) for part in (samples[:n], samples[-n:]))
    return (last - first) / 2**20


async def visit(watch: Watch, visitor: Visitor, until: float) -> None:
    """One client after another at this place, until the time is over."""
    acts = visitor.acts()
    weights = [weight for weight, _ in acts]
    while time.monotonic() < until:
        (act,) = visitor.rng.choices([act for _, act in acts], weights)
        try:
            outcome = await act()
        except (asyncio.TimeoutError, OSError, EOFError) as error:
            outcome = Outcome(act.__name__, 0, trouble=f"{type(error).__name__}: {error}")
        watch.note(outcome)
        if outcome.status == 429:
            await asyncio.sleep(visitor.rng.random())


async def warm_up(watch: Watch, args: argparse.Namespace) -> None:
    """Use every slot to its end and fill the prefix cache: what is allocated lazily is there afterwards."""
    visitor = watch.visitor
    kept = -1
    for n in range(50):
        bodies = []
        for _ in range(args.parallel):
            new = 8 if n else args.ctx // 8  # in the first round, all of them fill their slots at once
            ids = visitor.ids(args.ctx - new)
            bodies.append(json.dumps({"prompt": ids, "max_tokens": new, "ignore_eos": True}).encode())
        answers = await asyncio.gather(*(visitor.exchange("POST", "/v1/completions", b) for b in bodies))
        for status, text in answers:
            if status != 200:
                raise PeersError(f"warm-up was answered {status}: {text[:200]}")
        now = (await watch.sample()).kept_bytes
        if now <= kept:
            break
        kept = now


async def fixed_answer(visitor: Visitor) -> str:
    """The answer to a question that is always the same, without help of the prefix cache."""
    body = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0, "cache_prompt": False}
    status, text = await visitor.exchange(
        "POST", "/completion", json.dumps({**body, "n_predict": 40}).encode()
    )
    if status != 200:
        raise PeersError(f"the fixed question was answered {status}: {text[:200]}")
    return str(json.loads(text)["content"])


async def without_victim(watch: Watch, faults: Faults, seconds: float = 5.0) -> int:
    """Unload the victim and give the process's size."""
    await faults.unload()
    await asyncio.sleep(seconds)
    return (await watch.sample()).rss


async def soak(
    args: argparse.Namespace, pid: int, port: int, victim: tuple[Path, Path, Path] | None = None
) -> tuple[Watch, dict[str, Any]]:
    """Everything between the server's start and its end.

    Args:
        args: the command line.
        pid, port: of the server.
        victim: a model's file, the copy that is served, and the folder of the server's caches.
    """
    visitor = Visitor("127.0.0.1", port, args.ctx, args.seed)
    status, text = await visitor.exchange("GET", "/v1/models", None)
    names = [model["id"] for model in json.loads(text)["data"]]
    Visitor.model = names[0]
    watch = Watch(pid, visitor)
    before = await fixed_answer(visitor)
    await warm_up(watch, args)
    warmed = watch.samples[-1]
    say(f"warm: {warmed.rss >> 20} MiB, prefix cache {warmed.kept_bytes >> 20} MiB")
    faults = None
    if victim is not None:
        faults = Faults(pid, visitor, *victim, next(n for n in names if "victim" in n.lower()), args.seed)
        for _ in range(3):
            await visitor.exchange(
                "POST",
                "/v1/completions",
                json.dumps({"model": faults.name, "prompt": "a", "max_tokens": 4}).encode(),
            )
            empty = await without_victim(watch, faults)
        say(f"without the second model: {empty >> 20} MiB")

    watch.samples.clear()
    watch.started = time.monotonic()
    until = watch.started + args.minutes * 60
    visitors = [Visitor("127.0.0.1", port, args.ctx, args.seed * 1000 + n) for n in range(args.clients)]
    clients = [asyncio.create_task(visit(watch, one, until)) for one in visitors]
    if faults is not None:
        clients.append(asyncio.create_task(faults.torment(until)))
        for n in range(VICTIMS):
            asking = Visitor("127.0.0.1", port, args.ctx, args.seed * 7000 + n)
            clients.append(asyncio.create_task(visit_victim(faults, asking, until, watch.note)))
    told = 0.0
    while time.monotonic() < until:
        await asyncio.sleep(args.every)
        now = await watch.sample()
        if now.t - told >= 60:
            told = now.t
            n = sum(watch.outcomes.values())
            say(
                f"{now.t:5.0f} s: {n} visits, {len(watch.faults)} faults, {now.rss >> 20} MiB, "
                f"{now.running} running, {now.waiting} waiting, {now.files} files, {now.threads} threads"
            )
    # Whoever is being served may finish; a client that does not is stuck.
    _, stuck = await asyncio.wait(clients, timeout=args.finish)
    for task in stuck:
        task.cancel()
    outcome: dict[str, Any] = {"stuck_clients": len(stuck)}
    for task in clients:
        if not task.cancelled() and task.done() and task.exception() is not None:
            watch.faults.append(f"a client broke: {task.exception()!r}")
    end = time.monotonic() + IDLE
    while True:
        last = await watch.sample()
        if not (last.running or last.waiting or last.pages_in_use) or time.monotonic() > end:
            break
        await asyncio.sleep(0.25)
    if faults is not None:
        for seen in faults.outcomes:
            watch.note(seen)
        last = await watch.sample()
        left = (await without_victim(watch, faults) - empty) / 2**20
        outcome |= {"faults_done": dict(faults.done), "left_mib": left, "victim": faults.name}
    status, text = await visitor.exchange("GET", "/slots", None)
    busy = sum(slot["is_processing"] for slot in json.loads(text)) if status == 200 else -1
    after = await fixed_answer(visitor)
    outcome |= {
        "busy_slots": busy,
        "same_answer": before == after,
        "warm_rss": warmed.rss,
        "last": asdict(last),
    }
    outcome |= {"warm_files": warmed.files, "warm_threads": warmed.threads}
    outcome |= {"warm_kept": warmed.kept_bytes, "budget": args.prefix_cache_mb << 20}
    return watch, outcome


def judge(watch: Watch, found: dict[str, Any], minutes: float, log: str, code: int | None) -> dict[str, Any]:
    """The report: figures, and by name whether each demand holds."""
    samples, last = watch.samples, found["last"]
    # The first fifth belongs to warm-up, too: clients allocate what prompts of token ids did not.
    steady = samples[len(samples) // 5 :]
    by_status: Counter[str] = Counter()
    for (_, status), n in watch.outcomes.items():
        by_status[status] += n
    victim = found.get("victim")
    bad_lines = [
        line for line in log.splitlines() if BAD_LOG.search(line) and not (victim and explained(line, victim))
    ]
    rate, grown = slope(steady), growth(steady)
    # A line through a few minutes says nothing about an hour: then only what was added counts.
    flat = grown <= MAX_GROWTH and (minutes < 10 or rate <= MAX_SLOPE)
    holds = {
        f"memory flat after warm-up (at most +{MAX_GROWTH:g} MiB, from 10 minutes on {MAX_SLOPE:g} MiB/h)": flat
    }
    if victim:  # which comes and goes
        holds = {
            f"memory as before when the second model is gone (at most +{MAX_LEFT:g} MiB)": found["left_mib"]
            <= MAX_LEFT,
            f"memory flat after warm-up (at most +{MAX_GROWTH:g} MiB, from 5 minutes on)": grown <= MAX_GROWTH
            or minutes < 5,
        }
    return {
        "minutes": minutes,
        "faults_injected": found.get("faults_done"),
        "left_mib": found.get("left_mib"),
        "visits": sum(watch.outcomes.values()),
        "by_status": dict(sorted(by_status.items())),
        "by_act": {f"{act}: {status}": n for (act, status), n in sorted(watch.outcomes.items())},
        "rss_mib": {
            "warm": found["warm_rss"] / 2**20,
            "first": samples[0].rss / 2**20,
            "highest": max(s.rss for s in samples) / 2**20,
            "last": last["rss"] / 2**20,
            "growth": grown,
            "per_hour": rate,
        },
        "prefix_cache_mib": last["kept_bytes"] / 2**20,
        "most": {
            key: max(getattr(s, key) for s in samples)
            for key in ("running", "waiting", "pages_in_use", "files", "threads")
        },
        "at_the_end": last,
        "holds": {
            **holds,
            "the prefix cache was full before": found["warm_kept"] >= 0.9 * found["budget"],
            "no request runs or waits when idle": last["running"] == 0 and last["waiting"] == 0,
            "no slot is stuck": found["busy_slots"] == 0 and found["stuck_clients"] == 0,
            "no page is in use when idle": last["pages_in_use"] == 0,
            "no 5xx, and every answer as it has to be": not watch.faults,
            "open files and threads as after warm-up": last["files"] <= found["warm_files"] + 4
            and last["threads"] <= found["warm_threads"] + 40,
            "the fixed question has the same answer": found["same_answer"],
            "nothing bad in the server's log": not bad_lines,
            "the server ends in good order": code == 0,
        },
        "faults": watch.faults,
        "bad_log_lines": bad_lines[:30],
        "samples": [asdict(s) for s in samples],
    }


def explained(line: str, victim: str) -> bool:
    """Whether a line of the log tells of an error of the model to which harm was done, or of its file."""
    try:
        fields = json.loads(line)
    except ValueError:
        return False
    return isinstance(fields, dict) and (
        fields.get("model") == victim or f"{victim}.gguf" in str(fields.get("error"))
    )


def table(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    rss, most, last = report["rss_mib"], report["most"], report["at_the_end"]
    lines = [
        "| figure | value |",
        "|---|---|",
        f"| minutes, visits | {report['minutes']:g}, {report['visits']} |",
        "| responses by status | " + ", ".join(f"{k}: {n}" for k, n in report["by_status"].items()) + " |",
        f"| resident memory, MiB: warm, highest, last | {rss['warm']:.0f}, {rss['highest']:.0f}, {rss['last']:.0f} |",
        f"| growth after warm-up | {rss['growth']:+.1f} MiB; fitted line {rss['per_hour']:+.1f} MiB/h |",
        f"| prefix cache at the end | {report['prefix_cache_mib']:.0f} MiB |",
        f"| most running, waiting | {most['running']}, {most['waiting']} |",
        f"| pages in use, most and at the end | {most['pages_in_use']:.0%}, {last['pages_in_use']:.0%} |",
        f"| open files: most, at the end | {most['files']}, {last['files']} |",
        f"| threads: most, at the end | {most['threads']}, {last['threads']} |",
    ]
    if report.get("faults_injected"):
        done = ", ".join(f"{name} {n}" for name, n in sorted(report["faults_injected"].items()))
        lines.append(f"| faults | {done} |")
        lines.append(f"| MiB left when the second model was unloaded | {report['left_mib']:+.1f} |")
    lines += [f"| {what} | {'holds' if good else 'FAILS'} |" for what, good in report["holds"].items()]
    return "\n".join(lines)


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Start the server, soak it, end it.

    Raises:
        PeersError: it did not become ready, or answered what no soaked server may answer.
    """
    found = [args.model] if args.model else find_models(model_folders(dict(os.environ)))[:1]
    if not found:
        raise PeersError("no model was found: name a file, or set GGFW_TEST_MODELS to its folder")
    port = free_port()
    size = ["--ctx", str(args.ctx), "--parallel", str(args.parallel), "--max-queue", str(args.max_queue)]
    size += ["--prefix-cache-mb", str(args.prefix_cache_mb), "--threads", str(args.threads)]
    with tempfile.TemporaryDirectory(prefix="ggfw-soak-") as folder:
        return _run(args, found[0], port, size, Path(folder))


def _run(args: argparse.Namespace, model: Path, port: int, size: list[str], folder: Path) -> dict[str, Any]:
    victim = None
    environment = child_environment()
    if args.faults:
        original = args.victim or model
        victim = (original, folder / "victim.gguf", folder / "cache")
        shutil.copyfile(original, victim[1])
        environment["XDG_CACHE_HOME"] = str(victim[2])
    command = [
        *find_ggfw(args.ggfw),
        "serve",
        str(model),
        *([str(victim[1])] if victim else []),
        "--port",
        str(port),
        "--log-format",
        "json",
        *size,
    ]
    with tempfile.TemporaryFile() as log:
        # Through a pipe, so that a limit of the server's files is not one of its log.
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        assert child.stdout is not None
        copying = threading.Thread(target=shutil.copyfileobj, args=(child.stdout, log, 1), daemon=True)
        copying.start()
        try:
            say(f"{model.name}: {args.clients} clients for {args.minutes:g} minutes, server {child.pid}")
            visitor = Visitor("127.0.0.1", port, args.ctx, 0)
            until = time.monotonic() + 120
            while True:
                try:
                    if asyncio.run(visitor.exchange("GET", "/health", None))[0] == 200:
                        break
                except OSError:
                    pass
                if child.poll() is not None or time.monotonic() > until:
                    raise PeersError(f"the server is not ready: {text_of(log)[-2000:]}")
                time.sleep(0.1)
            try:
                watch, outcome = asyncio.run(soak(args, child.pid, port, victim))
            except OSError as error:
                raise PeersError(f"the server is gone ({error}): {text_of(log)[-3000:]}") from None
            child.send_signal(signal.SIGTERM)
            try:
                code: int | None = child.wait(60)
            except subprocess.TimeoutExpired:
                code = None
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            copying.join(10)
        text = text_of(log)
    if args.log:
        args.log.write_text(text)
    return {
        "model": model.name,
        "clients": args.clients,
        **judge(watch, outcome, args.minutes, text, code),
    }


def text_of(file: Any) -> str:
    """All of a log."""
    file.seek(0)
    return str(file.read().decode(errors="replace"))


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="soak.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("model", nargs="?", type=Path, help="GGUF file; default: SmolLM2-135M-Instruct Q4_1")
    add("--minutes", type=float, default=30.0, help="how long the clients come (default 30)")
    add("--clients", type=int, default=32, help="at once (default 32)")
    add("--parallel", type=int, default=8, help="requests that run at once (default 8)")
    add("--max-queue", type=int, default=24, help="requests that may wait; more get 429 (default 24)")
    add("--ctx", type=int, default=1024, help="positions per request (default 1024)")
    add("--prefix-cache-mb", type=int, default=64, help="budget of the prefix cache (default 64)")
    add("--threads", type=int, default=os.cpu_count() or 1, help="of the server")
    add("--every", type=float, default=3.0, metavar="SECONDS", help="between two samples (default 3)")
    add("--finish", type=float, default=300.0, metavar="SECONDS", help="that the last answers may take")
    add("--seed", type=int, default=1, help="of everything the clients do")
    add("--faults", action="store_true", help="do harm to a second model and the process all the time")
    add("--victim", type=Path, metavar="FILE", help="the second model (default: a copy of the first)")
    add("--ggfw", metavar="COMMAND", help="ggfw's command (default: the one beside this Python)")
    add("--out", type=Path, metavar="FILE", help="the report as JSON (default bench/peers/soak.json)")
    add("--log", type=Path, metavar="FILE", help="keep the server's log")
    add("--json", action="store_true", help="the report as JSON on stdout instead of the table")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Entry point: 0 everything holds, 1 something does not, or the server could not be soaked."""
    args = arguments(argv)
    try:
        report = run(args)
    except PeersError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    out = args.out or ROOT / "soak.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1) if args.json else table(report))
    for fault in report["faults"] + report["bad_log_lines"]:
        say(fault)
    return 0 if all(report["holds"].values()) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that the server is ended, too
    sys.exit(main())

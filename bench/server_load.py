#!/usr/bin/env python3
"""Many requests at once: ggfw's server against llama.cpp's, and how evenly ggfw's engine serves.

    python bench/server_load.py compare MODEL    64 requests of mixed lengths, both servers in turn
    python bench/server_load.py gap MODEL        gaps between tokens while a long prompt is read

``compare`` starts each server anew for every run, on the same file, with the same requests from the same client
(``load_client.py``), the runs alternating. llama.cpp's server gets the number of slots and the ``-fa`` setting with
which it was fastest in a trial. ``--engine`` drives ggfw without HTTP. See bench/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from load_client import HttpClient, Load, mixed_loads, run_load
from load_engine import gap_test, run_engine
from peers import ROOT, find_ggfw, find_models, model_folders, quiet_or_refuse
from peers_build import PeersError, ensure_build, ensure_server
from peers_machine import CpuClock, describe_machine
from peers_run import child_environment

START_TIMEOUT = 120.0
COLUMNS = (
    "wall_s",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "gap_p50_ms",
    "gap_p99_ms",
    "gap_max_ms",
    "new_tokens_per_s",
)


def free_port() -> int:
    """A port of this machine that nobody listens on just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def served(command: Sequence[str], port: int, route: str) -> Iterator[HttpClient]:
    """Start a server, wait until it answers ``/health`` with 200, and end it afterwards.

    Raises:
        PeersError: it ends or is not ready in time; the end of its stderr is in the message.
    """
    client = HttpClient("127.0.0.1", port, route)
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=child_environment()
        )
        try:
            until = time.monotonic() + START_TIMEOUT
            while asyncio.run(client.status("/health")) != 200:
                if child.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    tail = "\n".join(log.read().decode(errors="replace").splitlines()[-8:])
                    raise PeersError(f"{' '.join(command)} is not ready after {START_TIMEOUT:g} s:\n{tail}")
                time.sleep(0.05)
            yield client
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def llama_command(
    program: Path, model: Path, port: int, *, slots: int, context: int, threads: int, fa: str
) -> list[str]:
    """llama.cpp's server; each slot has ``context`` positions, no memory is spent on prompts seen before."""
    place = ["--host", "127.0.0.1", "--port", str(port)]
    size = ["-c", str(slots * context), "-np", str(slots), "-no-kvu", "--cache-ram", "0"]
    return [str(program), "-m", str(model), *place, *size, "-t", str(threads), "-fa", fa, "--no-webui"]


def ggfw_command(
    ggfw: Sequence[str], model: Path, port: int, *, parallel: int, context: int, threads: int
) -> list[str]:
    """ggfw's server."""
    place = ["--host", "127.0.0.1", "--port", str(port), "--log-format", "none"]
    size = ["--ctx", str(context), "--parallel", str(parallel), "--max-queue", "1024"]
    return [*ggfw, "serve", str(model), *place, *size, "--threads", str(threads)]


def measure_http(
    command: list[str], port: int, route: str, loads: list[Load], clients: int
) -> dict[str, Any]:
    """One run over HTTP, after one short request to warm up."""
    with served(command, port, route) as client:

        async def run() -> dict[str, float]:
            await client.send(Load(loads[0].prompt[:16], 4))
            return await run_load(loads, clients, client.send)

        clock = CpuClock()
        result: dict[str, Any] = asyncio.run(run())
        result["busy_cpu"] = clock.foreign_share()
    return result


class Comparison:
    """Both sides on one model.

    Args:
        args: the command line.
        model: the file.
    """

    def __init__(self, args: argparse.Namespace, model: Path) -> None:
        self.args, self.model = args, model
        self.machine = describe_machine()
        self.threads = args.threads or self.machine.physical_cores
        self.loads = mixed_loads(args.requests, vocabulary=args.vocabulary, seed=args.seed)
        self.context = max(len(load.prompt) + load.new for load in self.loads) + args.margin
        self.ggfw = find_ggfw(args.ggfw)
        self.build = ensure_build(ROOT, args.variant, self.machine)
        self.server = ensure_server(self.build, ROOT, args.jobs)

    def llama(self, loads: list[Load], clients: int, slots: int, fa: str) -> dict[str, Any]:
        """One run of llama.cpp's server."""
        port = free_port()
        command = llama_command(
            self.server,
            self.model,
            port,
            slots=slots,
            context=self.context,
            threads=self.threads,
            fa=fa,
        )
        return measure_http(command, port, self.args.route, loads, clients)

    def ours(self, loads: list[Load], clients: int) -> dict[str, Any]:
        """One run of ggfw's server, or of its engine."""
        parallel = self.args.parallel or clients
        if self.args.engine:
            return run_engine(
                self.model,
                loads,
                clients,
                parallel=parallel,
                context=self.context,
                threads=self.threads,
            )
        port = free_port()
        command = ggfw_command(
            self.ggfw, self.model, port, parallel=parallel, context=self.context, threads=self.threads
        )
        return measure_http(command, port, self.args.route, loads, clients)

    def best_llama(self, clients: int) -> dict[str, Any]:
        """The fastest of llama.cpp's settings in a trial with the first requests."""
        trial = self.loads[: self.args.trial_requests]
        tried = []
        for slots in sorted({min(int(n), clients) for n in self.args.slots.split(",")}):
            for fa in self.args.fa.split(","):
                found = self.llama(trial, min(clients, len(trial)), slots, fa)
                tried.append({"slots": slots, "fa": fa, "wall_s": found["wall_s"]})
                print(
                    f"  trial: {slots} slots, -fa {fa}: {found['wall_s']:.1f} s", file=sys.stderr, flush=True
                )
        return {**min(tried, key=lambda row: row["wall_s"]), "tried": tried}

    def run(self, clients: int) -> dict[str, Any]:
        """Alternating runs with ``clients`` clients."""
        print(
            f"{self.model.name}: {len(self.loads)} requests, {clients} clients", file=sys.stderr, flush=True
        )
        setting = self.best_llama(clients)
        pairs = []
        for i in range(self.args.pairs):
            theirs = self.llama(self.loads, clients, setting["slots"], setting["fa"])
            ours = self.ours(self.loads, clients)
            if theirs["new_tokens"] != ours["new_tokens"] or theirs["prompt_tokens"] != ours["prompt_tokens"]:
                raise PeersError(
                    f"the sides did not do the same: {theirs['prompt_tokens']} + {theirs['new_tokens']} and "
                    f"{ours['prompt_tokens']} + {ours['new_tokens']} tokens; check the route with --route"
                )
            pairs.append({"llama_cpp": theirs, "ggfw": ours, "ratio": theirs["wall_s"] / ours["wall_s"]})
            print(
                f"  pair {i + 1}: llama.cpp {theirs['wall_s']:.1f} s, ggfw {ours['wall_s']:.1f} s, "
                f"{pairs[-1]['ratio']:.2f}x",
                file=sys.stderr,
                flush=True,
            )
        ratio = statistics.median(pair["ratio"] for pair in pairs)
        return {"clients": clients, "llama_cpp_setting": setting, "pairs": pairs, "ratio": ratio}


def table(rows: list[dict[str, Any]]) -> str:
    """Medians of both sides by number of clients, as Markdown."""
    lines = [
        "| clients | side | total s | TTFT p50 / p99 ms | gap p50 / p99 / worst ms | new tok/s | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for side in ("llama_cpp", "ggfw"):
            m = {name: statistics.median(pair[side][name] for pair in row["pairs"]) for name in COLUMNS}
            said = row["llama_cpp_setting"]
            name = f"llama.cpp, {said['slots']} slots, -fa {said['fa']}" if side == "llama_cpp" else "ggfw"
            lines.append(
                f"| {row['clients']} | {name} | {m['wall_s']:.1f} | {m['ttft_p50_ms']:.0f} / {m['ttft_p99_ms']:.0f} "
                f"| {m['gap_p50_ms']:.1f} / {m['gap_p99_ms']:.0f} / {m['gap_max_ms']:.0f} "
                f"| {m['new_tokens_per_s']:.0f} | {'' if side == 'llama_cpp' else format(row['ratio'], '.2f') + 'x'} |"
            )
    return "\n".join(lines)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="server_load.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("mode", choices=("compare", "gap"))
    add("model", nargs="?", type=Path, help="GGUF file; default: SmolLM2-135M-Instruct Q4_1")
    add("--clients", default="1,8,32,64", help="requests at once, a list (default 1,8,32,64)")
    add("--requests", type=int, default=64)
    add("--pairs", type=int, default=3, help="pairs of runs per number of clients (default 3)")
    add("--seed", type=int, default=7, help="of lengths and tokens")
    add("--vocabulary", type=int, default=40000, help="random tokens are below this id")
    add("--margin", type=int, default=64, help="positions of context beyond the longest request")
    add("--slots", default="8,16,32,64", help="slots of llama.cpp's server that are tried")
    add("--fa", default="on,off", help="its -fa settings that are tried")
    add("--trial-requests", type=int, default=16, help="requests of each trial (default 16)")
    add("--parallel", type=int, default=0, help="requests ggfw runs at once (default: as many as clients)")
    add("--route", choices=("completions", "chat"), default="completions")
    add("--engine", action="store_true", help="drive ggfw's engine in this process, without HTTP")
    add("--threads", type=int, default=0, help="threads of both sides (default: physical cores)")
    add("--variant", default="best", help="llama.cpp build, as in peers.py")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="compiler processes")
    add("--ggfw", metavar="COMMAND", help="ggfw's command (default: the one beside this Python)")
    add("--prompt-tokens", type=int, default=4000, help="gap: length of the prompt read meanwhile")
    add("--decoding", type=int, default=4, help="gap: requests that decode (default 4)")
    add("--budget", type=float, default=50.0, metavar="MS", help="gap: the scheduler's step budget")
    add("--repeat", type=int, default=3, help="gap: repetitions (default 3)")
    add("--force", action="store_true", help="measure although the machine is busy; the report says so")
    add("--wait", type=float, default=0, metavar="SECONDS", help="wait this long for a quiet machine")
    add("--out", type=Path, metavar="FILE", help="the report as JSON (default bench/peers/server-MODE.json)")
    add("--json", action="store_true", help="the report as JSON on stdout instead of the table")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Entry point: 0 done, 1 failed (one sentence on stderr)."""
    args = arguments(argv)
    try:
        found = [args.model] if args.model else find_models(model_folders(dict(os.environ)))[:1]
        if not found:
            raise PeersError("no model was found: name a file, or set GGFW_TEST_MODELS to its folder")
        model = found[0]
        forced = quiet_or_refuse(args.force, args.wait)
        report: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "model": model.name,
            "machine": describe_machine().as_dict(),
            "forced": forced,
        }
        if args.mode == "gap":
            report["gap"] = gap_test(
                model,
                n_prompt=args.prompt_tokens,
                n_decoding=args.decoding,
                repeat=args.repeat,
                budget_ms=args.budget,
                threads=args.threads or describe_machine().physical_cores,
            )
            text = json.dumps(report["gap"], indent=1)
        else:
            comparison = Comparison(args, model)
            report["llama_cpp"] = comparison.build.as_dict()
            report["ggfw"] = "engine" if args.engine else "server"
            report["rows"] = []
            for clients in args.clients.split(","):
                report["rows"].append(comparison.run(int(clients)))
            text = table(report["rows"])
    except (PeersError, RuntimeError) as error:
        print(f"server_load: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    out = args.out or ROOT / f"server-{args.mode}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1) if args.json else text)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that servers are ended too
    sys.exit(main())

#!/usr/bin/env python3
"""What HTTP costs: the same streamed requests through ggfw's server and through its engine alone, beside llama.cpp's.

    python bench/http_load.py [MODEL]            1, 8 and 32 clients
    python bench/http_load.py --profile FILE     a profile of the server under the most clients (needs py-spy)

Each wave starts as many requests at once as there are clients, all of the same length, with random prompts that share
nothing. The rounds alternate: the engine in a process of its own (requests submitted, results awaited: nothing is
streamed), ggfw's server, llama.cpp's server; each is started anew, sees one small wave to warm up and then the counted
ones. ``ggfw bench --parallel`` is run as well; it measures with all sequences running to the very end. All sides get
the same prompts, temperature 0 and no speculation.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from load_client import HttpClient, Load, Timing, body_of, percentile
from peers import ROOT, find_ggfw, find_models, model_folders, quiet_or_refuse
from peers_build import PeersError, ensure_build, ensure_server
from peers_machine import describe_machine
from peers_run import child_environment
from server_load import free_port, ggfw_command, llama_command, served

#: Share of the engine's tokens per second that the server must reach.
WANTED = 0.95


def waves(clients: int, n: int, *, prompt: int, new: int, vocabulary: int, seed: int) -> list[list[Load]]:
    """``n`` waves of equal requests; the same for the same seed."""
    rng = random.Random(seed)
    return [
        [Load(tuple(rng.randrange(1000, vocabulary) for _ in range(prompt)), new) for _ in range(clients)]
        for _ in range(n)
    ]


def figures(timings: Sequence[Timing], wall: float, cpu: float) -> dict[str, float]:
    """Tokens per second of one wave, processor time per thousand tokens, and percentiles in ms.

    Args:
        timings: of the requests.
        wall: seconds from the first request to the last token.
        cpu: seconds that the process took on all processors meanwhile.
    """
    gaps = [gap for timing in timings for gap in timing.gaps]
    firsts = [timing.first for timing in timings]
    n_new = sum(timing.new_tokens for timing in timings)
    return {
        "wall_s": wall,
        "tokens_per_s": n_new / wall,
        "cpu_s_per_1000": 1e3 * cpu / n_new,
        "ttft_p50_ms": 1e3 * percentile(firsts, 0.5),
        "ttft_p99_ms": 1e3 * percentile(firsts, 0.99),
        "gap_p50_ms": 1e3 * percentile(gaps, 0.5),
        "gap_p99_ms": 1e3 * percentile(gaps, 0.99),
        "gap_max_ms": 1e3 * max(gaps, default=0.0),
    }


# -- the engine, in a child ----------------------------------------------------------------------------------------


def engine_child(args: argparse.Namespace) -> int:
    """Print the figures of the waves without HTTP, as JSON."""
    import ggfw

    clients = int(args.clients)
    with ggfw.load(
        args.model,
        threads=args.threads,
        ctx=args.prompt + args.new + args.margin,
        n_parallel=clients,
        spec="off",
    ) as model:

        def wave(loads: Sequence[Load]) -> dict[str, float]:
            requests = [
                model.request(list(load.prompt), max_tokens=load.new, ignore_eos=True, temperature=0.0)
                for load in loads
            ]
            start, cpu = time.perf_counter(), time.process_time()
            results = [handle.result() for handle in [model.submit(request) for request in requests]]
            wall, cpu = time.perf_counter() - start, time.process_time() - cpu
            timings = []
            for result in results:
                first = result.timings.ttft * 1e-3
                timings.append(Timing(0.0, [first], wall, result.usage.prompt_tokens, len(result.token_ids)))
            return figures(timings, wall, cpu)

        everything = plan_of(args, clients)
        wave([Load(load.prompt[:16], 4) for load in everything[0]])
        print(json.dumps([wave(loads) for loads in everything]))
    return 0


def plan_of(args: argparse.Namespace, clients: int) -> list[list[Load]]:
    """The waves of one round."""
    return waves(
        clients,
        args.waves,
        prompt=args.prompt,
        new=args.new,
        vocabulary=args.vocabulary,
        seed=args.seed + clients,
    )


# -- servers ---------------------------------------------------------------------------------------------------------


class Streamer(asyncio.Protocol):
    """Reads a stream as cheaply as Python can, for it runs beside the server: when text came, and the usage.

    Args:
        request: bytes to send.
    """

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.timing = Timing(0.0)
        self.head = self.tail = self.part = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self.timing.sent = time.perf_counter()
        transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Note the time of every piece of text; pieces that came together have no gap between them."""
        now = time.perf_counter()
        if len(self.head) < 64:
            self.head += data[:64]
        lines, newline, self.part = (self.part + data).rpartition(b"\n")
        n = 0
        for name in (b'"text":"', b'"content":"'):
            n += lines.count(name) - lines.count(name + b'"')
        self.timing.arrivals += [now] * n
        self.tail = (self.tail + lines + newline)[-2000:]

    def connection_lost(self, error: Exception | None) -> None:
        """The stream is over."""
        self.timing.done = time.perf_counter()
        if not self.ended.done():
            self.ended.set_result(None)

    def finish(self, load: Load) -> Timing:
        """Check the stream.

        Raises:
            RuntimeError: it was refused, or is not what was asked for.
        """
        if b" 200 " not in self.head[:40] or b"data: [DONE]" not in self.tail:
            raise RuntimeError(f"a stream failed: {self.head!r} … {self.tail[-300:]!r}")
        _, _, usage = self.tail.rpartition(b'"completion_tokens":')
        self.timing.new_tokens = int(usage.split(b",")[0].split(b"}")[0])
        if self.timing.new_tokens != load.new:
            raise RuntimeError(f"{self.timing.new_tokens} tokens came where {load.new} were asked for")
        return self.timing


async def http_wave(client: HttpClient, loads: Sequence[Load], pid: int) -> dict[str, float]:
    """One wave over HTTP, each request over a connection of its own; ``pid`` is the server's."""
    loop = asyncio.get_running_loop()
    prepared = []
    for load in loads:
        path, body = body_of(load, client.route)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {client.host}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        prepared.append(head.encode() + data)
    start, cpu = time.perf_counter(), processor_time(pid)
    made = await asyncio.gather(
        *(loop.create_connection(lambda one=one: Streamer(one), client.host, client.port) for one in prepared)
    )
    await asyncio.gather(*(protocol.ended for _, protocol in made))
    timings = [protocol.finish(load) for (_, protocol), load in zip(made, loads, strict=True)]
    return figures(timings, max(timing.done for timing in timings) - start, processor_time(pid) - cpu)


def processor_time(pid: int) -> float:
    """Seconds that all threads of a process have taken so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def measure_server(
    command: list[str], port: int, everything: list[list[Load]], route: str, profile: list[str] | None = None
) -> list[dict[str, float]]:
    """Start a server and send it the waves."""
    with served(command, port, route) as client:

        async def run() -> list[dict[str, float]]:
            pid = server_pid(port)
            await http_wave(client, [Load(load.prompt[:16], 4) for load in everything[0]], pid)
            watcher = subprocess.Popen([*profile, "--pid", str(pid)]) if profile else None
            found = [await http_wave(client, loads, pid) for loads in everything]
            if watcher is not None:
                watcher.send_signal(signal.SIGINT)
                watcher.wait()
            return found

        return asyncio.run(run())


def server_pid(port: int) -> int:
    """The server's process: the youngest that has this port in its command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(port).encode() in words:
            found.append(int(process.name))
    if not found:
        raise PeersError(f"no process serves port {port}")
    return max(found)


# -- all together -----------------------------------------------------------------------------------------------------


class Comparison:
    """All sides on one model."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.machine = describe_machine()
        args.threads = args.threads or self.machine.physical_cores
        self.ggfw = find_ggfw(args.ggfw)
        self.llama = None
        if not args.no_llama:
            self.llama = ensure_server(ensure_build(ROOT, args.variant, self.machine), ROOT, args.jobs)
        self.context = args.prompt + args.new + args.margin

    def engine(self, clients: int) -> list[dict[str, float]]:
        """The waves without HTTP."""
        words = [sys.executable, str(Path(__file__).resolve()), str(self.args.model), "--engine-child"]
        for name in ("prompt", "new", "waves", "vocabulary", "seed", "margin", "threads"):
            words += [f"--{name}", str(getattr(self.args, name))]
        return self.child([*words, "--clients", str(clients)])

    def bench(self, clients: int) -> float:
        """Tokens per second of ``ggfw bench --parallel`` with the same lengths."""
        words = [*self.ggfw, "bench", str(self.args.model), "--parallel", str(clients), "--json"]
        words += ["-p", str(self.args.prompt), "-n", str(self.args.new), "--repeat", str(self.args.waves)]
        (row,) = self.child([*words, "--threads", str(self.args.threads)])
        return statistics.median(s["generated_tokens"] / s["total_ms"] * 1e3 for s in row["samples"])

    @staticmethod
    def child(words: list[str]) -> Any:
        """Run a command and read the JSON that it prints."""
        done = subprocess.run(words, capture_output=True, text=True, env=child_environment())
        if done.returncode:
            raise PeersError(f"{' '.join(words)} failed: {done.stderr[-1500:]}")
        return json.loads(done.stdout)

    def ours(self, clients: int, profile: list[str] | None = None) -> list[dict[str, float]]:
        """The waves through ggfw's server."""
        port = free_port()
        command = ggfw_command(
            self.ggfw,
            self.args.model,
            port,
            parallel=clients,
            context=self.context,
            threads=self.args.threads,
        )
        command += ["--spec", "off"]
        return measure_server(command, port, plan_of(self.args, clients), self.args.route, profile)

    def theirs(self, clients: int) -> list[dict[str, float]]:
        """The waves through llama.cpp's server."""
        assert self.llama is not None
        port = free_port()
        command = llama_command(
            self.llama,
            self.args.model,
            port,
            slots=clients,
            context=self.context,
            threads=self.args.threads,
            fa=self.args.fa,
        )
        return measure_server(command, port, plan_of(self.args, clients), self.args.route)

    def run(self, clients: int) -> dict[str, Any]:
        """Alternating rounds with ``clients`` clients."""
        sides: dict[str, list[dict[str, float]]] = {"engine": [], "ggfw": []}
        if self.llama is not None:
            sides["llama.cpp"] = []
        shares = []
        for n in range(self.args.rounds):
            engine, ours = self.engine(clients), self.ours(clients)
            sides["engine"] += engine
            sides["ggfw"] += ours
            if self.llama is not None:
                sides["llama.cpp"] += self.theirs(clients)
            shares.append(median(ours, "tokens_per_s") / median(engine, "tokens_per_s"))
            print(
                f"{clients} clients, round {n + 1}: engine {median(engine, 'tokens_per_s'):.1f}, "
                f"server {median(ours, 'tokens_per_s'):.1f} tok/s, {shares[-1]:.1%}",
                file=sys.stderr,
                flush=True,
            )
        return {
            "clients": clients,
            "share": statistics.median(shares),
            "shares": shares,
            "bench_tokens_per_s": self.bench(clients),
            "sides": sides,
        }


def median(rows: Sequence[dict[str, float]], name: str) -> float:
    """Over all waves."""
    return statistics.median(row[name] for row in rows)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Medians over all waves, as Markdown."""
    lines = [
        "| clients | side | new tok/s | TTFT p50 / p99 ms | gap p50 / p99 / worst ms | CPU s per 1,000 tokens "
        "| of the engine |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['clients']} | ggfw bench --parallel | {row['bench_tokens_per_s']:.1f} | | | | |"
        )
        for side, found in row["sides"].items():
            m = {name: median(found, name) for name in found[0]}
            gaps = f"{m['gap_p50_ms']:.1f} / {m['gap_p99_ms']:.1f} / {m['gap_max_ms']:.0f}"
            share = f"{row['share']:.1%}" if side == "ggfw" else ""
            lines.append(
                f"| {row['clients']} | {side} | {m['tokens_per_s']:.1f} "
                f"| {m['ttft_p50_ms']:.0f} / {m['ttft_p99_ms']:.0f} "
                f"| {'' if side == 'engine' else gaps} | {m['cpu_s_per_1000']:.2f} | {share} |"
            )
    return "\n".join(lines)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="http_load.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("model", nargs="?", type=Path, help="GGUF file; default: SmolLM2-135M-Instruct Q4_1")
    add("--clients", default="1,8,32", help="requests at once, a list (default 1,8,32)")
    add("--rounds", type=int, default=3, help="rounds per number of clients (default 3)")
    add("--waves", type=int, default=3, help="waves per round (default 3)")
    add("--prompt", type=int, default=128, help="tokens of each prompt (default 128)")
    add("--new", type=int, default=128, help="tokens of each answer (default 128)")
    add("--seed", type=int, default=7, help="of the prompts")
    add("--vocabulary", type=int, default=40000, help="random tokens are below this id")
    add("--margin", type=int, default=64, help="positions of context beyond a request")
    add("--threads", type=int, default=0, help="threads of all sides (default: physical cores)")
    add("--route", choices=("completions", "chat"), default="completions")
    add("--fa", default="on", help="llama.cpp's -fa setting (default on)")
    add("--variant", default="best", help="llama.cpp build, as in peers.py")
    add("--no-llama", action="store_true", help="leave llama.cpp's server out")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="compiler processes")
    add("--ggfw", metavar="COMMAND", help="ggfw's command (default: the one beside this Python)")
    add("--profile", type=Path, metavar="FILE", help="record one round of the server with py-spy instead")
    add("--force", action="store_true", help="measure although the machine is busy; the report says so")
    add("--wait", type=float, default=0, metavar="SECONDS", help="wait this long for a quiet machine")
    add("--out", type=Path, metavar="FILE", help="the report as JSON (default bench/peers/http.json)")
    add("--json", action="store_true", help="the report as JSON on stdout instead of the table")
    add("--engine-child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Entry point: 0 measured, 1 failed (one sentence on stderr)."""
    args = arguments(argv)
    if args.engine_child:
        return engine_child(args)
    try:
        if args.model is None:
            found = find_models(model_folders(dict(os.environ)))
            if not found:
                raise PeersError("no model was found: name a file, or set GGFW_TEST_MODELS to its folder")
            args.model = found[0]
        counts = [int(n) for n in args.clients.split(",")]
        if args.profile:
            args.no_llama = True
            recorder = [
                "py-spy",
                "record",
                "--format",
                "speedscope",
                "--rate",
                "200",
                "-o",
                str(args.profile),
            ]
            rows = Comparison(args).ours(max(counts), recorder)
            print(f"{median(rows, 'tokens_per_s'):.1f} tok/s while recording")
            return 0
        forced = quiet_or_refuse(args.force, args.wait)
        comparison = Comparison(args)
        report: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "model": args.model.name,
            "machine": comparison.machine.as_dict(),
            "forced": forced,
            "settings": {
                k: getattr(args, k) for k in ("prompt", "new", "rounds", "waves", "threads", "route")
            },
            "rows": [comparison.run(clients) for clients in counts],
        }
        report["holds"] = {f"{row['clients']} clients": row["share"] >= WANTED for row in report["rows"]}
    except (PeersError, RuntimeError, OSError) as error:
        print(f"http_load: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    out = args.out or ROOT / "http.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1) if args.json else table(report["rows"]))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that servers are ended too
    sys.exit(main())

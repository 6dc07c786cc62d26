#!/usr/bin/env python3
"""Compare ggfw with llama.cpp on this machine: `make peers`, or `python bench/peers.py --help`.

Builds llama-cpp-python's copy of llama.cpp with clang 19 in ``bench/peers/``, runs it and ggfw in turn on
the same file, threads and lengths, and prints the ratios as a table and as JSON. See bench/README.md for
what each measure means.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers_build import VARIANTS, Build, PeersError, ensure_build, file_sha256, resolve_variant
from peers_machine import Machine, busy_reason, describe_machine, observe_load
from peers_results import Results, format_table, summarise, table_rows, wants_pair
from peers_run import MEASURES, Lengths, Measure, Task, choose_flash_attention, describe, take_sample

BENCH = Path(__file__).resolve().parent
ROOT = BENCH / "peers"
#: What `all` stands for; what is the same here (without AMX `noamx` is `best`) is built and measured once.
ALL_VARIANTS = ("best", "noamx", "avx2")
SYNTHETIC = "synthetic-llama-1b-Q4_K_M.gguf"  # beside the default models: 1.1 billion random parameters
# Patterns (lower case) of the two models that the published tables use.
DEFAULT_MODELS = ("smollm2-135m-instruct*q4_1.gguf", "gemma-3-270m*q4_k_m.gguf")
SOURCE_FOLDERS = ("core", "plugins", "kernels_c", "cli")
SOURCE_SUFFIXES = {".py", ".c", ".h", ".so"}


def parse_only(text: str) -> tuple[str, ...]:
    """Measures of a comma-separated list, in the order of `MEASURES`; an unknown one raises `PeersError`."""
    names = {name.strip() for name in text.split(",") if name.strip()}
    unknown = sorted(names - MEASURES.keys())
    if unknown:
        raise PeersError(
            f"unknown measure {unknown[0]!r}: ONLY takes a comma-separated list of {', '.join(MEASURES)}"
        )
    return tuple(name for name in MEASURES if name in names) or tuple(MEASURES)


def model_folders(environment: dict[str, str]) -> list[Path]:
    """Folders searched for the default models: GGFW_TEST_MODELS, GGFW_MODELS_DIR, ggfw's cache, LM Studio's."""
    listed = [
        Path(part)
        for variable in ("GGFW_TEST_MODELS", "GGFW_MODELS_DIR")
        for part in environment.get(variable, "").split(os.pathsep)
        if part
    ]
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ggfw"
    return [*listed, cache, Path.home() / ".lmstudio" / "models"]


def find_models(folders: list[Path], patterns: tuple[str, ...] = DEFAULT_MODELS) -> list[Path]:
    """The first file (by folder, then path) for each pattern, case ignored; patterns without one are left out."""
    files = [
        path for folder in folders if folder.is_dir() for path in sorted(folder.rglob("*")) if path.is_file()
    ]
    found = []
    for pattern in patterns:
        hit = next((path for path in files if fnmatch.fnmatchcase(path.name.lower(), pattern)), None)
        if hit:
            found.append(hit)
    return found


def find_ggfw(given: str | None) -> list[str]:
    """ggfw's command: what was given, else the script beside this Python, else the one on PATH."""
    if given:
        return given.split()
    beside = Path(sys.executable).parent / "ggfw"
    path = str(beside) if beside.is_file() else shutil.which("ggfw")
    if path is None:
        raise PeersError("there is no ggfw command: pip install -e . first, or pass --ggfw COMMAND")
    return [path]


def source_fingerprint(tree: Path) -> str:
    """12 hex digits over ggfw's own files, so that results of other code are never taken for this code's."""
    digest = hashlib.sha256()
    for folder in SOURCE_FOLDERS:
        for path in sorted((tree / folder).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES and path.is_file():
                digest.update(str(path.relative_to(tree)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def ggfw_version(command: list[str]) -> str:
    """What ``ggfw --version`` prints, on one line. Raises `PeersError` when it fails."""
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
    except OSError as error:
        raise PeersError(f"{command[0]} could not be started ({error}): pip install -e . first") from error
    if done.returncode != 0:
        tail = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PeersError(f"`{' '.join(command)} --version` failed ({tail}): repair the installation first")
    return " ".join(done.stdout.split())


def default_backend(variant: str, machine: Machine) -> str | None:
    """ggfw's backend of the same instruction set as llama.cpp's build; None leaves the choice to ggfw."""
    if variant.startswith("avx2"):
        return "avx2"
    if variant.startswith("noamx") and machine.has("amx_tile"):
        return "avx512" if machine.has("avx512_vnni") else "avx2"
    return None


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="peers.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add(
        "models", nargs="*", type=Path, metavar="MODEL", help="GGUF files (default: SmolLM2 and gemma-3-270m)"
    )
    add("--model", action="append", type=Path, default=[], metavar="PATH", help="one more model; repeatable")
    add("--only", default=os.environ.get("ONLY", ""), help=f"measures: {','.join(MEASURES)} (or ONLY=…)")
    add(
        "--variant",
        default="all",
        help=f"llama.cpp builds: {', '.join(VARIANTS)}, each also with -openmp; several with commas; or all",
    )
    add("--no-synthetic", action="store_true", help="leave the synthetic 1B model out of the default models")
    add("--busy", action="store_true", help="the measures decode and busy alone")
    add("--threads", type=int, default=0, help="threads of both sides (default: cores this process may use)")
    add("--pairs", type=int, default=5, help="pairs of runs per measure (default 5)")
    add("--repeat", type=int, default=1, help="repetitions inside a run of the speed measures (default 1)")
    add("--prompt-tokens", type=int, default=512)
    add("--new-tokens", type=int, default=128)
    add("--depth", type=int, default=0, help="tokens in the cache before decoding is timed (default 0)")
    add("--parallel", type=int, default=16, help="sequences of the measure `parallel` (default 16)")
    add("--ctx", type=int, default=1024, help="context of the measures start and memory (default 1024)")
    add("--raw", action="store_true", help="ggfw's step loop alone, without engine, sampler and decoder")
    add("--ggfw", metavar="COMMAND", help="ggfw's command (default: the one beside this Python)")
    add("--ggfw-backend", metavar="NAME", help="ggfw's kernel backend (default: as the llama.cpp build)")
    add("--llama-only", action="store_true", help="measure llama.cpp alone")
    add("--build-only", action="store_true", help="build llama.cpp and stop")
    add(
        "--sdist",
        type=Path,
        metavar="FILE",
        help="source distribution of llama-cpp-python instead of pip download",
    )
    add("--update", action="store_true", help="ask pip for the newest source again")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="compiler processes")
    add("--fresh", action="store_true", help="measure again what is already in the results file")
    add("--force", action="store_true", help="measure although the machine is busy; the results are marked")
    add("--wait", type=float, default=0, metavar="SECONDS", help="wait this long for a quiet machine")
    add(
        "--results",
        type=Path,
        default=ROOT / "results.json",
        metavar="FILE",
        help="finished pairs are kept here",
    )
    add("--out", type=Path, default=ROOT / "report.json", metavar="FILE", help="the report as JSON")
    add("--json", action="store_true", help="the report as JSON on stdout instead of the table")
    args = parser.parse_args(argv)
    for name in ("pairs", "repeat", "prompt_tokens", "new_tokens", "parallel", "ctx", "jobs"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.prompt_tokens + args.new_tokens > args.ctx:
        parser.error(f"--ctx {args.ctx} cannot hold {args.prompt_tokens} + {args.new_tokens} tokens")
    return args


def quiet_or_refuse(force: bool, wait: float) -> str | None:
    """None when the machine is quiet, the reason when ``force`` overrides it; else raise `PeersError`."""
    until = time.monotonic() + wait
    while (reason := busy_reason(observe_load())) and time.monotonic() < until:
        time.sleep(3)
    if reason and not force:
        raise PeersError(
            f"the machine is busy: {reason}. Stop them, or use --wait SECONDS or --force (marks the results)"
        )
    return reason


def run_pairs(
    measure: Measure,
    build: Build,
    task: Task,
    command: list[str] | None,
    entry: dict[str, Any],
    results: Results,
    pairs: int,
    forced: str | None,
) -> None:
    """Bring ``entry`` to ``pairs`` undisturbed pairs (`wants_pair`): llama.cpp, ggfw, llama.cpp, ggfw, …

    Each pair is saved at once.
    """
    if entry["flash_attention"] is None:
        entry["flash_attention"] = choose_flash_attention(measure, build, task)
        results.save()
    fa = entry["flash_attention"]["chosen"]
    while wants_pair(entry["pairs"], pairs, measure.timed):
        llama = take_sample(measure.llama(build, task, fa), measure.read_llama, measure.beside)
        ggfw = (
            take_sample(measure.ggfw(command, task), measure.read_ggfw, measure.beside) if command else None
        )
        entry["pairs"].append(
            {
                "llama": llama.as_dict(),
                "ggfw": ggfw.as_dict() if ggfw else None,
                "forced": forced,
                "time": time.time(),
            }
        )
        results.save()
        progress = (
            f"  {measure.name}, pair {len(entry['pairs'])} ({pairs} wanted): llama.cpp {llama.value:.4g}"
        )
        print(
            progress + (f", ggfw {ggfw.value:.4g} {measure.unit}" if ggfw else ""),
            file=sys.stderr,
            flush=True,
        )


def resolve_variants(text: str, machine: Machine) -> list[str]:
    """The builds of a comma-separated list, or of ``all`` (those that run here), each once, in this order.

    Raises `PeersError` for an unknown name, or one that was named and cannot run here.
    """
    if text == "all":
        runs = [name for name in ALL_VARIANTS if name != "avx2" or machine.has("avx2")]
    else:
        runs = [name.strip() for name in text.split(",") if name.strip()]
    return list(dict.fromkeys(resolve_variant(name, machine) for name in runs))


def synthetic_model(folder: Path) -> Path:
    """The 1B-class llama of random blocks, Q4_K_M's mixture (`synthetic.py`), written on first use (640 MiB)."""
    path = folder / SYNTHETIC
    if not path.is_file():
        print(f"writing {path}", file=sys.stderr, flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        command = [sys.executable, str(BENCH / "synthetic.py"), "llama", str(part), "--type", "Q4_K_M"]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
            raise PeersError("the synthetic model could not be written: see above, or pass --no-synthetic")
        part.replace(path)
    return path


def report_of(
    model: Path, measure: Measure, task: Task, entry: dict[str, Any], pairs: int, variant: str = "best"
) -> dict[str, Any]:
    """One row of the report: medians, ratio, conditions, and the pairs themselves."""
    summary = summarise(entry["pairs"], pairs, measure.timed)
    return {
        "model": model.name,
        "build": variant,
        "measure": measure.name,
        "title": describe(measure, task.lengths),
        "unit": measure.unit,
        "higher_is_better": measure.higher_is_better,
        "llama": summary.llama,
        "ggfw": summary.ggfw,
        "ratio": summary.ratio,
        "spread": summary.spread,
        "pairs": summary.pairs,
        "disturbed": summary.disturbed,
        "calm": summary.calm,
        "foreign_cpu": summary.foreign,
        "forced": any(pair["forced"] for pair in entry["pairs"]),
        "flash_attention": entry["flash_attention"],
        "samples": entry["pairs"],
    }


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Build, measure and return the report (JSON-ready). Raises `PeersError`."""
    machine = describe_machine()
    only = ("decode", "busy") if args.busy else parse_only(args.only)
    models = [*args.models, *args.model]
    if not models:
        models = find_models(model_folders(dict(os.environ)))
        if not args.no_synthetic and not args.build_only:
            models.append(synthetic_model(ROOT))
    if not models and not args.build_only:
        raise PeersError(
            "none of the default models was found: pass a MODEL, point GGFW_TEST_MODELS at their folder, "
            "or fetch one with `ggfw pull SmolLM2-135M-Instruct`"
        )
    for model in models:
        if not model.is_file():
            raise PeersError(f"{model} is not a file: pass the path of a GGUF file")
    command = None if args.llama_only or args.build_only else find_ggfw(args.ggfw)
    version = ggfw_version(command) if command else None

    builds = [
        ensure_build(ROOT, variant, machine, sdist=args.sdist, jobs=args.jobs, update=args.update)
        for variant in resolve_variants(args.variant, machine)
    ]
    lengths = Lengths(
        prompt=args.prompt_tokens, new=args.new_tokens, depth=args.depth, parallel=args.parallel, ctx=args.ctx
    )
    threads = args.threads or machine.default_threads
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.as_dict(),
        "llama_cpp": builds[0].as_dict(),
        "builds": [build.as_dict() for build in builds],
        "ggfw": None,
        "threads": threads,
        "rows": [],
    }
    if command:
        report["ggfw"] = {
            "version": version,
            "source": source_fingerprint(BENCH.parent),
            "route": "step loop alone (--raw)" if args.raw else "engine, sampler, decoder",
            "environment": {key: value for key, value in os.environ.items() if key.startswith("GGFW_")},
        }
    if args.build_only:
        return report

    try:
        results = Results(args.results)
    except ValueError as error:
        if not args.fresh:
            raise PeersError(str(error)) from error
        args.results.unlink()
        results = Results(args.results)
    forced: str | None = None
    looked = False
    for model, build in product(models, builds):
        sha256 = file_sha256(model)  # also warms the page cache: no side reads a cold disk
        backend = args.ggfw_backend or default_backend(build.variant, machine)
        task = Task(model, threads, lengths, args.repeat, args.raw, backend)
        for name in only:
            measure = MEASURES[name]
            facts = {
                "machine": machine.key,
                "model": {"bytes": model.stat().st_size, "sha256": sha256},
                "llama_cpp": build.digest,
                "ggfw": report["ggfw"] and {**report["ggfw"], "backend": backend or "chosen by ggfw"},
                "measure": name,
                # the commands themselves, without paths: whatever changes them starts a new entry
                "commands": [
                    [Path(word).name for word in measure.llama(build, task, 0)],
                    [Path(word).name for word in measure.ggfw(["ggfw"], task)] if command else None,
                ],
            }
            entry = results.entry(facts, args.fresh)
            if wants_pair(entry["pairs"], args.pairs, measure.timed):
                if not looked:
                    forced, looked = quiet_or_refuse(args.force, args.wait), True
                print(
                    f"{model.name}, build {build.variant}: {describe(measure, lengths)}",
                    file=sys.stderr,
                    flush=True,
                )
                run_pairs(measure, build, task, command, entry, results, args.pairs, forced)
            report["rows"].append(report_of(model, measure, task, entry, args.pairs, build.variant))
    keep_shares(report["rows"])
    return report


def keep_shares(rows: list[dict[str, Any]]) -> None:
    """Add to every row of the measure `busy` what share of its undisturbed decode speed each side kept.

    ``kept`` is ``{"llama": share, "ggfw": share}``; a side's share is absent where its decode row or value is.
    """
    alone = {(row["model"], row["build"]): row for row in rows if row["measure"] == "decode"}
    for row in rows:
        if row["measure"] == "busy":
            other = alone.get((row["model"], row["build"]), {})
            row["kept"] = {
                side: row[side] / other[side] for side in ("llama", "ggfw") if row[side] and other.get(side)
            }


def heading(report: dict[str, Any]) -> str:
    """Machine, date, versions and flags, as the lines above the table."""
    machine, ggfw = report["machine"], report["ggfw"]
    lines = [
        f"{report['date']}  {machine['cpu']}, {machine['physical_cores']} cores "
        f"({machine['logical_cpus']} CPUs allowed), {machine['memory_bytes'] / 1e9:.1f} GB, "
        f"governor {machine['governor']}, Linux {machine['kernel']}",
        f"features: {' '.join(machine['features'])}; threads: {report['threads']}",
    ]
    for llama in report["builds"]:
        native = [
            flag
            for flag in llama["flags"]
            if flag.startswith(("-DGGML_", "-DCMAKE_C_FLAGS", "-DCMAKE_BUILD"))
        ]
        lines.append(
            f"llama.cpp: {llama['package']} {llama['version']}, build {llama['variant']}, {llama['compiler']}, "
            + " ".join(native)
        )
    if ggfw:
        lines.append(
            f"ggfw: {ggfw['version']}, source {ggfw['source']}, {ggfw['route']}; beside the build avx2 with "
            "--backend avx2"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Entry point: 0 done, 1 failed (one sentence on stderr)."""
    args = arguments(argv)
    try:
        report = compare(args)
    except PeersError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("peers: interrupted; finished pairs are kept, run it again to go on", file=sys.stderr)
        return 130
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    if args.json:
        print(json.dumps(report, indent=1))
    else:
        print(heading(report))
        if report["rows"]:
            print()
            print(format_table(table_rows(report["rows"])))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that children are ended too
    sys.exit(main())

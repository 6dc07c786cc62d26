"""``python -m fuzz [TARGET ...] --seconds 60``: run fuzzers one after the other; exit code 1 if any found something.

Every run adds to a report, so that an hour of each can be run in pieces: ``python -m fuzz --seconds 120 --total 3600``
leaves out those that have had their hour of CPU, and begins with those that have had least; ``--show`` prints it.

``python -m fuzz --replay FILE TARGET`` runs one input again and shows what it raises.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

from fuzz import driver, native
from fuzz.ledger import Ledger, table
from fuzz.target import TARGETS, make


def main() -> int:
    """See the module."""
    names_of_all = [*TARGETS, *native.TARGETS]
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(names_of_all)}; default: all"
    )
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["auto", "atheris", "mutate"], default="auto")
    parser.add_argument("--findings", type=Path, default=Path(".cache/fuzz"), help="folder for what is found")
    parser.add_argument(
        "--report", type=Path, default=Path("build/fuzz/report.json"), help="what all runs have done"
    )
    parser.add_argument(
        "--total", type=float, help="seconds of CPU after which a target has had enough, of all runs"
    )
    parser.add_argument("--show", action="store_true", help="print the report and run nothing")
    parser.add_argument("--replay", type=Path, help="run this input only")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    given = parser.parse_args()
    engine = given.engine
    if engine == "auto":
        engine = "atheris" if importlib.util.find_spec("atheris") else "mutate"
    if given.inside:
        driver.inside(given.inside, given.seconds, seed=given.seed, engine=engine, findings=given.findings)
        return 0
    names = given.targets or names_of_all
    if unknown := set(names) - set(names_of_all):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if given.replay:
        if names[0] in native.TARGETS:
            program = native.build(names[0], native.compiler() or "clang")
            return subprocess.run([str(program), str(given.replay)]).returncode
        make(names[0]).run(given.replay.read_bytes())
        return 0
    ledger, found = Ledger(given.report), False
    if given.show:
        print(table(ledger.read(), names))
        return 0
    if given.total:
        left = {name: ledger.left(name, given.total) for name in names}
        names = sorted((name for name in names if left[name] > 0), key=lambda name: -left[name])
    for name in names:
        seconds = min(given.seconds, max(1.0, left[name])) if given.total else given.seconds
        more: dict[str, Any] = {"seed": given.seed + 1009 * ledger.runs(name), "findings": given.findings}
        if name in native.TARGETS:
            result = native.fuzz(name, seconds, **more)
        else:
            result = driver.fuzz(name, seconds, engine=engine, **more)
        print(driver.report([result]), flush=True)
        ledger.add(result)
        found = found or bool(result["findings"])
    print(table(ledger.read(), names))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

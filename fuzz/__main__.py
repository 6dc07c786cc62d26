"""``python -m fuzz [TARGET ...] --seconds 60``: run fuzzers one after the other; exit code 1 if any found something.

``python -m fuzz --replay FILE TARGET`` runs one input again and shows what it raises.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

from fuzz import driver, native
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
    results = []
    for name in names:
        if name in native.TARGETS:
            results.append(native.fuzz(name, given.seconds, seed=given.seed, findings=given.findings))
        else:
            results.append(
                driver.fuzz(name, given.seconds, seed=given.seed, engine=engine, findings=given.findings)
            )
        print(driver.report(results[-1:]), flush=True)
    return 1 if any(r["findings"] for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Build the wheel of this platform and give it the tag that it deserves: ``make wheel``, results in ``build/dist``.

On Linux, auditwheel looks at the symbol versions that the compiled libraries need and says with which systems they
run (``manylinux_2_34`` where glibc 2.34 is the newest thing asked for). ``--glibc 2.28`` compiles with zig against that
older glibc instead of with the machine's own compiler, for systems since RHEL 8 and Debian 10. A wheel whose libraries
ask for more than its tag promises is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "build" / "dist"
TOOLS = ROOT / "build" / "wheel-tools"


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command that has to succeed; its output is told when it does not."""
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, **options)  # type: ignore[call-overload]
    if said.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{said.stdout}{said.stderr}")
    return said


def tools() -> str:
    """Return the Python of an environment that has auditwheel and wheel; made on first use."""
    python = TOOLS / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", str(TOOLS))
        run(str(python), "-m", "pip", "install", "-q", "auditwheel>=6", "wheel>=0.42")
    return str(python)


def compiler(glibc: str) -> dict[str, str]:
    """The environment in which zig compiles against an older glibc."""
    sys.path.insert(0, str(ROOT / "kernels_c"))
    import cross  # type: ignore[import-not-found]

    machine = os.uname().machine
    return {**os.environ, "CC": f"{' '.join(cross.zig_command())} -target {machine}-linux-gnu.{glibc} -g0"}


def deserved(wheel: Path, python: str) -> str:
    """The platform tag that auditwheel finds a wheel consistent with."""
    said = run(python, "-m", "auditwheel", "show", str(wheel)).stdout
    found = re.search(r'consistent\s+with\s+the\s+following\s+platform\s+tag:\s+"([\w]+)"', said)
    if not found:
        raise SystemExit(f"auditwheel names no tag for {wheel.name}:\n{said}")
    return found[1]


def newest_glibc(wheel: Path) -> tuple[int, ...]:
    """The newest version of glibc that the libraries of a wheel ask for, read from their bytes."""
    with zipfile.ZipFile(wheel) as archive:
        data = b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".so"))
    found = re.findall(rb"GLIBC_(\d+)\.(\d+)", data)
    return max((tuple(map(int, version)) for version in found), default=(0, 0))


def main() -> int:
    """Build, look, tag."""
    parser = argparse.ArgumentParser(description="Build a wheel with the platform tag that it deserves.")
    parser.add_argument(
        "--glibc", metavar="VERSION", help="compile with zig against this glibc, such as 2.28"
    )
    args = parser.parse_args()
    linux = sys.platform == "linux"
    if args.glibc and not linux:
        parser.error("--glibc is for Linux")
    environment = compiler(args.glibc) if args.glibc else dict(os.environ)
    fresh = ROOT / "build" / "wheel-fresh"
    for old in fresh.glob("*.whl"):
        old.unlink()
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(fresh), ".", env=environment)
    (wheel,) = fresh.glob("ggfw-*.whl")
    DIST.mkdir(parents=True, exist_ok=True)
    if linux:
        python = tools()
        tag = deserved(wheel, python)
        if tag.startswith("linux_"):
            raise SystemExit(
                f"{wheel.name} runs on this machine's kind of system only; auditwheel says {tag}"
            )
        name = run(
            python, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, str(wheel)
        ).stdout.split()[-1]
        wheel = fresh / Path(name).name
        promised = re.search(r"manylinux_(\d+)_(\d+)", tag)
        if promised and newest_glibc(wheel) > tuple(map(int, promised.groups())):
            raise SystemExit(f"{wheel.name} promises more than its libraries keep: {newest_glibc(wheel)}")
    target = DIST / wheel.name
    wheel.replace(target)
    print(json.dumps({"wheel": str(target.relative_to(ROOT)), "bytes": target.stat().st_size}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

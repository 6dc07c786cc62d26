"""Compile the C code for other systems with zig: ``make cross-build``, or ``python kernels_c/cross.py``.

zig comes as a package (``ziglang``) into a folder of its own. What compiles here is *compiled*, no more: only Linux
libraries can also be run on this machine (arm64 under qemu-user). Results go to ``build/cross/TARGET/``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ZIG = ROOT / ".cache" / "zig"
ZIG_VERSION = "0.17.0"

#: zig's name of each target -> (system, processor family).
TARGETS = {
    "x86_64-linux-gnu.2.28": ("linux", "x86_64"),
    "aarch64-linux-gnu.2.28": ("linux", "aarch64"),
    "x86_64-macos": ("darwin", "x86_64"),
    "aarch64-macos": ("darwin", "aarch64"),
    "x86_64-windows-gnu": ("windows", "x86_64"),
    "aarch64-windows-gnu": ("windows", "aarch64"),
}

#: zig takes no ``-march`` for arm64.
SPELLING = {
    "-march=armv8.2-a+dotprod": "-mcpu=generic+dotprod",
    "-march=armv8.2-a+dotprod+i8mm": "-mcpu=generic+dotprod+i8mm",
}


def load_build() -> ModuleType:
    """Return ``kernels_c/build.py`` as a module, installed or not."""
    spec = importlib.util.spec_from_file_location("ggfw_kernels_build", HERE / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def zig_command() -> list[str]:
    """Return the command of zig's C compiler, fetching the package into a folder of ours on first use."""
    zig = ZIG / "ziglang" / ("zig.exe" if os.name == "nt" else "zig")
    if not zig.exists():
        args = ["install", "--quiet", "--target", str(ZIG), f"ziglang=={ZIG_VERSION}"]
        if subprocess.run([sys.executable, "-m", "pip", *args]).returncode:
            raise SystemExit(f"zig could not be installed: pip {' '.join(args)} failed")
    return [str(zig), "cc"]


def main(argv: Sequence[str] | None = None) -> int:
    """Compile for all targets (or those named) and print one line for each; returns 1 if any failed."""
    parser = argparse.ArgumentParser(description="Compile the C libraries for other systems.")
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (default: all)"
    )
    args = parser.parse_args(argv)
    if unknown := set(args.targets) - set(TARGETS):
        parser.error(f"unknown target {', '.join(sorted(unknown))}; choose from {', '.join(TARGETS)}")
    build = load_build()
    zig = zig_command()
    failed = False
    for name in args.targets or TARGETS:
        system, family = TARGETS[name]
        target = build.Target(system, family, ("-target", name), SPELLING)
        notes: list[str] = []
        try:
            made = build.build(
                target,
                zig,
                libraries=ROOT / "build" / "cross" / name,
                objects=ROOT / "build" / "kernels" / "cross",
                notice=notes.append,
            )
        except build.BuildError as exc:
            failed = True
            lines = str(exc).splitlines()
            first = next((line for line in lines if "error:" in line), "")
            print(f"{name}: FAILED: {lines[0]} {first}".rstrip())
            continue
        skipped = [note for note in notes if note.startswith("skipped")]
        print(
            f"{name}: compiled {', '.join(path.name for path in made if path.suffix != '.py') or 'nothing'}"
            + "".join(f"; {s}" for s in skipped)
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

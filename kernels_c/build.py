"""Compile the C code into plain shared libraries: ``python kernels_c/build.py``, also called by ``setup.py``.

The executor becomes ``libggfw_executor``, every instruction set ``libggfw_<isa>`` with its own flags, all in
``kernels_c/lib/``. Nothing here needs Python headers, and nothing is compiled for "this machine": which library is
opened is decided at run time. A compiler that lacks a flag, and a processor of another family, skip that unit with
a notice. Objects are kept under ``build/kernels/`` and made anew when the command or the *content* of any file they
were made from differs.

This module imports only the standard library, because the build back end runs it before ggfw is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
INCLUDE = HERE / "include"
LIBRARIES = HERE / "lib"
OBJECTS = HERE.parent / "build" / "kernels"

#: Flags of each instruction set by processor family. A unit is compiled if its source exists. Its kernels get the
#: flags; its probe does not, because that is called before anybody knows whether the kernels can run.
UNITS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "generic": (),
        "avx2": ("-mavx2", "-mfma", "-mf16c"),
        "avxvnni": ("-mavx2", "-mfma", "-mf16c", "-mavxvnni"),
        "avx512": (
            "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx2", "-mfma", "-mf16c",
        ),
        "amx": (
            "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx2", "-mfma", "-mf16c",
            "-mavx512bf16", "-mamx-tile", "-mamx-bf16",
        ),
    },
    "aarch64": {
        "generic": (),
        "neon": (),
        "dotprod": ("-march=armv8.2-a+dotprod",),
        "i8mm": ("-march=armv8.2-a+dotprod+i8mm",),
    },
}  # fmt: skip
#: Units that have every op, and the encoders with them; the others bring some products.
WHOLE_UNITS = ("generic", "avx2", "avx512", "neon")
FAMILIES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}

#: Names in ``platform_<name>.c`` that differ from Python's name of the system: one file of system calls per system.
PLATFORM_FILES = {"darwin": "macos"}

#: Contraction and no errno: results of units are compared with bounds, not bit for bit across compilers. NaN and
#: infinities keep their meaning (no -ffast-math): the sampler has to see them.
COMMON = ("-O3", "-std=c11", "-fvisibility=hidden", "-fno-math-errno", "-Wall", "-Wextra")
UNIT_FLAGS = ("-ffp-contract=fast",)


class BuildError(Exception):
    """The C code cannot be compiled here; the message is one sentence with the way out."""


@dataclass(frozen=True)
class Target:
    """What is compiled for.

    Args:
        system: ``linux``, ``darwin`` or ``windows``.
        family: ``x86_64`` or ``aarch64``; others get the generic unit.
        flags: compiler flags that choose the target; empty for this machine.
        spelling: flags of instruction sets that its compiler calls otherwise.
    """

    system: str
    family: str
    flags: tuple[str, ...] = ()
    spelling: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def here(cls) -> Target:
        """Return the machine this runs on."""
        machine = platform.machine().lower()
        return cls(platform.system().lower(), FAMILIES.get(machine, machine))

    @property
    def name(self) -> str:
        """Folder name of its objects."""
        return f"{self.system}-{self.family}"

    def library(self, stem: str) -> str:
        """Return the file name of a library on this system."""
        suffix = {"darwin": ".dylib", "windows": ".dll"}.get(self.system, ".so")
        return f"libggfw_{stem}{suffix}"

    @property
    def position_flags(self) -> tuple[str, ...]:
        """Flags for code of a shared library with threads."""
        return () if self.system == "windows" else ("-fPIC", "-pthread")

    @property
    def link_flags(self) -> tuple[str, ...]:
        """Libraries every library of ours is linked with."""
        # WaitOnAddress stands in no library that is linked by default.
        return ("-lapi-ms-win-core-synch-l1-2-0",) if self.system == "windows" else ("-pthread", "-lm")

    def units(self) -> dict[str, tuple[str, ...]]:
        """Return the flags of each instruction set of this processor family."""
        units = UNITS.get(self.family, {"generic": ()})
        return {isa: tuple(self.spelling.get(flag, flag) for flag in flags) for isa, flags in units.items()}


def compiler_from_environ() -> list[str]:
    """Return the compiler command: ``CC`` (may carry arguments), else gcc, else cc, else clang."""
    if os.environ.get("CC", "").strip():
        return shlex.split(os.environ["CC"])
    for name in ("gcc", "cc", "clang"):
        if any(os.access(Path(folder) / name, os.X_OK) for folder in os.get_exec_path()):
            return [name]
    return ["gcc"]


@dataclass(frozen=True)
class LibraryPlan:
    """Sources of one library: those that get the flags of its instruction set, and those that do not."""

    sources: tuple[Path, ...]
    flags: tuple[str, ...] = ()
    plain: tuple[Path, ...] = ()

    @property
    def compiled(self) -> list[tuple[Path, tuple[str, ...]]]:
        """All sources with their flags."""
        return [*((path, self.flags) for path in self.sources), *((path, ()) for path in self.plain)]


def library_plan(target: Target) -> dict[str, LibraryPlan]:
    """Return what each library is made of, by stem, for those whose sources exist."""
    plan: dict[str, LibraryPlan] = {}
    own = f"platform_{PLATFORM_FILES.get(target.system, target.system)}.c"
    executor = [
        path for path in SOURCES.glob("*.c") if not path.name.startswith("platform_") or path.name == own
    ]
    if executor:
        plan["executor"] = LibraryPlan(tuple(sorted(executor)))
    for isa, flags in target.units().items():
        plan[isa] = unit_plan(isa, flags)
        if not all(path.is_file() for path in plan[isa].sources):
            del plan[isa]
    return plan


def unit_plan(isa: str, flags: tuple[str, ...]) -> LibraryPlan:
    """Return what the library of an instruction set is made of."""
    units = SOURCES / "units"
    encode = (SOURCES / "encode" / "encode.c",) if isa in WHOLE_UNITS else ()
    return LibraryPlan((units / f"unit_{isa}.c", *encode), (*UNIT_FLAGS, *flags), (units / f"probe_{isa}.c",))


def build(
    target: Target | None = None,
    compiler: Sequence[str] | None = None,
    libraries: Path = LIBRARIES,
    objects: Path = OBJECTS,
    jobs: int = 2,
    extra_flags: Sequence[str] = (),
    notice: Callable[[str], None] = print,
) -> list[Path]:
    """Compile what is out of date.

    Args:
        target: what to compile for; None = this machine.
        compiler: the command; None = ``CC`` or gcc.
        libraries: folder of the results.
        objects: folder of intermediate files.
        jobs: compilations at a time.
        extra_flags: added to every compilation and link (sanitizers).
        notice: called with one line for each library made or skipped.

    Returns:
        Paths of all libraries, and of ``ggfw_abi.py``, that are now up to date.

    Raises:
        BuildError: there is no compiler, no C library to compile against, or a source does not compile.
    """
    target = target or Target.here()
    plan = library_plan(target)
    if not plan:
        notice("kernels_c/src holds no C sources: nothing to compile")
        return []
    command = list(compiler or compiler_from_environ())
    objects = objects / target.name
    libraries.mkdir(parents=True, exist_ok=True)
    objects.mkdir(parents=True, exist_ok=True)
    with _locked(objects / "lock"), ThreadPoolExecutor(max(jobs, 1)) as pool:
        version = check_compiler(command, target)
        base = [*command, *target.flags, *COMMON, *target.position_flags, *extra_flags]
        work = {}
        for stem, library_of in plan.items():
            if missing := unsupported_flags(command, target, library_of.flags):
                notice(f"skipped {target.library(stem)}: {command[0]} does not know {' '.join(missing)}")
                (libraries / target.library(stem)).unlink(missing_ok=True)
                continue
            work[stem] = [
                pool.submit(_compile, [*base, *flags], version, source, objects / stem / f"{source.stem}.o")
                for source, flags in library_of.compiled
            ]
        done = []
        for stem, futures in work.items():
            results = [future.result() for future in futures]
            library = libraries / target.library(stem)
            link = [*command, *target.flags, *extra_flags, "-shared"]
            if _link(link, version, [path for path, _ in results], library, objects / f"{stem}.json", target):
                notice(f"built {_short(library)}")
            done.append(library)
        if "executor" in work:
            module, new = _bindings(libraries)
            if new:
                notice(f"wrote {_short(module)}")
            done.append(module)
    return done


def build_variant(
    name: str,
    isa: str,
    flags: Sequence[str],
    *,
    target: Target | None = None,
    compiler: Sequence[str] | None = None,
    libraries: Path = OBJECTS / "variants",
) -> Path:
    """Compile one unit with other flags than its own, for tests of code that this machine cannot run as it is.

    Args:
        name: the library becomes ``libggfw_NAME``.
        isa: the unit.
        flags: instead of the unit's; its probe gets those that are definitions (``-D``).
        target: what to compile for; None = this machine.
        compiler: the command; None = ``CC`` or gcc.
        libraries: folder of the result, and of the objects.

    Returns:
        Path of the library.

    Raises:
        BuildError: it does not compile.
    """
    target = target or Target.here()
    command = list(compiler or compiler_from_environ())
    folder = libraries / target.name
    (folder / name).mkdir(parents=True, exist_ok=True)
    plan = unit_plan(isa, (*flags,))
    with _locked(folder / "lock"):
        version = check_compiler(command, target)
        base = [*command, *target.flags, *COMMON, *target.position_flags]
        definitions = [flag for flag in flags if flag.startswith("-D")]
        objects = [
            _compile([*base, *(own or definitions)], version, source, folder / name / f"{source.stem}.o")[0]
            for source, own in plan.compiled
        ]
        library = folder / target.library(name)
        _link(
            [*command, *target.flags, "-shared"], version, objects, library, folder / f"{name}.json", target
        )
    return library


def _bindings(libraries: Path) -> tuple[Path, bool]:
    """Generate the Python declarations of the C contract beside the libraries; return the module, and if it is new."""
    sys.path.insert(0, str(HERE))
    try:
        from bindings import MODULE, write_bindings
    finally:
        sys.path.remove(str(HERE))
    try:
        return libraries / f"{MODULE}.py", write_bindings(INCLUDE, libraries)
    except ImportError as exc:
        raise BuildError("cffi is needed to write ggfw_abi.py; install it (pip install cffi)") from exc


def check_compiler(command: Sequence[str], target: Target) -> str:
    """Return the compiler's version line; raises BuildError if it is missing or cannot compile for the target."""
    name = command[0]
    try:
        version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as exc:
        raise BuildError(
            f"the C compiler {name!r} cannot be run ({exc}); install one (Debian: apt install build-essential) "
            "or name another with CC"
        ) from exc
    if _probe(command, [*target.flags], "#include <stdint.h>\n#include <math.h>\n") is not None:
        raise BuildError(f"{name!r} finds no C library headers; install them (Debian: apt install libc6-dev)")
    return version.splitlines()[0] if version else name


def unsupported_flags(command: Sequence[str], target: Target, flags: Sequence[str]) -> list[str]:
    """Return those of ``flags`` that the compiler refuses for this target."""
    if not flags or _probe(command, [*target.flags, *flags], "int ggfw_probe;\n") is None:
        return []
    return [
        flag for flag in flags if _probe(command, [*target.flags, flag], "int ggfw_probe;\n") is not None
    ] or [*flags]


def _probe(command: Sequence[str], flags: Sequence[str], text: str) -> str | None:
    """Compile a snippet; return None when it works, else the compiler's complaint."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.c"
        source.write_text(text)
        args = [*command, *flags, "-Werror", "-c", str(source), "-o", str(Path(folder) / "probe.o")]
        run = subprocess.run(args, capture_output=True, text=True)
    return None if run.returncode == 0 else run.stderr


def _compile(base: Sequence[str], version: str, source: Path, output: Path) -> tuple[Path, bool]:
    """Compile one file if its stamp differs; return the object and whether it was made."""
    depfile, stamp = output.with_suffix(".d"), output.with_suffix(".json")
    args = [
        *base,
        f"-I{INCLUDE}",
        f"-I{SOURCES}",
        "-MMD",
        "-MF",
        str(depfile),
        "-c",
        str(source),
        "-o",
        str(output),
    ]
    if output.exists() and _fresh(stamp, [version, *args]):
        return output, False
    output.parent.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    run = subprocess.run(args, capture_output=True, text=True)
    if run.returncode:
        raise BuildError(f"{_short(source)} does not compile:\n{shlex.join(args)}\n{run.stderr.rstrip()}")
    if run.stderr.strip():
        sys.stderr.write(run.stderr)
    _write_stamp(stamp, [version, *args], _dependencies(depfile))
    return output, True


def _link(
    link: Sequence[str], version: str, objects: Sequence[Path], library: Path, stamp: Path, target: Target
) -> bool:
    """Link a library if any object is new; return whether it was. Whoever has the old one mapped keeps it."""
    if target.system == "darwin":
        name = [f"-Wl,-install_name,@rpath/{library.name}"]
    elif target.system == "windows":
        name = []
    else:
        name = [f"-Wl,-soname,{library.name}", "-Wl,-z,defs"]
    fresh = library.with_name(f".{library.name}.{os.getpid()}")
    args = [*link, *name, "-o", str(fresh), *map(str, objects), *target.link_flags]
    key = [version, str(library), *[arg for arg in args if arg != str(fresh)]]
    if library.exists() and _fresh(stamp, key):
        return False
    run = subprocess.run(args, capture_output=True, text=True)
    if run.returncode:
        fresh.unlink(missing_ok=True)
        raise BuildError(f"{library.name} does not link:\n{shlex.join(args)}\n{run.stderr.rstrip()}")
    os.replace(fresh, library)
    _write_stamp(stamp, key, list(objects))
    return True


def _fresh(stamp: Path, command: Sequence[str]) -> bool:
    """Whether a stamp was written by this command from files that still have the same content."""
    try:
        said = json.loads(stamp.read_text())
        return said["command"] == list(command) and all(_digest(p) == d for p, d in said["files"].items())
    except (OSError, ValueError, KeyError):
        return False


def _write_stamp(stamp: Path, command: Sequence[str], files: Sequence[Path]) -> None:
    stamp.write_text(
        json.dumps({"command": list(command), "files": {str(path): _digest(path) for path in files}})
    )


def _digest(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _dependencies(depfile: Path) -> list[Path]:
    """Read the files of ours that a compilation saw; the system's are covered by the compiler's version."""
    words = shlex.split(depfile.read_text().replace("\\\n", " "))
    return [path for word in words[1:] if HERE in (path := Path(word).resolve()).parents]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file, so that two builds in one checkout do not write the same objects."""
    with path.open("w") as file:
        try:
            import fcntl
        except ImportError:  # Windows: no lock, one build at a time is the user's care
            yield
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file gives the lock back


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(HERE.parent))
    except ValueError:
        return str(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the build step; returns the exit code."""
    parser = argparse.ArgumentParser(description="Compile the C libraries of ggfw.")
    parser.add_argument(
        "-j", "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="compilations at a time"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing while all goes well")
    parser.add_argument("--lib", type=Path, default=LIBRARIES, help="folder of the libraries")
    parser.add_argument("--objects", type=Path, default=OBJECTS, help="folder of intermediate files")
    parser.add_argument(
        "--flag", action="append", default=[], help="further compiler and linker flag (repeatable)"
    )
    args = parser.parse_args(argv)
    try:
        made = build(
            libraries=args.lib,
            objects=args.objects,
            jobs=args.jobs,
            extra_flags=args.flag,
            notice=(lambda line: None) if args.quiet else print,
        )
    except BuildError as exc:
        print(exc, file=sys.stderr)
        return 1
    if not args.quiet:
        print(f"up to date: {', '.join(path.name for path in made) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Fetch llama.cpp's source and build it: the opponent of `bench/peers.py`.

The source is the copy inside llama-cpp-python's source distribution (``vendor/llama.cpp``), fetched by pip
with the user's own pip settings, so that one command works wherever pip works. It is compiled by clang 19,
the best of the compilers tried, into ``bench/peers/`` (git-ignored). Every stage leaves a stamp and is
skipped while its inputs are unchanged.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from peers_machine import Machine

PACKAGE = "llama-cpp-python"
TARGETS = ("llama-bench", "llama-completion", "llama-batched-bench")
VARIANTS = ("best", "noamx", "avx2")
OPENMP_SUFFIX = "-openmp"

# tool on PATH -> Debian package that brings it
TOOLS = {"clang-19": "clang-19", "clang++-19": "clang-19", "cmake": "cmake", "ninja": "ninja-build"}

# Static and without network, server, web page, tests: only what the three programs need.
COMMON_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_C_COMPILER=clang-19",
    "-DCMAKE_CXX_COMPILER=clang++-19",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_CCACHE=OFF",
    "-DLLAMA_BUILD_COMMON=ON",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_CURL=OFF",
)


class PeersError(Exception):
    """Something a person has to put right; the message is one sentence with the way out."""


@dataclass(frozen=True)
class Build:
    """A finished build: where its programs are and how they were made."""

    variant: str
    folder: Path
    version: str
    compiler: str
    flags: tuple[str, ...]
    digest: str  # of source archive, flags, compiler and CPU features; part of the key of every result

    def program(self, name: str) -> Path:
        """Path of one of `TARGETS`."""
        return self.folder / "bin" / name

    def as_dict(self) -> dict[str, object]:
        """JSON-ready description."""
        return {
            "variant": self.variant,
            "package": PACKAGE,
            "version": self.version,
            "compiler": self.compiler,
            "flags": list(self.flags),
            "digest": self.digest,
        }


def missing_packages(found: dict[str, str | None]) -> list[str]:
    """Debian packages for the tools whose path in ``found`` is None, each once, in the order of `TOOLS`."""
    return list(dict.fromkeys(package for tool, package in TOOLS.items() if found.get(tool) is None))


def check_tools() -> None:
    """Raise `PeersError` naming the packages to install if a build tool is absent."""
    missing = missing_packages({tool: shutil.which(tool) for tool in TOOLS})
    if missing:
        raise PeersError(f"building llama.cpp needs {' and '.join(missing)}: apt install {' '.join(missing)}")


def resolve_variant(variant: str, machine: Machine) -> str:
    """The variant that is really built: without AMX in the CPU, ``noamx`` is ``best``.

    Raises `PeersError` for an unknown name or for ``avx2`` on a CPU that lacks it.
    """
    base = variant.removesuffix(OPENMP_SUFFIX)
    if base not in VARIANTS:
        raise PeersError(
            f"unknown build variant {variant!r}: use one of {', '.join(VARIANTS)}, each also with {OPENMP_SUFFIX}"
        )
    if base == "avx2" and not machine.has("avx2"):
        raise PeersError("the avx2 build cannot run here, because this CPU has no AVX2: use the variant best")
    if base == "noamx" and not machine.has("amx_tile"):
        return "best" + variant[len(base) :]
    return variant


def variant_flags(variant: str, machine: Machine) -> tuple[str, ...]:
    """CMake flags that distinguish ``variant`` (already resolved) on this machine.

    ``best`` is -march=native. ``noamx`` is the same with the tile extensions switched off again: llama.cpp
    asks the compiler's predefined macros, so the kernels disappear. ``avx2`` names its extensions one by
    one (plus AVX-VNNI where the CPU has it), tuned for this CPU. llama.cpp's own thread pool is the default,
    since its OpenMP build collapses as soon as anything else runs; ``…-openmp`` builds that for comparison.
    """
    base = variant.removesuffix(OPENMP_SUFFIX)
    openmp = f"-DGGML_OPENMP={'ON' if variant.endswith(OPENMP_SUFFIX) else 'OFF'}"
    if base == "best":
        return ("-DGGML_NATIVE=ON", openmp)
    if base == "noamx":
        off = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
        return ("-DGGML_NATIVE=ON", f"-DCMAKE_C_FLAGS={off}", f"-DCMAKE_CXX_FLAGS={off}", openmp)
    vnni = "ON" if machine.has("avx_vnni") else "OFF"
    return (
        "-DGGML_NATIVE=OFF",
        *(f"-DGGML_{name}=ON" for name in ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C")),
        f"-DGGML_AVX_VNNI={vnni}",
        "-DCMAKE_C_FLAGS=-mtune=native",
        "-DCMAKE_CXX_FLAGS=-mtune=native",
        openmp,
    )


def archive_version(name: str) -> str:
    """The version in a source distribution's file name, e.g. llama_cpp_python-0.3.36.tar.gz -> 0.3.36."""
    stem = Path(name).name.removesuffix(".tar.gz")
    package, _, version = stem.rpartition("-")
    if package.replace("-", "_").lower() != PACKAGE.replace("-", "_") or not version:
        raise PeersError(
            f"{name} is not a source distribution of {PACKAGE}: expected llama_cpp_python-VERSION.tar.gz"
        )
    return version


def fetch_sdist(folder: Path, requirement: str = PACKAGE, update: bool = False) -> Path:
    """The source archive in ``folder``, downloaded by pip when there is none (or when ``update``)."""
    found = sorted(folder.glob("llama_cpp_python-*.tar.gz"), key=lambda path: path.stat().st_mtime)
    if found and not update:
        return found[-1]
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-binary=:all:",
        requirement,
        "-d",
        str(folder),
    ]
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0:
        raise PeersError(
            f"pip could not download the source of {requirement}: check pip's settings and the network, "
            "or pass a file you have with --sdist FILE"
        )
    found = sorted(folder.glob("llama_cpp_python-*.tar.gz"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise PeersError(
            f"pip reported success but left no llama_cpp_python-*.tar.gz in {folder}: use --sdist FILE"
        )
    return found[-1]


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file, read in 1 MiB pieces (which also brings it into the page cache)."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def unpack_source(archive: Path, sha256: str, folder: Path) -> Path:
    """Unpack ``vendor/llama.cpp`` of ``archive`` into ``folder`` unless it is there; return its path.

    Only regular files and folders below that prefix are written, and nothing outside ``folder``.
    """
    source, stamp = folder / "vendor" / "llama.cpp", folder / ".archive-sha256"
    if stamp.is_file() and stamp.read_text().strip() == sha256 and (source / "CMakeLists.txt").is_file():
        return source
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = Path(member.name).parts[1:]  # the first part is PACKAGE-VERSION
            if (
                parts[:2] != ("vendor", "llama.cpp")
                or ".." in parts
                or not (member.isfile() or member.isdir())
            ):
                continue
            target = folder.joinpath(*parts)
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            data = tar.extractfile(member)
            assert data is not None  # isfile() was true
            with data, target.open("wb") as out:
                shutil.copyfileobj(data, out)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)
            os.utime(target, (member.mtime, member.mtime))  # unpacking again must not rebuild everything
    if not (source / "CMakeLists.txt").is_file():
        raise PeersError(f"{archive.name} holds no vendor/llama.cpp: take a source distribution of {PACKAGE}")
    stamp.write_text(sha256 + "\n")
    return source


def build_digest(sha256: str, flags: tuple[str, ...], compiler: str, machine: Machine) -> str:
    """What a build depends on, as 12 hex digits; -march=native makes the CPU's features part of it."""
    text = json.dumps([sha256, list(flags), compiler, machine.cpu, list(machine.features), list(TARGETS)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _run_logged(command: list[str], log: Path, what: str) -> None:
    # Without the ceiling llama.cpp's build number would be taken from the git repository around it.
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(log.parent.resolve())}
    with log.open("ab") as out:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env).returncode
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise PeersError(f"{what} failed, the whole log is {log}; its end:\n{tail}")


def ensure_build(
    root: Path,
    variant: str,
    machine: Machine,
    *,
    sdist: Path | None = None,
    jobs: int = 2,
    update: bool = False,
) -> Build:
    """Return the build of ``variant`` under ``root`` (bench/peers), making what is not there yet.

    An interrupted compilation continues where it stopped. Raises `PeersError`.
    """
    variant = resolve_variant(variant, machine)
    check_tools()
    root.mkdir(parents=True, exist_ok=True)
    archive = sdist if sdist is not None else fetch_sdist(root / "dist", update=update)
    if not archive.is_file():
        raise PeersError(f"{archive} does not exist: --sdist takes a source distribution of {PACKAGE}")
    version, sha256 = archive_version(archive.name), file_sha256(archive)
    source = unpack_source(archive, sha256, root / "sdist")
    flags = COMMON_FLAGS + variant_flags(variant, machine)
    compiler = subprocess.run(
        ["clang-19", "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]
    folder = root / f"build-{variant}"
    build = Build(variant, folder, version, compiler, flags, build_digest(sha256, flags, compiler, machine))

    stamp = folder / "peers-build.json"
    if stamp.is_file() and json.loads(stamp.read_text()).get("digest") == build.digest:
        if all(build.program(name).is_file() for name in TARGETS):
            return build
    wanted = folder / "peers-wanted"
    if wanted.is_file() and wanted.read_text() != build.digest:
        shutil.rmtree(folder)  # another source, compiler or CPU: objects of the old one must not survive
    folder.mkdir(exist_ok=True)
    wanted.write_text(build.digest)
    log = root / f"build-{variant}.log"
    print(
        f"building llama.cpp ({PACKAGE} {version}, {variant}) in {folder}, log {log}",
        file=sys.stderr,
        flush=True,
    )
    _run_logged(["cmake", "-G", "Ninja", "-S", str(source), "-B", str(folder), *flags], log, "cmake")
    _run_logged(
        ["nice", "-n", "5", "ninja", "-C", str(folder), f"-j{jobs}", *TARGETS], log, "the build of llama.cpp"
    )
    stamp.write_text(json.dumps(build.as_dict(), indent=1) + "\n")
    return build


def ensure_server(build: Build, root: Path, jobs: int = 2) -> Path:
    """Return ``llama-server`` of a finished build, compiling it into the same folder if it is not there yet.

    The objects of the build are used again; only what the server adds is compiled. Raises `PeersError`.
    """
    program = build.program("llama-server")
    stamp = build.folder / "peers-server"
    if program.is_file() and stamp.is_file() and stamp.read_text() == build.digest:
        return program
    log = root / f"build-{build.variant}-server.log"
    print(f"building llama-server in {build.folder}, log {log}", file=sys.stderr, flush=True)
    source = root / "sdist" / "vendor" / "llama.cpp"
    flags = [*build.flags, "-DLLAMA_BUILD_SERVER=ON"]
    _run_logged(["cmake", "-G", "Ninja", "-S", str(source), "-B", str(build.folder), *flags], log, "cmake")
    ninja = ["nice", "-n", "5", "ninja", "-C", str(build.folder), f"-j{jobs}", "llama-server"]
    _run_logged(ninja, log, "the build of llama-server")
    stamp.write_text(build.digest)
    return program

"""The C units under libFuzzer with ASan and UBSan: ``fuzz/c/*.c`` with the executor and the portable unit, one program.

Needs clang with its runtime libraries; without it these targets are left out, with a line that says so. What was
compiled is kept under ``build/fuzz``, and made anew when a source has changed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fuzz.driver import children_cpu

ROOT = Path(__file__).parents[1]
HERE = ROOT / "fuzz" / "c"
SOURCES = ROOT / "kernels_c" / "src"
INCLUDES = [ROOT / "kernels_c" / "include", SOURCES, HERE]
BUILD = ROOT / "build" / "fuzz"

#: Name of a target -> its file in ``fuzz/c``.
TARGETS = {"c-plan": "plan.c", "c-pack": "pack.c", "c-sampler": "sampler.c", "c-encode": "encode.c"}

FLAGS = (
    "-std=gnu11", "-O1", "-g", "-fno-omit-frame-pointer", "-ffp-contract=fast", "-fno-math-errno",
    "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined",
)  # fmt: skip
#: The executor's memory comes from ``arena.c``, where the sanitizer sees its ends.
RENAMED = tuple(f"-Dplatform_{name}=platform_{name}_of_system" for name in ("map", "unmap", "release"))


def compiler() -> str | None:
    """A clang that has libFuzzer, or None."""
    for name in ("clang", *(f"clang-{n}" for n in range(22, 13, -1))):
        path = shutil.which(name)
        if path:
            found = subprocess.run(
                [path, "-print-runtime-dir"], capture_output=True, text=True
            ).stdout.strip()
            if any(Path(found).glob("*fuzzer*")) or any(Path(found).parent.rglob("*clang_rt.fuzzer*")):
                return path
    return None


def build(name: str, clang: str) -> Path:
    """Compile a target; gives the program.

    Raises:
        subprocess.CalledProcessError: the compiler refuses.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    objects = [_object(path, clang) for path in _library()]
    program = BUILD / name
    harness = HERE / TARGETS[name]
    stamp = _digest([harness, HERE / "choices.h"], *map(str, objects))
    mark = BUILD / f"{name}.{stamp}"
    if not (program.exists() and mark.exists()):
        command = [clang, *FLAGS, "-fsanitize=fuzzer", *_includes(), str(harness), *map(str, objects)]
        subprocess.run([*command, "-o", str(program), "-lm", "-pthread"], check=True)
        mark.touch()
    return program


def _library() -> list[Path]:
    """Everything that is linked to each target."""
    own = [path for path in SOURCES.glob("*.c") if not path.name.startswith("platform_")]
    more = [
        SOURCES / "platform_linux.c",
        SOURCES / "encode" / "encode.c",
        SOURCES / "units" / "unit_generic.c",
        SOURCES / "units" / "probe_generic.c",
    ]
    return [*sorted(own), *more, HERE / "arena.c"]


def _object(path: Path, clang: str) -> Path:
    headers = [*SOURCES.rglob("*.h"), *INCLUDES[0].glob("*.h"), *HERE.glob("*.h")]
    target = BUILD / f"{path.stem}-{_digest([path, *sorted(headers)], clang, *FLAGS)}.o"
    if not target.exists():
        renamed = RENAMED if path.name == "platform_linux.c" else ()
        command = [clang, *FLAGS, "-fsanitize=fuzzer-no-link", *_includes(), *renamed, "-c", str(path)]
        subprocess.run([*command, "-o", str(target.with_suffix(".new"))], check=True)
        target.with_suffix(".new").replace(target)
    return target


def _includes() -> list[str]:
    return [part for folder in INCLUDES for part in ("-I", str(folder))]


def _digest(paths: Iterable[Path], *more: str) -> str:
    digest = hashlib.sha256("\0".join(more).encode())
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def fuzz(name: str, seconds: float, *, seed: int, findings: Path) -> dict[str, Any]:
    """Run a target for a while; see :func:`fuzz.driver.fuzz`. ``skipped`` says why it was not run."""
    result: dict[str, Any] = {
        "target": name,
        "engine": "libfuzzer",
        "executions": 0,
        "seconds": 0.0,
        "cpu_seconds": 0.0,
    }
    clang = compiler()
    if clang is None:
        return {**result, "findings": [], "skipped": "there is no clang with libFuzzer here"}
    folder = findings / name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        program = build(name, clang)
    except subprocess.CalledProcessError as error:  # the other targets may be built all the same
        (folder / "told.txt").write_text(str(error), "utf-8")
        return {**result, "findings": ["told.txt"], "skipped": "it does not compile"}
    corpus = folder / ".corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={max(1, int(seconds))}", f"-seed={seed}", "-max_len=4096", "-timeout=10"]
    command = [str(program), *options, f"-artifact_prefix={folder}/", "-print_final_stats=1", str(corpus)]
    begin, cpu = time.monotonic(), children_cpu()
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    told = done.stderr
    if done.returncode != 0:
        (folder / "told.txt").write_text(told[-20_000:], "utf-8")
    counted = re.findall(r"stat::number_of_executed_units:\s*(\d+)", told) or re.findall(
        r"^#(\d+)", told, re.M
    )
    coverage = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", told)
    found = sorted(p.name for p in folder.glob("*-*") if p.is_file())
    names = ("edges", "features", "corpus")
    return {
        **result, "executions": int(counted[-1]) if counted else 0,
        "seconds": round(time.monotonic() - begin, 1), "cpu_seconds": round(children_cpu() - cpu, 1),
        "coverage": dict(zip(names, map(int, coverage[-1]), strict=True)) if coverage else None,
        "findings": found or (["told.txt"] if done.returncode else []),
    }  # fmt: skip

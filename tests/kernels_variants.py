"""Units that this machine cannot run as they are, compiled in another way that it can; see ``build_variant``."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from ggfw import kernels_c

AVX512 = (
    "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx2", "-mfma", "-mf16c",
)  # fmt: skip

#: name -> (unit, flags)
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    # the instruction of AVX-512 VNNI in place of AVX-VNNI's
    "avxvnni-evex": (
        "avxvnni",
        ("-DGGFW_VNNI_OF_AVX512", "-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512vl", "-mavx512vnni"),
    ),
    # tile instructions modelled in C
    "amx-model": ("amx", ("-DGGFW_TILE_MODEL", "-mavx512bf16", *AVX512)),
}


@cache
def build_module() -> ModuleType:
    """``kernels_c/build.py`` of this checkout."""
    path = Path(kernels_c.__file__).resolve().parent / "build.py"
    spec = importlib.util.spec_from_file_location("ggfw_kernels_build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def variant(name: str) -> str:
    """Path of a variant's library, compiled on first use; skips the test where it cannot be made or run."""
    build = build_module()
    isa, flags = VARIANTS[name]
    if build.Target.here().family != "x86_64" or not shutil.which(build.compiler_from_environ()[0]):
        pytest.skip("needs x86-64 and a C compiler")
    if missing := build.unsupported_flags(build.compiler_from_environ(), build.Target.here(), flags):
        pytest.skip(f"the compiler does not know {' '.join(missing)}")
    path = str(build.build_variant(name, isa, flags))
    if not kernels_c.usable(path):
        pytest.skip(f"{name} needs {kernels_c.missing(path)}")
    return path

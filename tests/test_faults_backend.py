"""A kernel library of a plugin that computes something a little wrong: verify names the step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from kernels_variants import build_module
from test_faults_plugins import registry_of

from ggfw.descriptors import KernelBackend
from ggfw.verify import verify

DATA = Path(__file__).parent / "data" / "models"

#: Function of the C library that gives a thousandth too much -> a part of the name of the step that verify names.
WRONG = {"sqrtf": "norm"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no compiler")
@pytest.mark.parametrize("function", list(WRONG))
def test_verify_names_the_wrong_step(function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = tmp_path / "wrong.h"
    header.write_text(
        f"#include <math.h>\nstatic inline float wrong_{function}(float x) {{ return {function}(x) * 1.001f; }}\n"
        f"#define {function} wrong_{function}\n"
    )
    flags = ["-O1", "-include", str(header)]
    library = build_module().build_variant("wrong", "generic", flags, libraries=tmp_path)
    spec = KernelBackend(name="wrong", probe=lambda: 10**6, library=lambda: str(library))
    monkeypatch.setattr("ggfw.registry._default", registry_of(monkeypatch, "kernel_backends", spec))
    path = DATA / "llama.gguf"
    prompt = json.loads(path.with_suffix(".json").read_text())["prompts"]["p12"]
    right = verify(path, prompt, threads=1, backend="generic")
    assert right.ok
    found = verify(path, prompt, threads=1, backend="wrong")
    assert not found.ok and found.first_bad is not None
    assert WRONG[function] in found.first_bad.step and found.first_bad.error > 1e-5

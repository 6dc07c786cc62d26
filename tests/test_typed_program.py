"""The library is typed: a program that uses all of it passes ``mypy --strict``, and does what its types say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import ggfw
from ggfw.testing import tiny_gguf

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests" / "data" / "typed_program.py"

WRONG = {
    "model.generate('a').txt": "txt",
    "model.stream('a').text": "text",
    "for piece in model.stream('a', print): pass": "Result",
    "model.chat('a question')": "Sequence",
    "model.embed('a').vector": "vector",
    "ggfw.load('m.gguf', threads='2')": "threads",
    "ggfw.load_skills(3)": "load_skills",
}


@pytest.mark.slow
def test_a_users_program_passes_strict_mypy_and_wrong_ones_do_not(tmp_path: Path) -> None:
    view = tmp_path / "view" / "ggfw"  # mypy cannot see through an editable install's finder
    view.mkdir(parents=True)
    for path in [
        *(ROOT / "core").iterdir(),
        *(ROOT / name for name in ("cli", "kernels_c", "plugins", "server")),
    ]:
        (view / path.name).symlink_to(path)
    wrong = "\n    ".join(WRONG)
    (tmp_path / "wrong.py").write_text(
        f"import ggfw\n\n\ndef main(model: ggfw.Model) -> None:\n    {wrong}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", "--no-error-summary",
         f"--cache-dir={tmp_path}/cache", str(PROGRAM), "wrong.py"],
        capture_output=True, text=True, cwd=tmp_path, env={"MYPYPATH": str(view.parent), "PATH": ""},
    )  # fmt: skip
    assert not done.stderr, done.stderr
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert not [line for line in errors if not line.startswith("wrong.py")], done.stdout
    for number, (line, word) in enumerate(WRONG.items(), 5):
        assert any(e.startswith(f"wrong.py:{number}:") and word in e for e in errors), (line, done.stdout)


def test_the_program_does_what_its_types_say() -> None:
    spec = importlib.util.spec_from_file_location("typed_program", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with ggfw.load(tiny_gguf(n_ctx=2048), n_parallel=2) as model:
        texts = module.main(model)
    assert all(isinstance(text, str) for text in texts) and "64" in texts and "64 numbers" in texts, texts

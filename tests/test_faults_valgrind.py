"""Loading, running and unloading ten times under valgrind: nothing of ours is lost, or read before it was written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from tiny_models import write_llama

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("valgrind") is None, reason="there is no valgrind"),
]

CODE = """
import sys, ggfw
from pathlib import Path
from ggfw.packed_cache import PackedCache
cache = PackedCache(Path(sys.argv[3]), 64)
for n in range(int(sys.argv[2])):  # packed, then mapped and moved into memory of its own
    with ggfw.load(sys.argv[1], threads=2, ctx=64, packed_cache=cache if n % 3 else None) as model:
        model.generate("ab", max_tokens=3, temperature=0.8, seed=1, dry_multiplier=1.0, logprobs=2)
        model.embed("abc")
print("done")
"""


def complaints(report: Path) -> list[str]:
    """What valgrind says of code or memory of our libraries; the interpreter's own business is not ours."""
    found = []
    for error in ElementTree.parse(report).getroot().iter("error"):
        frames = [frame for stack in error.iter("stack") for frame in stack.iter("frame")]
        if any("libggfw" in (frame.findtext("obj") or "") for frame in frames):
            where = " < ".join(frame.findtext("fn") or "?" for frame in frames[:8])
            found.append(f"{error.findtext('kind')}: {where}")
    return found


def test_nothing_is_lost(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    model = write_llama(tmp_path / "m.gguf", n_layer=1, n_ctx=64)
    done = subprocess.run(
        ["valgrind", "--leak-check=full", "--show-leak-kinds=definite,possible", "--num-callers=40", "--xml=yes",
         f"--xml-file={report}", sys.executable, "-c", CODE, str(model), "10", str(tmp_path / "packed")],
        capture_output=True, text=True, timeout=900, env={**os.environ, "PYTHONMALLOC": "malloc"},
    )  # fmt: skip
    assert list((tmp_path / "packed").iterdir())
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr[-3000:]
    assert complaints(report) == []

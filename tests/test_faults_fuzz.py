"""Every fuzzer for a few seconds: no crash, no hang, no error but those that are right."""

from __future__ import annotations

import importlib.util
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from fuzz import native  # noqa: E402
from fuzz.choices import Choices, cuts, spoiled  # noqa: E402
from fuzz.driver import fuzz  # noqa: E402
from fuzz.ledger import Ledger, table  # noqa: E402
from fuzz.target import TARGETS  # noqa: E402


def test_choices_end_well() -> None:
    c = Choices(b"\x01")
    assert c.below(5) == 1 and c.text() == "" and c.edge() == 0 and c.json() is None
    assert (
        cuts(Choices(bytes(range(9))), "some text")
        and "".join(cuts(Choices(b"\5\6"), "some text")) == "some text"
    )
    assert spoiled(Choices(b""), b"abc") == b"abc"


def test_findings_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that crashes is reported with the input that did it."""
    (tmp_path / "crashing.py").write_text(
        "import os\nfrom fuzz.target import Target\n"
        "def run(data):\n    if data == b'boom': os.abort()\n    assert data != b'wrong'\n"
        "def target(): return Target(run, [b'fine', b'wrong', b'boom'])\n"
    )
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n"
        "import fuzz.target; fuzz.target.TARGETS['c'] = 'crashing:target'\n"
        "from fuzz.__main__ import main; sys.exit(main())"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fuzz.driver.python", lambda: sys.executable)
    (tmp_path / ".running").touch()
    folder = tmp_path / "findings" / "c"
    folder.mkdir(parents=True)
    (folder / ".running").write_bytes(bytes(40 + (1 << 16)))
    done = subprocess.run(
        [sys.executable, "-c", code, "--inside", "c", "--seconds", "1", "--engine", "mutate", "--findings", "findings"],
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == -6
    assert (folder / ".running").read_bytes()[40:44] == b"boom"
    assert [p.read_bytes() for p in folder.glob("AssertionError-*.input")] == [b"wrong"]


def result(target: str, **more: Any) -> dict[str, Any]:
    found = {"engine": "mutate", "executions": 10, "seconds": 2.0, "cpu_seconds": 1.5, "findings": []}
    return {"target": target, "coverage": None, "grown_mib": 1, **found, **more}


def test_runs_add_up(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "a" / "report.json")
    assert ledger.read() == {} and ledger.runs("gguf") == 0 and ledger.left("gguf", 5) == 5
    ledger.add(result("gguf", findings=["b.input"]))
    ledger.add(result("load"))
    counted = {"edges": 7, "features": 9, "corpus": 3}
    ledger.add(
        result("gguf", engine="atheris", coverage=counted, grown_mib=4, findings=["a.input", "b.input"])
    )
    ledger.add(result("gguf", coverage={**counted, "edges": 5}))
    ledger.add({"target": "c-plan", "skipped": "no compiler", "findings": []})
    entry = ledger.read()["gguf"]
    assert {k: v for k, v in entry.items() if k not in ("first", "last")} == {
        "runs": 3, "executions": 30, "seconds": 6.0, "cpu_seconds": 4.5, "engine": "atheris mutate", "edges": 7,
        "features": 9, "corpus": 3, "grown_mib": 4, "findings": ["a.input", "b.input"],
    }  # fmt: skip
    assert (
        ledger.left("gguf", 5) == 0.5
        and ledger.left("gguf", 4) == 0
        and set(ledger.read()) == {"gguf", "load"}
    )
    lines = table(ledger.read(), ["gguf", "load", "c-plan"]).splitlines()
    assert lines[1].split()[:6] == ["gguf", "3", "4", "6", "30", "7"] and "never run" in lines[3]


def test_targets_that_have_had_their_time_are_left_out(tmp_path: Path) -> None:
    """Those that have had least come first; what they do is added to the report."""
    report = tmp_path / "report.json"
    for name, cpu in (("skills", 50.0), ("plugins", 99.5), ("gguf", 200.0)):
        Ledger(report).add(result(name, cpu_seconds=cpu))
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "plugins", "gguf", "skills", "--seconds", "1", "--total", "100", "--engine",
         "mutate", "--report", str(report), "--findings", str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall('"target": "([^"]+)"', done.stdout) == ["skills", "plugins"]
    found = Ledger(report).read()
    assert [found[name]["runs"] for name in ("skills", "plugins", "gguf")] == [2, 2, 1]
    assert found["skills"]["executions"] > 10 and found["skills"]["cpu_seconds"] > 50.2


@pytest.mark.slow
def test_growth_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that keeps more than it may is reported, with its sizes over the time."""
    (tmp_path / "growing.py").write_text(
        "from fuzz.target import Target\nkept = []\n"
        "def run(data): kept.append(bytearray(20_000))\n"
        "def target(): return Target(run, [b'a'], grows=8)\n"
    )
    start = tmp_path / "start.py"
    start.write_text(
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n"
        "import fuzz.target; fuzz.target.TARGETS['g'] = 'growing:target'\n"
        "del sys.argv[1:3]\n"  # -m fuzz
        "from fuzz.__main__ import main; sys.exit(main())"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {start} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr("fuzz.driver.python", lambda: str(python))
    result = fuzz("g", 1.5, seed=1, engine="mutate", findings=tmp_path / "found")
    assert result["grown_mib"] > 8 and result["resident_mib"][-1] > result["resident_mib"][0] + 8
    assert [name.split("-")[0] for name in result["findings"]] == ["grown"]


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="there is no atheris")
def test_comparisons_are_given_back() -> None:
    """What atheris keeps of comparisons is not taken for a leak of the target."""
    code = """
import sys, atheris
from fuzz.driver import _plain_comparisons
class Result:
    alive = 0
    def __init__(self): Result.alive += 1
    def __del__(self): Result.alive -= 1
class Value:
    def __eq__(self, other): return Result()
@atheris.instrument_func
def compare(a, b): return a == b
runs = 0
def one(data):
    global runs
    if not runs: _plain_comparisons(atheris)
    runs += 1
    compare(Value(), Value())
    if runs == 50:
        print(Result.alive, flush=True)
atheris.Setup([sys.argv[0], "-runs=100"], one)
atheris.Fuzz()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout == "0\n", done.stdout + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TARGETS))
def test_fuzzers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = fuzz(name, 3, seed=random.SystemRandom().randrange(10**6), engine="mutate", findings=tmp_path)
    told = [path.read_text("utf-8", "replace")[-1500:] for path in (tmp_path / name).glob("*.txt")]
    assert not result["findings"], "\n".join(told)
    assert result["executions"] > 0


@pytest.mark.slow
@pytest.mark.skipif(native.compiler() is None, reason="there is no clang with libFuzzer")
@pytest.mark.parametrize("name", list(native.TARGETS))
def test_native_fuzzers(name: str, tmp_path: Path) -> None:
    result = native.fuzz(name, 3, seed=random.SystemRandom().randrange(10**6), findings=tmp_path)
    told = [path.read_text("utf-8", "replace")[-3000:] for path in (tmp_path / name).glob("told.txt")]
    assert not result["findings"], "\n".join(told)
    assert result["executions"] > 0


@pytest.mark.slow
@pytest.mark.skipif(native.compiler() is None, reason="there is no clang with libFuzzer")
def test_what_native_fuzzers_have_found() -> None:
    for path in sorted((ROOT / "tests" / "data" / "hostile").glob("c-*.bin")):
        name = next(name for name in native.TARGETS if path.name.startswith(name))
        program = native.build(name, native.compiler() or "")
        done = subprocess.run([str(program), str(path)], capture_output=True, text=True, errors="replace")
        assert done.returncode == 0, f"{path.name}: {done.stderr[-3000:]}"

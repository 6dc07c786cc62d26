"""`ggfw quantize` beside llama.cpp's quantizer: the distance of what both make to the float32 file, and their time.

    pytest -m slow -s tests/test_quantize_peers.py

prints a row per model and type. The float32 file is what the published file stands for, written out: no real model is
published in float32 small enough. ``GGFW_LLAMA_QUANTIZE`` names the other program; by default it is where
``make peers`` puts it.
"""

from __future__ import annotations

import os
import pydoc_data.topics
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggfw
from ggfw.quantize import quantize_file

pytestmark = pytest.mark.slow

TYPES = ["Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"]
ROOT = Path(__file__).resolve().parents[1]
CTX, N_THREADS, PAIRS = 512, 2, 5

#: What the script ``ggfw`` does.
START = "from ggfw.cli import start; raise SystemExit(start())"

#: With compiled modules, as an installed package has them: a checkout may be told to write none.
ENVIRON = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

#: Chunks of each text, and positions of which float64 rows are made at once: 262k columns are large.
CHUNKS, ROWS = 1, 32


@pytest.fixture(scope="module")
def theirs() -> str:
    builds = sorted((ROOT / "bench" / "peers").glob("build*/bin/llama-quantize"))
    given = os.environ.get("GGFW_LLAMA_QUANTIZE") or (builds and str(builds[0]))
    if not given:
        pytest.skip("llama-quantize is not here; GGFW_LLAMA_QUANTIZE names it")
    return given


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def floats(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model with all its matrices in float32."""
    target = tmp_path_factory.mktemp("floats") / f"{request.param}-f32.gguf"
    return quantize_file(
        request.getfixturevalue(f"{request.param}_path"), target, "F32", threads=N_THREADS
    ).path


def ours(source: Path, target: Path, to: str) -> list[str]:
    return [
        sys.executable, "-c", START, "quantize", str(source), str(target), to, "--force", "--threads", str(N_THREADS),
    ]  # fmt: skip


def chunks(model: ggfw.Model) -> list[list[int]]:
    """Prose, program text and a licence, each from its beginning."""
    topics = "".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    texts = [topics[:40_000], topics[200_000:240_000], Path(np.__file__).read_text(encoding="utf-8")]
    texts.append((ROOT / "docs" / "how-to.md").read_text(encoding="utf-8"))
    cut = [model.tokenizer.encode(text)[: CHUNKS * CTX] for text in texts]
    return [ids[i : i + CTX] for ids in cut for i in range(0, len(ids), CTX)]


def log_softmax(rows: np.ndarray) -> np.ndarray:
    x = rows.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def divergence(path: Path, texts: list[list[int]], base: list[np.ndarray]) -> np.ndarray:
    """KL(float32 || file) in nats of the second half of each text's positions."""
    found = []
    with ggfw.load(path, ctx=CTX, kv_type="f32") as model:
        for ids, wanted in zip(texts, base, strict=True):
            rows = model.logits(ids)[CTX // 2 :]
            for i in range(0, len(rows), ROWS):
                p, q = log_softmax(wanted[i : i + ROWS]), log_softmax(rows[i : i + ROWS])
                found.append((np.exp(p) * (p - q)).sum(-1))
    return np.concatenate(found)


@pytest.fixture(scope="module")
def reference(floats: Path) -> tuple[list[list[int]], list[np.ndarray]]:
    """Texts, and the float32 logits of the second half of each."""
    with ggfw.load(floats, ctx=CTX, kv_type="f32") as model:
        texts = chunks(model)
        return texts, [model.logits(ids)[CTX // 2 :].copy() for ids in texts]


@pytest.mark.parametrize("to", TYPES)
def test_the_distance_to_float32_is_no_larger(
    floats: Path, theirs: str, reference: Any, to: str, tmp_path: Path
) -> None:
    texts, base = reference
    found = {}
    for name, command in (
        ("ggfw", ours(floats, tmp_path / "ggfw.gguf", to)),
        ("llama", [theirs, str(floats), str(tmp_path / "llama.gguf"), to, str(N_THREADS)]),
    ):
        subprocess.run(command, check=True, capture_output=True)
        found[name] = divergence(tmp_path / f"{name}.gguf", texts, base)
    mine, other = found["ggfw"], found["llama"]
    error = (mine - other).std(ddof=1) / len(mine) ** 0.5
    print(
        f"\n{floats.stem} {to}: mean KL {mine.mean():.3g}, llama.cpp {other.mean():.3g}, "
        f"ratio {mine.mean() / other.mean():.3f}; difference {mine.mean() - other.mean():+.2g} +- {error:.2g} "
        f"({len(mine)} positions)"
    )
    assert (tmp_path / "ggfw.gguf").stat().st_size <= (tmp_path / "llama.gguf").stat().st_size
    assert mine.mean() <= other.mean() + 2 * error


@pytest.mark.parametrize("to", TYPES)
def test_the_time_is_no_longer(floats: Path, theirs: str, to: str, tmp_path: Path) -> None:
    def seconds(command: list[str]) -> tuple[float, float]:
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=ENVIRON)
        took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    target = tmp_path / "q.gguf"
    commands = ours(floats, target, to), [theirs, str(floats), str(target), to, str(N_THREADS)]
    for command in commands:  # the first run reads from the disk
        seconds(command)
    pairs = [[seconds(command) for command in commands] for _ in range(PAIRS)]
    ratios = sorted(mine[0] / other[0] for mine, other in pairs)
    wall, cpu = ([statistics.median(pair[side][i] for pair in pairs) for side in (0, 1)] for i in (0, 1))
    print(
        f"\n{floats.stem} {to}: {wall[0]:.2f} s, llama.cpp {wall[1]:.2f} s, ratio {statistics.median(ratios):.2f} "
        f"({ratios[0]:.2f}-{ratios[-1]:.2f}); processor {cpu[0]:.2f} and {cpu[1]:.2f} s"
    )
    assert statistics.median(ratios) <= 1.0

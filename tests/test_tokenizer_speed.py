"""Being ready quickly: the tokenizer is on the way to the first token."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ggfw.gguf import GGUF
from ggfw.tokenizer import Tokenizer


def _cpu_seconds(work: Callable[[], object]) -> float:
    """Best of five, in processor time, which other processes disturb less."""
    times = []
    for _ in range(5):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def _build_and_encode(path: Path) -> None:
    with GGUF.open(path) as gguf:
        tokenizer = Tokenizer.from_metadata(gguf.metadata)
        assert tokenizer.encode("<bos>Why is the sky blue?", parse_special=True)


def test_smollm2_is_ready(smollm2_path: Path) -> None:
    _build_and_encode(smollm2_path)  # imports
    assert _cpu_seconds(lambda: _build_and_encode(smollm2_path)) < 0.08


def test_gemma3_is_ready(gemma3_path: Path) -> None:
    """262,144 pieces; deriving merges for them took 1.35 s and more."""
    assert _cpu_seconds(lambda: _build_and_encode(gemma3_path)) < 0.5


def test_long_texts(gemma3_path: Path) -> None:
    with GGUF.open(gemma3_path) as gguf:
        tokenizer = Tokenizer.from_metadata(gguf.metadata)
    text = "".join(f"Sentence number {n} has words, e.g. <b>{n * 7919}</b>.\n" for n in range(2_000))
    assert _cpu_seconds(lambda: tokenizer.encode(text)) < 0.5


def test_import_brings_no_weight() -> None:
    code = "import sys, ggfw.tokenizer; print([m for m in ('tokenizers', 'regex', 'jinja2') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"

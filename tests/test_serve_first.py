"""The first request after a start of `ggfw serve` is as fast as later ones, though nothing of the file is in memory."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess
from tiny_models import write_llama

import ggfw
from ggfw.warm_up import warm_up

STARTS = 5


def _drop(folder: Path) -> None:
    """Have the system forget what it holds of the files below ``folder``."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _first_token(server: ServerProcess, i: int) -> float:
    """Seconds to the first token of a request that shares no prefix with earlier ones."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"Question {i}: name {i + 3} rivers in Europe, please."}],
        "max_tokens": 4, "temperature": 0, "stream": True, "cache_prompt": False,
    }  # fmt: skip
    begin = time.perf_counter()
    with server.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        first = 0.0
        for line in answer.iter_lines():
            if not first and '"content"' in line and '"content":""' not in line.replace(" ", ""):
                first = time.perf_counter() - begin
    assert first > 0
    return first


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system cannot be told to forget a file")
@pytest.mark.parametrize("how", ["packed anew", "packed on disk", "mapped"])
def test_the_first_request_waits_for_nothing(smollm2_path: Path, tmp_path: Path, how: str) -> None:
    model = Path(shutil.copy(smollm2_path, tmp_path / "model.gguf"))
    options = ["--ctx", "1024", *{"packed anew": ["--no-mmap"], "mapped": ["--no-repack"]}.get(how, [])]
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    ratios = []
    for start in range(STARTS + (how == "packed on disk")):
        _drop(tmp_path)
        with ServerProcess(model, *options, env=env) as server:
            times = [_first_token(server, i) for i in range(3)]
        if how != "packed on disk" or start:  # the first start stores the weights
            ratios.append(times[0] / times[2])
    assert statistics.median(ratios) <= 1.2, ratios


def test_warming_up_leaves_nothing_behind(tmp_path: Path) -> None:
    with ggfw.load(write_llama(tmp_path / "m.gguf"), ctx=64, repack=False) as model:
        free, before = model.loaded.cache.pools[0].n_free, model.engine.metrics()
        warm_up(model)
        after = model.engine.metrics()
        assert model.loaded.cache.pools[0].n_free == free
        assert after.finished == before.finished == 0
        assert after.generated_tokens == before.generated_tokens == 0
        assert model.generate("a", max_tokens=2).usage.completion_tokens <= 2


def test_embedding_models_warm_up(tmp_path: Path) -> None:
    bert = Path(__file__).parent / "data" / "models" / "bert.gguf"
    with ggfw.load(bert) as model:
        warm_up(model)
        assert len(model.embed(["a"])) == 1

"""Nothing per layer happens in Python, and a decode step is one foreign call."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import tiny_models
from fake_model import wait_until

import ggfw


class CountingLibrary:
    """Passes everything on to a cffi library and counts the calls of its functions."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._lib, name)
        if not callable(value):
            return value

        def call(*args: Any) -> Any:
            self.calls.append(name)
            return value(*args)

        return call


@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {"temperature": 1.0, "seed": 7, "penalty_repeat": 1.1}]
)
def test_one_foreign_call_per_decode_step(tmp_path: Path, params: dict[str, Any]) -> None:
    path = tiny_models.write_llama(tmp_path / "tiny.gguf")
    with ggfw.load(path, threads=1, spec="off") as model:
        ids = model.tokenize("hello")
        model.generate(ids, max_tokens=2, ignore_eos=True, **params)
        executor = model.loaded.executor
        executor._lib = executor._guard._lib = lib = CountingLibrary(executor._lib)
        counts = []
        for n in (5, 25):
            lib.calls.clear()
            assert len(model.generate(ids, max_tokens=n, ignore_eos=True, **params).token_ids) == n
            counts.append(lib.calls.count("ggfw_executor_run"))
            others = [name for name in lib.calls if name != "ggfw_executor_run"]
            assert len(others) <= 3  # making, filling and freeing the sampler, per request
    assert counts == [5, 25]  # the prompt's step draws the first token


def asleep(model: ggfw.Model) -> bool:
    """Whether the engine's thread waits for work."""
    return bool(model.engine._wake._waiters)  # type: ignore[attr-defined]


def calls_per_token(path: Path) -> float:
    """Python function calls in the engine's thread for one more token."""
    counted = 0

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal counted
        counted += event == "call"

    threading.setprofile(profile)
    try:
        with ggfw.load(path, threads=1, spec="off") as model:
            ids = model.tokenize("hello")
            model.generate(ids, max_tokens=2, temperature=0, ignore_eos=True)
            totals = []
            for n in (10, 20):
                tries = []
                for _ in range(9):  # the fewest: a look at the file's time of change comes once a second
                    wait_until(lambda: asleep(model))
                    counted = 0
                    model.generate(ids, max_tokens=n, temperature=0, ignore_eos=True)
                    wait_until(lambda: asleep(model))  # what ends a request is counted whole
                    tries.append(counted)
                totals.append(min(tries))
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    assert sys.getprofile() is None
    return (totals[1] - totals[0]) / 10


def test_python_does_the_same_work_for_2_and_30_layers(tmp_path: Path) -> None:
    shallow = calls_per_token(tiny_models.write_llama(tmp_path / "two.gguf", n_layer=2))
    deep = calls_per_token(tiny_models.write_llama(tmp_path / "thirty.gguf", n_layer=30))
    assert shallow == deep
    assert 0 < deep < 60

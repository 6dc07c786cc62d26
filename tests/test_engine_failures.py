"""What raises on the way of one request ends that request: nobody waits for ever, and the others go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_model import FakeModel, wait_until

import ggfw
from ggfw.engine import Engine
from ggfw.errors import GenerationCanceled, GenerationError
from ggfw.request import Request
from ggfw.sampling import Params

LLAMA = Path(__file__).parent / "data" / "models" / "llama.gguf"


@pytest.fixture
def model() -> Iterator[ggfw.Model]:
    with ggfw.load(LLAMA, n_parallel=2) as model:
        yield model


def goes_on(model: ggfw.Model) -> None:
    """The engine still serves, and the failed request holds nothing."""
    assert model.generate("a", max_tokens=2).finish_reason == "length"
    assert model.engine.n_running == 0 and model.engine.n_waiting == 0
    assert model.loaded.cache.n_pages_used() == 0


def test_a_sampler_that_cannot_be_made(model: ggfw.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise KeyError("no such field")

    with monkeypatch.context() as patched:
        patched.setattr(model.loaded.executor, "new_sampler", refuse)
        handle = model.submit(model.request("a", max_tokens=2))
        with pytest.raises(GenerationError, match="failed: 'no such field'") as caught:
            handle.result(timeout=10)
    assert isinstance(caught.value.__cause__, KeyError)
    goes_on(model)


class Broken:
    """A constraint that raises in the method ``where``."""

    complete, failure = False, None

    def __init__(self, where: str, n_vocab: int) -> None:
        self.where, self.n_vocab = where, n_vocab

    def _or_raise(self, name: str, value: Any) -> Any:
        if name == self.where:
            raise RuntimeError(f"broken {name}")
        return value

    def allows(self, token: int) -> bool:
        return self._or_raise("allows", True)

    def accept(self, token: int) -> None:
        self._or_raise("accept", None)

    def first_bytes(self) -> np.ndarray:
        return self._or_raise("first_bytes", np.ones(256, np.bool_))

    def first_byte(self, token: int) -> int:
        return self._or_raise("first_byte", 0)

    def mask(self) -> np.ndarray:
        return self._or_raise("mask", np.ones(self.n_vocab, np.bool_))

    def bitmask(self) -> np.ndarray:
        return self._or_raise("bitmask", np.full(-(-self.n_vocab // 32), 2**32 - 1, np.uint32))

    def prepare(self) -> None:
        self._or_raise("prepare", None)


@pytest.mark.parametrize("where", ["allows", "accept", "prepare"])
def test_a_constraint_that_raises_ends_its_own_request_only(model: ggfw.Model, where: str) -> None:
    beside = model.submit(model.request("hello", max_tokens=40, ignore_eos=True))
    broken = model.request("a", max_tokens=5, constraint=Broken(where, model.loaded.n_vocab))
    with pytest.raises(GenerationError, match=f"broken {where}"):
        model.submit(broken).result(timeout=10)
    assert len(beside.result(timeout=20).token_ids) == 40
    goes_on(model)


@pytest.mark.parametrize("where", ["read", "begin", "verified"])
def test_memory_that_runs_out_between_steps(
    model: ggfw.Model, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Snapshots and pages are copied there; the engine's thread lives on."""

    def refuse(*_: Any) -> Any:
        raise MemoryError("no room for a copy")

    with monkeypatch.context() as patched:
        patched.setattr(model.engine.reuse, where, refuse)
        handles = [model.submit(model.request("a", max_tokens=2)) for _ in range(3)]
        for handle in handles:
            with pytest.raises(GenerationError, match="no room for a copy"):
                handle.result(timeout=10)
    goes_on(model)


def test_a_cancel_between_two_looks_is_not_lost() -> None:
    """The engine forgets that somebody canceled while that request is still on its way to the scheduler."""
    fake = FakeModel(endless=True, n_parallel=1, n_ctx=1 << 16)
    engine = Engine(fake)
    fake.executor.gate = threading.Event()
    engine.submit(Request([1, 2], Params(temperature=0), max_tokens=3))
    wait_until(lambda: bool(fake.executor.batches))
    late = engine.submit(Request([3, 4], Params(temperature=0)))
    late.cancel()
    engine._any_canceled = False
    fake.executor.gate.set()
    with pytest.raises(GenerationCanceled):
        late.result(10)
    engine.close()


def test_jobs_do_not_wait_for_what_is_announced() -> None:
    engine = Engine(FakeModel())

    def job() -> Any:
        for _ in range(400):
            yield

    begun = time.perf_counter()
    with engine.announce():
        engine.run(job()).result(10)
    assert time.perf_counter() - begun < 1  # not 400 times the time for gathering
    engine.close()


def test_a_job_that_is_canceled_under_way_goes_no_further() -> None:
    """Else clients that go away would leave work behind, as much as they like."""
    engine = Engine(FakeModel())
    pieces, closed = [0], threading.Event()

    def endless() -> Generator[None, None, None]:
        try:
            while True:
                pieces[0] += 1
                yield None
        finally:
            closed.set()

    future = engine.run(endless())
    wait_until(lambda: pieces[0] > 3, 5)
    assert future.cancel() and closed.wait(5)
    assert engine.submit(Request([1, 2], Params(temperature=0), max_tokens=2)).result(5).token_ids
    engine.close()

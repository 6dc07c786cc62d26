"""Models that come and go in a server: nothing of those that went is kept."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_models import write_llama

import ggfw
from ggfw.library import Model
from ggfw.server.entries import Entry
from ggfw.server.pool import Pool


@pytest.fixture
def no_collector() -> Iterator[None]:
    """The collector does not come by itself, as in a server with little to do."""
    gc.disable()
    yield
    gc.enable()


def test_an_unloaded_model_leaves_nothing(tmp_path: Path, no_collector: None) -> None:
    path = write_llama(tmp_path / "m.gguf")
    seen: list[weakref.ref[Any]] = []

    def load(ctx: int | None = None) -> Model:
        model = ggfw.load(path, threads=1, ctx=64)
        parts = (model, model.engine, model.loaded, model.loaded.gguf, model.loaded.executor, model.tokenizer)
        seen.extend(weakref.ref(part) for part in parts)
        return model

    async def use(pool: Pool) -> None:
        async with pool.lease("m", keep_alive=0) as lease:
            await asyncio.to_thread(lease.model.generate, "a", max_tokens=2)

    pool = Pool()
    pool.add(Entry("m", load))
    asyncio.run(use(pool))
    pool.expire()
    end = time.monotonic() + 10
    while any(ref() is not None for ref in seen) and time.monotonic() < end:
        time.sleep(0.01)
    assert [type(ref()).__name__ for ref in seen if ref() is not None] == []
    assert len(seen) == 6
    pool.close()

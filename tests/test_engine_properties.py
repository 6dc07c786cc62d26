"""What holds of the engine under any requests: pages, streams, and neighbours of one whose logits are not finite."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_model import FakeModel, wait_until
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import write_llama

import ggfw
from ggfw.cache import PAGE_SIZE
from ggfw.chat.deltas import TextDelta
from ggfw.engine import Engine
from ggfw.errors import GenerationError, NonFiniteLogits
from ggfw.gguf import GGUF
from ggfw.request import Request
from ggfw.sampling import Params

# -- pages ------------------------------------------------------------------------------------------------------------


def following(history: list[int]) -> int:
    """The token behind a text: any change of what is in the cache changes it."""
    return zlib.crc32(bytes(history)) % 200


def policy(history: list[int], n_prompt: int) -> np.ndarray:
    row = np.zeros(264, np.float32)
    row[following(history)] = 1
    return row


def answer(prompt: list[int], n: int) -> list[int]:
    text = list(prompt)
    for _ in range(n):
        text.append(following(text))
    return text[len(prompt) :]


asked = st.tuples(
    st.integers(0, 3),  # which beginning
    st.integers(0, 70),  # how much of it
    st.integers(1, 50),  # how much of its own
    st.integers(1, 60),  # how many tokens to draw
    st.booleans(),  # whether it shares
    st.integers(0, 9),  # 0: canceled
)


@settings(max_examples=40, deadline=None)
@example([(0, 0, 25, 60, True, 2), (3, 0, 47, 60, True, 9), (3, 0, 10, 41, True, 9)] * 4, 18, 1, 64, 3)
@given(
    st.lists(asked, min_size=1, max_size=14),
    st.integers(4, 20),
    st.integers(1, 5),
    st.integers(8, 64),
    st.integers(0, 3),
)
def test_any_requests_on_any_pool_get_what_they_get_alone(
    jobs: list[tuple[int, int, int, int, bool, int]], n_pages: int, n_parallel: int, max_rows: int, kept: int
) -> None:
    model = FakeModel(policy=policy, n_ctx=256, n_parallel=n_parallel, max_rows=max_rows)
    [pool] = model.cache.pools
    pool.n_pages = n_pages
    model.executor.memory.pages = [np.full((n_pages, PAGE_SIZE), -1, np.int64)]
    engine = Engine(model)
    engine.reuse.tree.budget = kept * 3 * model.executor.memory.page_bytes[0]
    handles = []
    for number, (which, n_common, n_own, n, shares, end) in enumerate(jobs):
        prompt = [which] * n_common + [(7 * (number % 3) + i) % 200 for i in range(n_own)]
        request = Request(prompt, Params(temperature=0), max_tokens=n, ignore_eos=True, cache_prompt=shares)
        handles.append((prompt, n, engine.submit(request)))
        if not end:
            handles[-1][2].cancel()
    for prompt, n, handle in handles:
        try:
            assert list(handle.result(20).token_ids) == answer(
                prompt, min(n, n_pages * PAGE_SIZE - len(prompt), 256 - len(prompt))
            )
        except GenerationError as error:
            done = list(error.partial.token_ids)
            assert handle.canceled and done == answer(prompt, len(done))
    wait_until(lambda: not engine.scheduler)
    assert pool.n_used == 0
    engine.reuse.tree.clear()
    assert pool.n_free == pool.n_pages
    engine.close()


# -- streams ----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(st.text("ab😀é\n", max_size=12).map(str.encode), st.binary(max_size=24)),
    st.lists(st.text("ab😀é\n", min_size=1, max_size=3), max_size=3),
    st.integers(1, 30),
    st.integers(0, 2),
)
def test_a_stream_joined_is_the_text(script: bytes, stops: list[str], limit: int, taken: int) -> None:
    """Whatever the bytes are, valid or not, wherever tokens and reads cut them, and whatever ends the answer."""
    model = FakeModel(list(script))
    engine = Engine(model)

    def request() -> Request:
        return Request([5, 6], Params(temperature=0), max_tokens=limit, stop=stops)

    whole = engine.submit(request()).result(5)
    handle = engine.submit(request())
    streamed = iter(handle)
    pieces = [delta for _, delta in zip(range(taken), streamed, strict=False)]
    handle.result(5)  # the rest has piled up by now
    pieces += streamed
    assert all(isinstance(delta, TextDelta) for delta in pieces)
    assert "".join(delta.text for delta in pieces) == whole.text
    cut = len(script) >= limit
    text = script[:limit].decode("utf-8", "replace")
    ends = [at + len(stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not ends:
        assert (whole.text, whole.finish_reason) == (text, "length" if cut else "stop")
    else:
        assert whole.finish_reason == "stop" and whole.stop in stops
        assert text.startswith(whole.text + str(whole.stop)) and len(whole.text + str(whole.stop)) == min(
            ends
        )
    engine.close()


# -- logits that are not finite ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_neighbours_and_successors_of_a_broken_request(tmp_path: Path, kv_type: str) -> None:
    """A token whose embedding is NaN breaks the requests that hold it; pages that they leave do no harm to others."""
    poison = 200
    path = write_llama(tmp_path / "tiny.gguf")
    with GGUF.open(path) as gguf:
        info = gguf.tensors["token_embd.weight"]
        row = np.ascontiguousarray(info.data).reshape(-1).view(np.float32).reshape(-1, 32)[poison].tobytes()
    data = path.read_bytes()
    assert data.count(row) == 1
    path.write_bytes(data.replace(row, np.full(32, np.nan, np.float32).tobytes()))
    options: dict[str, Any] = {
        "temperature": 0,
        "max_tokens": 40,
        "ignore_eos": True,
        "logit_bias": {poison: -1e9},
    }
    prompts = [[5 + i, 7, 9] * (4 + 9 * i) for i in range(3)]
    with ggfw.load(path, threads=1, ctx=256, n_parallel=4, kv_type=kv_type) as model:
        alone = [model.generate(p, cache_prompt=False, **options).token_ids for p in prompts]
        for _ in range(3):
            broken = [
                model.submit(model.request([*prompts[i], poison, *prompts[2]], **options)) for i in range(2)
            ]
            beside = [model.submit(model.request(p, **options)) for p in prompts]
            for handle in broken:
                with pytest.raises(NonFiniteLogits):
                    handle.result(30)
            assert [handle.result(30).token_ids for handle in beside] == alone
            # Their pages are free now, and taken next.
            assert [model.generate(p, cache_prompt=False, **options).token_ids for p in prompts] == alone
            again = [model.submit(model.request(p, cache_prompt=False, **options)) for p in prompts]
            assert [handle.result(30).token_ids for handle in again] == alone
        assert model.loaded.cache.n_pages_used() == 0

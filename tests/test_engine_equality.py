"""A request's answer is its own: alone or together, cold or warm, preempted or not, bit for bit on float32 files."""

from __future__ import annotations

import hashlib
import importlib.util
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_model import FakeModel, wait_until
from test_engine_reuse import DATA, PLAIN, RECURRENT

import ggfw
from ggfw.cache import PAGE_SIZE
from ggfw.engine import Engine
from ggfw.errors import ContextLengthExceeded, DeadlineExceeded, GenerationError, QueueFull
from ggfw.handle import Handle
from ggfw.library import Model
from ggfw.metrics import EngineMetrics
from ggfw.request import Request
from ggfw.result import Result
from ggfw.sampling import Params


def small(name: str | Path, n_pages: int, n_parallel: int = 6, **options: Any) -> Model:
    """A model whose cache has room for so many pages only, all sequences together."""
    model = ggfw.load(
        DATA / f"{name}.gguf" if isinstance(name, str) else name,
        threads=1,
        ctx=512,
        n_parallel=n_parallel,
        ubatch=64,
        max_queue=1000,
        **options,
    )
    for pool in model.loaded.cache.pools:
        pool.n_pages = n_pages
    return model


def jobs(n: int, seed: int) -> list[dict[str, Any]]:
    """Random requests, of which many share a beginning."""
    dice = random.Random(seed)
    beginnings = [[dice.randrange(5, 250) for _ in range(dice.randrange(1, 90))] for _ in range(4)]
    out = []
    for i in range(n):
        prompt = [
            *dice.choice([*beginnings, []]),
            *(dice.randrange(5, 250) for _ in range(dice.randrange(1, 60))),
        ]
        params: dict[str, Any] = dice.choice(
            [
                {"temperature": 0},
                {"temperature": 1.0, "seed": i, "penalty_repeat": 1.2, "dry_multiplier": 0.5},
            ]
        )
        out.append({"prompt": prompt, "max_tokens": dice.randrange(1, 70), **params})
    return out


def submit(model: Model, job: dict[str, Any], cache: bool = True) -> Handle:
    request = model.request(**job, ignore_eos=True, logprobs=3)
    request.cache_prompt = cache
    return model.submit(request)


def facts(result: Result) -> tuple[Any, ...]:
    return result.token_ids, result.text, tuple(result.logprobs or ())


class Rows:
    """A digest of each whole row of logits from which a request has drawn, by the request's id."""

    def __init__(self, model: Model) -> None:
        self._found: dict[str, list[bytes]] = defaultdict(list)
        stepper = model.engine._stepper
        take = stepper._take_segment

        def noting(work: Any, sampled: int | None, logits: Any, now: float) -> None:
            assert logits is not None and logits.shape[-1] == model.loaded.n_vocab
            self._found[work.request.id].append(
                hashlib.blake2b(logits[-1].tobytes(), digest_size=16).digest()
            )
            take(work, sampled, logits, now)

        stepper._take_segment = noting  # type: ignore[method-assign]

    def of(self, result: Result) -> list[bytes]:
        rows = self._found.pop(result.id)
        assert len(rows) == len(result.token_ids)
        return rows


def compare(name: str | Path, n: int, rounds: int, n_pages: int = 14, **options: Any) -> EngineMetrics:
    """Random requests alone and cold, then all at once, cold and warm: every bit of every row of logits is the same."""
    work = jobs(n, seed=n)
    with small(name, n_pages, **options) as model:
        rows = Rows(model)
        alone = []
        for job in work:
            result = submit(model, job, cache=False).result(600)
            alone.append((facts(result), rows.of(result)))
        assert model.engine.metrics().preemptions == 0
        for number in range(rounds):
            handles = [submit(model, job) for job in work]
            for handle, want, job in zip(handles, alone, work, strict=True):
                result = handle.result(1200)
                assert (facts(result), rows.of(result)) == want, (number, job)
        wait_until(lambda: not model.engine.scheduler)
        metrics = model.engine.metrics()
        assert metrics.failed == 0
        back_to_zero(model)
        return metrics


def back_to_zero(model: Model) -> None:
    cache = model.loaded.cache
    assert cache.n_pages_used() == 0 and cache.n_slots_used == 0
    model.engine.reuse.tree.clear()
    assert all(pool.n_free == pool.n_pages for pool in cache.pools)
    assert len(model.engine.reuse.tree) == 0 and model.engine.metrics().prefix_bytes == 0
    assert model.engine.n_running == model.engine.n_waiting == 0


@pytest.mark.parametrize("name", [*PLAIN, *RECURRENT])
def test_alone_and_together_cold_and_warm(name: str) -> None:
    metrics = compare(name, 40, 2)
    if name != "mamba2":  # it has no pages to run out of, and snapshots of the latest requests only
        assert metrics.preemptions > 3 and metrics.prefix_evictions > 20
        assert metrics.cached_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PLAIN, *RECURRENT, "qwen3", "mixtral", "falcon-h1", "phi3-long"])
def test_two_hundred_alone_and_together(name: str) -> None:
    compare(name, 200, 3)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["smollm2_path", "gemma3_path"])
def test_quantised_files_with_one_arithmetic(which: str, request: pytest.FixtureRequest) -> None:
    metrics = compare(request.getfixturevalue(which), 200, 1, deterministic=True)
    assert metrics.preemptions > 3 and metrics.prefix_evictions > 20 and metrics.cached_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen35", "nemotron_h"])
def test_quantised_hybrids_with_one_arithmetic(name: str, tmp_path: Path) -> None:
    """Random models of real proportions, 300 million parameters."""
    spec = importlib.util.spec_from_file_location(
        "synthetic", Path(__file__).parent.parent / "bench/synthetic.py"
    )
    assert spec is not None and spec.loader is not None
    synthetic = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(synthetic)
    path = tmp_path / f"{name}.gguf"
    synthetic.write(name, path)
    metrics = compare(path, 200, 1, deterministic=True)
    assert metrics.preemptions > 3 and metrics.cached_tokens > 0


@pytest.fixture(scope="module", params=["llama", "gemma3", "qwen35"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    with small(request.param, 20, n_parallel=4) as model:
        yield model


def test_after_any_mix_of_ends_nothing_is_held(model: Model) -> None:
    dice = random.Random(3)
    handles = []
    for job in jobs(60, 5):
        job["timeout"] = dice.choice([None, None, 0.0, 0.02])
        handle = submit(model, job)
        handles.append(handle)
        if dice.random() < 0.3:
            dice.choice(handles).cancel()
        if dice.random() < 0.2:
            time.sleep(0.003)
    ends: dict[str, int] = {}
    for handle in handles:
        try:
            reason = handle.result(60).finish_reason
        except GenerationError as error:
            reason = type(error).__name__
        ends[reason] = ends.get(reason, 0) + 1
    assert {"length", "GenerationCanceled", "DeadlineExceeded"} <= set(ends)
    wait_until(lambda: not model.engine.scheduler)
    back_to_zero(model)


def test_twelve_prompts_with_markers_five_rounds(model: Model) -> None:
    """Prompts of different lengths, each about its own token: what it draws is what it draws alone."""
    work = [{"prompt": [5 + n] * (7 * n + 1), "max_tokens": 30, "temperature": 0} for n in range(12)]
    work += [{"prompt": [*[9] * 50, *job["prompt"]], "max_tokens": 20, "temperature": 0} for job in work]
    alone = [facts(submit(model, job, cache=False).result(60)) for job in work]
    for _ in range(5):
        handles = [submit(model, job) for job in work]
        assert [facts(h.result(60)) for h in handles] == alone


# -- the order of things, on the scripted model ------------------------------------------------------------------------


def scripted(n_pages: int, step_budget: float = 50, **options: Any) -> tuple[FakeModel, Engine]:
    model = FakeModel(endless=True, **{"n_ctx": 512, "n_parallel": 4, **options})
    model.cache.pools[0].n_pages = n_pages
    return model, Engine(model, step_budget=step_budget)


def request(n: int, token: int = 65, **more: Any) -> Request:
    return Request([token] * n, Params(temperature=0), ignore_eos=True, **more)


def test_the_newest_makes_way_and_nobody_sees_an_error() -> None:
    model, engine = scripted(6)
    victims, preempt = [], engine.scheduler._preempt

    def noting(work: Any) -> None:
        victims.append(handles.index(work.handle))
        preempt(work)

    engine.scheduler._preempt = noting  # type: ignore[method-assign]
    model.executor.gate = threading.Event()
    handles = [engine.submit(request(20, 65 + n, max_tokens=100)) for n in range(3)]
    model.executor.gate.set()
    assert all(h.result(10).text == "x" * 100 for h in handles)
    assert victims[0] == 2 and engine.metrics().preemptions == len(victims)
    assert model.cache.n_pages_used() == 0
    engine.close()


@pytest.mark.parametrize(
    "n_pages, jobs",
    [
        (7, [(20, 150)] * 4),
        # Taking the newest each time would take the same one twice in these.
        (9, [(30, 100), (30, 200), (60, 30), (5, 100), (30, 100)]),
        (13, [(30, 150), (60, 200), (20, 200), (60, 150), (60, 30)]),
        (12, [(20, 200), (5, 100), (5, 150), (60, 200)]),
    ],
)
def test_nobody_is_preempted_twice_in_a_row(n_pages: int, jobs: list[tuple[int, int]]) -> None:
    model, engine = scripted(n_pages, n_parallel=5)
    victims = []
    preempt = engine.scheduler._preempt

    def noting(work: Any) -> None:
        victims.append(work)
        preempt(work)

    engine.scheduler._preempt = noting  # type: ignore[method-assign]
    model.executor.gate = threading.Event()
    handles = [engine.submit(request(n, 65 + i, max_tokens=most)) for i, (n, most) in enumerate(jobs)]
    model.executor.gate.set()
    assert all(h.result(20).text == "x" * most for h, (_, most) in zip(handles, jobs, strict=True))
    assert len(victims) >= 2
    assert all(a is not b for a, b in zip(victims, victims[1:], strict=False))
    engine.close()


def test_a_scheduler_that_raises_does_not_leave_anybody_waiting() -> None:
    model, engine = scripted(64)

    def broken(*_: Any) -> Any:
        raise RuntimeError("no plan")

    plan, engine.scheduler._read = engine.scheduler._read, broken  # type: ignore[method-assign]
    with pytest.raises(GenerationError, match="no plan"):
        engine.submit(request(5)).result(5)
    engine.scheduler._read = plan  # type: ignore[method-assign]
    assert engine.submit(request(5, max_tokens=3)).result(5).text == "xxx"
    assert model.cache.n_pages_used() == 0
    engine.close()


def test_what_could_never_fit_is_refused_with_both_numbers() -> None:
    _, engine = scripted(3)
    with pytest.raises(ContextLengthExceeded) as caught:
        engine.submit(request(96))
    assert (caught.value.n_prompt_tokens, caught.value.n_ctx) == (96, 96)
    assert len(engine.submit(request(95)).result(5).token_ids) == 1
    engine.close()


def test_deadlines_pass_in_the_queue_too() -> None:
    model, engine = scripted(64, n_parallel=1)
    model.executor.delay = 0.005
    first = engine.submit(request(5))
    second = engine.submit(request(5, timeout=0.03))
    with pytest.raises(DeadlineExceeded) as caught:
        second.result(5)
    assert caught.value.partial.token_ids == ()
    first.cancel()
    engine.close()


def test_deadlines_pass_while_somebody_else_has_all_pages() -> None:
    model, engine = scripted(4)
    model.cache.pools[0].take(4)
    with pytest.raises(DeadlineExceeded):
        engine.submit(request(5, timeout=0.05)).result(5)
    engine.close()


def test_choices_do_not_overfill_the_queue() -> None:
    model, engine = scripted(64, n_parallel=1)
    engine.max_queue = 2
    model.executor.gate = threading.Event()
    first = engine.submit(request(5, max_tokens=1))
    with pytest.raises(QueueFull):
        engine.submit_choices([request(5, max_tokens=1)] * 3)
    assert engine.n_running + engine.n_waiting == 1, "none of them was queued"
    model.executor.gate.set()
    first.result(5)
    engine.close()


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    model, engine = scripted(512, n_ctx=8192, max_rows=64)
    model.executor.gate = threading.Event()
    long = engine.submit(request(4000, 66, max_tokens=1))
    short = engine.submit(request(30, 67, max_tokens=1))
    model.executor.gate.set()
    short.result(5)
    long.result(5)
    batches = model.executor.batches
    at = next(i for i, b in enumerate(batches) if any(t[0][0] == 67 and t[1] for t in b))
    assert at < 5
    shares = [sum(len(t) for t, _, _ in b if t[0] == 66) / 64 for b in batches[: at + 1]]
    assert min(shares) >= 0.7, "the long one keeps its part"
    engine.close()


def test_chunks_fit_the_budget_while_others_decode() -> None:
    """A model whose rows cost 1 ms each: beside three that decode, a step has at most the rows of 50 ms."""
    model, engine = scripted(512, n_ctx=8192, max_rows=512)
    step = model.executor._step

    def slow(batch: Any) -> Any:
        time.sleep(1e-3 * sum(len(s.tokens) for s in batch.segments))
        return step(batch)

    model.executor._step = slow  # type: ignore[method-assign]
    handles = [engine.submit(request(5, 70 + n, max_tokens=400)) for n in range(3)]
    wait_until(lambda: engine.n_steps > 3)
    engine.submit(request(1500, 66, max_tokens=1)).result(30)
    sizes = [sum(len(t) for t, _, p in b if p) for b in model.executor.batches]
    mixed = [n for n, b in zip(sizes, model.executor.batches, strict=True) if n > 5 and len(b) > 1]
    assert 30 <= sorted(mixed)[len(mixed) // 2] <= 60
    assert max(mixed) <= 100
    for handle in handles:
        handle.cancel()
    engine.close()
    alone, other = scripted(512, n_ctx=8192, max_rows=512)
    other.submit(request(1500, max_tokens=1)).result(10)
    assert [len(b[0][0]) for b in alone.executor.batches] == [512, 512, 476], "alone, as much as fits"
    other.close()


assert PAGE_SIZE == 32  # the numbers above are about such pages
assert Path(DATA).is_dir()

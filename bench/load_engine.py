"""Load on ggfw's engine in this process, without HTTP: mixed requests, and gaps while a long prompt is read."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from load_client import Load, Timing, mixed_loads, percentile, run_load

import ggfw


async def _send(model: Any, load: Load) -> Timing:
    """Run one request of the engine to its end."""
    request = model.request(list(load.prompt), max_tokens=load.new, ignore_eos=True, temperature=0.0)
    timing = Timing(time.perf_counter())
    handle = model.submit(request)
    async for _ in handle:
        timing.arrivals.append(time.perf_counter())
    result = await handle
    timing.done = time.perf_counter()
    timing.prompt_tokens, timing.new_tokens = len(load.prompt), len(result.token_ids)
    return timing


def run_engine(
    path: Path, loads: Sequence[Load], clients: int, *, parallel: int, context: int, threads: int
) -> dict[str, Any]:
    """The same requests without HTTP; see `load_client.run_load`."""
    with ggfw.load(path, threads=threads, ctx=context, n_parallel=parallel, max_queue=len(loads)) as model:

        async def run() -> dict[str, float]:
            await _send(model, Load(loads[0].prompt[:16], 4))
            return await run_load(loads, clients, lambda load: _send(model, load))

        return dict(asyncio.run(run()))


def gap_test(
    path: Path, *, n_prompt: int, n_decoding: int, repeat: int, budget_ms: float, threads: int
) -> dict[str, Any]:
    """Gaps of ``n_decoding`` requests while a prompt of ``n_prompt`` tokens is read, and that prompt's rate.

    Returns:
        Medians over ``repeat`` runs, times in ms, rates in tokens per second: gaps before and while the prompt was
        read (p50, p99, worst; the worst of all runs), the prompt's rate alone and beside, and whether the targets hold
        (p99 within 2x, worst within 4x of the budget, at least 70 % of the rate).
    """
    with ggfw.load(path, threads=threads, ctx=n_prompt + 64, n_parallel=n_decoding + 1) as model:
        runs = [asyncio.run(_gap_run(model, n_prompt, n_decoding, seed)) for seed in range(repeat + 1)][1:]
    found: dict[str, Any] = {
        name: statistics.median(run[name] for run in runs) for name in runs[0] if name != "gap_max_ms"
    }
    found["gap_max_ms"] = max(run["gap_max_ms"] for run in runs)
    found["rate_share"] = statistics.median(run["rate_beside"] / run["rate_alone"] for run in runs)
    found["budget_ms"] = budget_ms
    found["holds"] = {
        "p99 within 2x": found["gap_p99_ms"] <= 2 * budget_ms,
        "worst within 4x": found["gap_max_ms"] <= 4 * budget_ms,
        "rate at least 70 %": found["rate_share"] >= 0.7,
    }
    found["runs"] = runs
    return found


async def _gap_run(model: Any, n_prompt: int, n_decoding: int, seed: int) -> dict[str, float]:
    vocabulary = 40000
    long = mixed_loads(
        2, vocabulary=vocabulary, prompt=(n_prompt, n_prompt), new=(1, 1), seed=1000 + seed
    )  # two: what was read alone must not be found in the cache
    alone = await _send(model, long[0])
    short = mixed_loads(n_decoding, vocabulary=vocabulary, prompt=(32, 32), new=(1, 1), seed=2000 + seed)
    arrivals: list[list[float]] = [[] for _ in short]

    async def decode(load: Load, times: list[float]) -> None:
        request = model.request(list(load.prompt), ignore_eos=True, temperature=0.0)
        handle = model.submit(request)
        try:
            async for _ in handle:
                times.append(time.perf_counter())
        except ggfw.errors.GenerationError:
            pass  # canceled below

        finally:
            handle.cancel()

    tasks = [asyncio.create_task(decode(load, times)) for load, times in zip(short, arrivals, strict=True)]
    while min(map(len, arrivals)) < 32:
        await asyncio.sleep(0.01)
    begin = time.perf_counter()
    beside = await _send(model, long[1])
    end = time.perf_counter()
    await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    before, during = [], []
    for times in arrivals:
        for a, b in zip(times, times[1:], strict=False):
            if b <= begin:
                before.append(b - a)
            elif a <= end:
                during.append(b - a)
    return {
        "gap_alone_p50_ms": 1e3 * percentile(before, 0.5),
        "gap_p50_ms": 1e3 * percentile(during, 0.5),
        "gap_p99_ms": 1e3 * percentile(during, 0.99),
        "gap_max_ms": 1e3 * max(during),
        "rate_alone": n_prompt / alone.first,
        "rate_beside": n_prompt / beside.first,
    }

"""After any mix of ends, good and bad, nothing is held: pages, slots and states are counted."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

import httpx
import pytest
from fake_model import FakeModel, wait_until
from live_server import LiveServer
from test_engine_equality import back_to_zero, jobs, small
from test_engine_failures import Broken

import ggfw
from ggfw.engine import Engine
from ggfw.errors import DeadlineExceeded, GenerationError, QueueFull
from ggfw.handle import Handle
from ggfw.library import Model
from ggfw.request import Request
from ggfw.sampling import Params
from ggfw.server import create_app


def leave_early(url: str, seed: int) -> str:
    """A client that asks for a long answer and hangs up: while it streams, or while it waits for the whole."""
    dice = random.Random(seed)
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "word " * dice.randrange(1, 40)}],
        "max_tokens": 300,
        "stream": seed % 2 == 0,
        "ignore_eos": True,
    }
    with httpx.Client(timeout=httpx.Timeout(20, read=dice.choice([0.02, 0.05]))) as client:
        try:
            if not body["stream"]:
                return str(client.post(f"{url}/v1/chat/completions", json=body).status_code)
            client.timeout = httpx.Timeout(20)
            with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
                for _ in zip(range(dice.randrange(1, 6)), answer.iter_lines(), strict=False):
                    pass
                return "left while streaming"
        except httpx.ReadTimeout:
            return "left while waiting"


def submit_all(model: Model, dice: random.Random, bad_steps: threading.Event) -> list[Handle]:
    """Requests of every kind, some of which are canceled at once, some later."""
    handles: list[Handle] = []
    for i, job in enumerate(jobs(70, dice.randrange(1000))):
        options: dict[str, Any] = {"ignore_eos": True, **job}
        kind = dice.random()
        if kind < 0.15:
            where = dice.choice(["allows", "accept", "prepare"])
            options["constraint"] = Broken(where, model.loaded.n_vocab)
        elif kind < 0.25:
            options |= {"regex": "[a-c]{3,40}", "ignore_eos": False}
        elif kind < 0.5:
            options["timeout"] = dice.choice([0.0, 0.01, 0.05])
        if i == 30:
            bad_steps.set()
        requests = [model.request(**options)]
        if 0.5 < kind < 0.6:
            requests += [model.request(**options) for _ in range(2)]
        try:
            handles += model.engine.submit_choices(requests)
        except QueueFull:
            pass
        if handles and dice.random() < 0.25:
            dice.choice(handles).cancel()
        if dice.random() < 0.3:
            time.sleep(0.002)
    return handles


@pytest.mark.parametrize(
    "name",
    [
        "gemma3",
        "qwen35",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("llama", "gemma4-e2b", "nemotron_h")),
    ],
)
def test_nothing_is_held_after_any_mix_of_ends(name: str) -> None:
    dice = random.Random(11)
    with small(name, 16, n_parallel=4) as model:
        executor, bad_steps = model.loaded.executor, threading.Event()
        step = executor.step

        def sometimes_failing(batch: Any) -> Any:
            if bad_steps.is_set():
                bad_steps.clear()
                raise RuntimeError("the step broke")
            return step(batch)

        executor.step = sometimes_failing  # type: ignore[method-assign]
        app = create_app(model)
        with LiveServer(app) as server:
            said: list[str] = []
            clients = [
                threading.Thread(target=lambda n=n: said.append(leave_early(server.url, n))) for n in range(8)
            ]
            for client in clients:
                client.start()
            handles = submit_all(model, dice, bad_steps)
            ends: Counter[str] = Counter()
            for handle in handles:
                try:
                    ends[handle.result(120).finish_reason] += 1
                except GenerationError as error:
                    broke = "step" if "step of the model" in str(error) else type(error).__name__
                    ends[broke] += 1
            for client in clients:
                client.join(60)
            assert {"length", "GenerationCanceled", "DeadlineExceeded", "GenerationError", "step"} <= set(
                ends
            )
            assert Counter(said)["left while streaming"] == 4 and len(said) == 8
            wait_until(lambda: not model.engine.scheduler, 30)
            wait_until(lambda: model.engine._n_open == 0, 30)
            metrics = model.engine.metrics()
            assert metrics.canceled > 4 and metrics.failed > 4 and metrics.finished > 4
            back_to_zero(model)
            assert metrics.n_slots == (4 if name in ("qwen35", "nemotron_h") else 0)
            assert model.engine.metrics().snapshot_bytes == 0
            # And it serves as before.
            fresh = model.generate([5, 6, 7], max_tokens=20, temperature=0, ignore_eos=True)
    with ggfw.load(model.loaded.gguf.path, threads=1, ctx=512) as other:
        assert (
            other.generate([5, 6, 7], max_tokens=20, temperature=0, ignore_eos=True).token_ids
            == fresh.token_ids
        )


def test_each_of_several_deadlines_is_kept() -> None:
    """Also the later ones, of requests that run and of those that wait."""
    model = FakeModel(endless=True, n_parallel=2, n_ctx=1 << 16)
    model.executor.delay = 0.002
    engine = Engine(model)
    times = (0.3, 0.1, 0.2, 0.15)
    handles = [engine.submit(Request([1, i], Params(temperature=0), timeout=t)) for i, t in enumerate(times)]
    for handle in handles:
        with pytest.raises(DeadlineExceeded):
            handle.result(5)
    assert engine.metrics().failed == len(times)
    engine.close()

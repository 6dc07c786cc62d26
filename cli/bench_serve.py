"""``ggfw bench --serve URL``: the speed of a running server with OpenAI's endpoints, ours or another."""

from __future__ import annotations

import random
import statistics
import threading
import time
from typing import Any

from ggfw.cli.client import Server, ServerError
from ggfw.cli.remote import RemoteHandle
from ggfw.errors import GgfwError
from ggfw.records import dataclass

__all__ = ["measure_server"]

#: Words of the prompts; about one token each.
_WORDS = "time year people way day man thing woman life child world school state family student group".split()


@dataclass
class _One:
    """One request: seconds to the first text and to the end, and counts."""

    first: float
    total: float
    prompt_tokens: int
    new_tokens: int


def measure_server(
    url: str, key: str | None, model: str | None, n_parallel: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Send ``n_parallel`` requests at once, ``repeat`` times, and return a row of ``ggfw bench --json``.

    Args:
        url: of the server, without ``/v1``.
        key: API key, or None.
        model: its name there; None: the first that the server lists.
        n_parallel: requests at once.
        options: of the verb: ``prompt_tokens`` (words of the prompts, really), ``new_tokens``, ``repeat``.

    Raises:
        ServerError: the server refused a request, is out of reach, or wrote nothing.
    """
    server = Server(url.rstrip("/").removesuffix("/v1"), key)
    if model is None:
        listed = server.ask("GET", "/v1/models").get("data") or []
        if not listed:
            raise ServerError(f"{server.url} lists no model; name one")
        model = str(listed[0]["id"])
    rounds = []
    n_new = options["new_tokens"]
    _round(server, model, n_parallel, options["prompt_tokens"], min(n_new, 2))
    for _ in range(options["repeat"]):
        rounds.append(_round(server, model, n_parallel, options["prompt_tokens"], n_new))
    samples = [_sample(ones, seconds) for ones, seconds in rounds]
    return {
        "model": model,
        "backend": None,
        "threads": None,
        "parallel": n_parallel,
        "prompt_tokens": options["prompt_tokens"],
        "new_tokens": n_new,
        "prompt_tokens_per_second": statistics.median(s["prefill_tokens_per_second"] for s in samples),
        "decode_tokens_per_second": statistics.median(s["generated_tokens_per_second"] for s in samples),
        "load_ms": 0.0,
        "ttft_ms": statistics.median(s["ttft_ms"] for s in samples),
        "peak_rss_bytes": 0,
        "mode": f"server {server.url}",
        "samples": samples,
    }


def _round(server: Server, model: str, n: int, n_prompt: int, n_new: int) -> tuple[list[_One], float]:
    """Requests at once; returns what each took, and the seconds of all."""
    rng = random.Random()
    done: list[_One | GgfwError] = []

    def ask(prompt: str) -> None:
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": n_new,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        begin = time.perf_counter()
        try:
            handle = RemoteHandle(server, "/v1/completions", body)
            first = 0.0
            for _ in handle:
                first = first or time.perf_counter() - begin
            usage = handle.result().usage
            total = time.perf_counter() - begin
            done.append(_One(first or total, total, usage.prompt_tokens, usage.completion_tokens))
        except GgfwError as exc:
            done.append(exc)

    # Beginnings differ, so that no cache of prefixes can help.
    prompts = [" ".join([str(rng.random()), *rng.choices(_WORDS, k=n_prompt)]) for _ in range(n)]
    threads = [threading.Thread(target=ask, args=(prompt,), daemon=True) for prompt in prompts]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    ones = [one for one in done if isinstance(one, _One)]
    for failed in done:
        if isinstance(failed, GgfwError):
            raise failed
    if not any(one.new_tokens for one in ones):
        raise ServerError(f"{server.url} counted no tokens; it must send usage with streams (stream_options)")
    return ones, seconds


def _sample(ones: list[_One], seconds: float) -> dict[str, float]:
    n_prompt, n_new = sum(one.prompt_tokens for one in ones), sum(one.new_tokens for one in ones)
    prefill = max(one.first for one in ones)
    decode = seconds - statistics.median(one.first for one in ones)
    after_first = n_new - len(ones)
    return {
        "prompt_tokens": n_prompt,
        "generated_tokens": n_new,
        "ttft_ms": statistics.median(one.first for one in ones) * 1e3,
        "prefill_ms": prefill * 1e3,
        "decode_ms": decode * 1e3,
        "total_ms": seconds * 1e3,
        "prefill_tokens_per_second": n_prompt / prefill if prefill > 0 else 0.0,
        "generated_tokens_per_second": after_first / decode if decode > 0 and after_first > 0 else 0.0,
    }

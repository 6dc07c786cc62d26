"""Counts and times of an answer, as OpenAI and llama-server write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ggfw.result import Result, Usage
from ggfw.server.answers import Progress


def summed(results: Sequence[Result], n: int | None = None) -> Usage:
    """The usage of several choices: a prompt they have in common counts once, what was drawn is added up.

    Args:
        results: in the order of the choices.
        n: choices per prompt; None: all have the same.
    """
    prompts = [r.usage for r in results[:: n or len(results)]]
    return Usage(
        prompt_tokens=sum(u.prompt_tokens for u in prompts),
        completion_tokens=sum(r.usage.completion_tokens for r in results),
        cached_tokens=sum(u.cached_tokens for u in prompts),
        reasoning_tokens=sum(r.usage.reasoning_tokens for r in results),
    )


def openai_usage(counts: Usage) -> dict[str, Any]:
    """OpenAI's ``usage`` object."""
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.total_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning_tokens},
    }


def timings(result: Result) -> dict[str, Any]:
    """llama-server's ``timings`` object (milliseconds, tokens per second)."""
    t, counts = result.timings, result.usage
    return _timings(
        counts.cached_tokens,
        counts.prompt_tokens - counts.cached_tokens,
        t.prefill,
        counts.completion_tokens,
        t.decode,
    )


def timings_so_far(progress: Progress) -> dict[str, Any]:
    """The same of an answer that is under way."""
    return _timings(
        progress.cache,
        progress.processed - progress.cache,
        progress.prompt_ms,
        progress.drawn,
        progress.drawn_ms,
    )


def _timings(cached: int, n_prompt: int, prompt_ms: float, n_drawn: int, drawn_ms: float) -> dict[str, Any]:
    def per_second(n: int, ms: float) -> float:
        return round(n / ms * 1e3, 3) if ms > 0 and n > 0 else 0.0

    return {
        "cache_n": cached,
        "prompt_n": n_prompt,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": round(prompt_ms / n_prompt, 3) if n_prompt > 0 else 0.0,
        "prompt_per_second": per_second(n_prompt, prompt_ms),
        "predicted_n": n_drawn,
        "predicted_ms": round(drawn_ms, 3),
        "predicted_per_token_ms": round(drawn_ms / (n_drawn - 1), 3) if n_drawn > 1 else 0.0,
        # The first token belongs to the prompt's time.
        "predicted_per_second": per_second(n_drawn - 1, drawn_ms),
    }


def prompt_progress(progress: Progress) -> dict[str, Any]:
    """llama-server's ``prompt_progress`` object."""
    return {
        "total": progress.total,
        "cache": progress.cache,
        "processed": progress.processed,
        "time_ms": round(progress.prompt_ms, 1),
    }

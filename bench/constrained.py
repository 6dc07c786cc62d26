"""What a JSON schema costs: the same requests with and without it, in turn, on one loaded model.

``python bench/constrained.py MODEL [--parallel 1,16] [--repeat 6]`` prints one JSON object per number of sequences.
Every constrained request draws at most 48 tokens, so that all keep each other company; the free one then draws as many.
The cost is the median over repetitions of the ratio of their times per token (decoding only).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import ggfw
from ggfw.constraints.vocabulary import TokenTable

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email": {"type": "string", "maxLength": 40},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 2, "maxItems": 5},
        "active": {"type": "boolean"},
    },
    "required": ["name", "age", "email", "tags", "active"],
    "additionalProperties": False,
}
PROMPT = "Describe a person as JSON with name, age, email, tags (a list of texts) and active."


def run(model: ggfw.Model, requests: list[Any]) -> tuple[float, list[ggfw.Result]]:
    """Seconds per token while decoding (of the slowest request), and the results."""
    results = [handle.result() for handle in [model.submit(request) for request in requests]]
    return max(r.timings.decode / max(1, len(r.token_ids) - 1) for r in results) / 1e3, results


def measure(model: ggfw.Model, parallel: int, repeat: int) -> dict[str, Any]:
    """Constrained and free requests in turn; see the module."""
    messages = [ggfw.user(PROMPT)]
    ratios, bound_ms, free_ms, tokens = [], [], [], 0
    for n in range(repeat + 1):
        seeds = range(n * parallel, (n + 1) * parallel)
        bound = [model.chat_request(messages, seed=s, schema=SCHEMA, max_tokens=48) for s in seeds]
        bound_s, results = run(model, bound)
        lengths = [len(r.token_ids) for r in results]
        free = [
            model.chat_request(messages, seed=s, max_tokens=m, ignore_eos=True)
            for s, m in zip(seeds, lengths, strict=True)
        ]
        free_s, _ = run(model, free)
        if n:  # the first round warms up
            ratios.append(bound_s / free_s)
            bound_ms.append(bound_s * 1e3)
            free_ms.append(free_s * 1e3)
            tokens += sum(lengths)
    return {
        "parallel": parallel,
        "constrained_ms_per_token": round(statistics.median(bound_ms), 3),
        "free_ms_per_token": round(statistics.median(free_ms), 3),
        "ratio": round(statistics.median(ratios), 4),
        "ratios": [round(r, 3) for r in ratios],
        "tokens": tokens,
    }


def main() -> None:
    """Measure one model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--parallel", default="1,16")
    parser.add_argument("--repeat", type=int, default=6)
    options = parser.parse_args()
    numbers = [int(n) for n in options.parallel.split(",")]
    with ggfw.load(options.model, ctx=1024, n_parallel=max(numbers)) as model:
        begun = time.perf_counter()
        TokenTable.of(model.tokenizer)
        table = time.perf_counter() - begun
        begun = time.perf_counter()
        model.request("x", schema=SCHEMA)
        compiled = time.perf_counter() - begun
        head = {"model": model.name, "n_vocab": model.tokenizer.n_vocab}
        head |= {"table_s": round(table, 3), "compile_ms": round(compiled * 1e3, 2)}
        for n in numbers:
            print(json.dumps({**head, **measure(model, n, options.repeat)}))


if __name__ == "__main__":
    main()

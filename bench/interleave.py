"""What a long prompt does to others: gaps between tokens of running requests while it is read, and its own speed.

    python bench/interleave.py MODEL.gguf [n_prompt [n_others]]

Prints the prompt's speed alone and in company, and the distribution of the gaps, in milliseconds.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time

import ggfw


def main(path: str, n_prompt: int = 4000, n_others: int = 4) -> None:
    """Measure once and print one line of JSON."""
    dice = random.Random(1)
    with ggfw.load(path, ctx=8192, n_parallel=n_others + 1) as model:
        n_vocab = min(model.loaded.n_vocab, model.tokenizer.n_vocab)

        def prompt(n: int) -> list[int]:
            return [dice.randrange(n_vocab) for _ in range(n)]

        model.generate(prompt(600), max_tokens=8, ignore_eos=True)
        alone = model.generate(prompt(n_prompt), max_tokens=1, ignore_eos=True).timings.prefill
        times: list[list[float]] = [[] for _ in range(n_others)]
        handles = [
            model.submit(model.request(prompt(16), max_tokens=4000, ignore_eos=True)) for _ in range(n_others)
        ]

        def read(i: int) -> None:
            try:
                for _ in handles[i]:
                    times[i].append(time.perf_counter())
            except ggfw.GenerationError:
                pass

        readers = [threading.Thread(target=read, args=(i,)) for i in range(n_others)]
        for reader in readers:
            reader.start()
        time.sleep(2)
        begin = time.perf_counter()
        together = (
            model.submit(model.request(prompt(n_prompt), max_tokens=1, ignore_eos=True)).result().timings
        )
        end = time.perf_counter()
        for handle in handles:
            handle.cancel()
        for reader in readers:
            reader.join()
    gaps = sorted(
        1e3 * (b - a) for own in times for a, b in zip(own, own[1:], strict=False) if begin <= b and a <= end
    )
    print(json.dumps({
        "alone_tokens_per_second": round(n_prompt / alone * 1e3, 1),
        "together_tokens_per_second": round(n_prompt / together.prefill * 1e3, 1),
        "share": round(alone / together.prefill, 3),
        "gaps": len(gaps),
        "median": round(gaps[len(gaps) // 2], 1),
        "p99": round(gaps[int(len(gaps) * 0.99)], 1),
        "worst": round(gaps[-1], 1),
    }))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

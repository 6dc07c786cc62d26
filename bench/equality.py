"""How answers depend on company in default mode: the same requests alone and cold, then all together on few pages.

``python bench/equality.py MODEL [--requests 200] [--pages 14] [--deterministic]`` prints one JSON object.

Where all matrices are F32, and with ``--deterministic``, nothing differs. Else rows of prompts and of decoding take
different arithmetic, so that a token whose margin is small may come out otherwise; from then on the texts are different
ones, so that only rows up to the first difference of each request are compared. Reported are the share of tokens that
differ among those rows, the margins there (of greedy requests: the gap between the two best logits in the run alone),
and how far apart the logits of compared rows are.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from typing import Any

import numpy as np

import ggfw

#: Requests that run at once.
PARALLEL = 6
#: Best logits of a row that are kept for comparing.
KEPT = 32


class Recorder:
    """The best logits of every row from which a request has drawn."""

    def __init__(self, model: ggfw.Model) -> None:
        self.rows: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        stepper = model.engine._stepper
        take = stepper._take_segment

        def noting(work: Any, sampled: int | None, logits: Any, now: float) -> None:
            row = logits[-1]
            ids = np.argpartition(row, -KEPT)[-KEPT:]
            ids = ids[np.argsort(-row[ids], kind="stable")]
            self.rows.setdefault(work.request.id, []).append((ids, row[ids].copy()))
            take(work, sampled, logits, now)

        stepper._take_segment = noting  # type: ignore[method-assign]


def requests(n: int, n_vocab: int) -> list[dict[str, Any]]:
    """Random requests, greedy and not, of which many share a beginning."""
    dice = random.Random(1)

    def ids(least: int, most: int) -> list[int]:
        return [dice.randrange(5, n_vocab) for _ in range(dice.randrange(least, most))]

    beginnings = [ids(1, 90) for _ in range(4)]
    return [
        {
            "prompt": [*dice.choice([*beginnings, []]), *ids(1, 60)],
            "max_tokens": dice.randrange(1, 70),
            "temperature": dice.choice([0, 1.0]),
            "seed": i,
            "ignore_eos": True,
        }
        for i in range(n)
    ]


def measure(path: str, n: int, n_pages: int, **options: Any) -> dict[str, Any]:
    """Run and compare; see the module."""
    with ggfw.load(path, ctx=512, n_parallel=PARALLEL, ubatch=64, max_queue=n, **options) as model:
        for pool in model.loaded.cache.pools:
            pool.n_pages = n_pages
        recorder = Recorder(model)
        jobs = requests(n, min(model.loaded.n_vocab, model.tokenizer.n_vocab))
        alone = [model.generate(cache_prompt=False, **job) for job in jobs]
        handles = [model.submit(model.request(**job)) for job in jobs]
        together = [handle.result() for handle in handles]
        metrics = model.engine.metrics()
    compared = differing = 0
    margins: list[float] = []
    distances: list[float] = []
    for job, one, other in zip(jobs, alone, together, strict=True):
        rows = zip(recorder.rows[one.id], recorder.rows[other.id], strict=False)
        for i, ((ids, values), (other_ids, other_values)) in enumerate(rows):
            compared += 1
            place = {int(token): float(value) for token, value in zip(other_ids, other_values, strict=True)}
            both = [
                abs(float(v) - place[int(t)]) for t, v in zip(ids, values, strict=True) if int(t) in place
            ]
            distances.append(max(both, default=float("inf")))
            if one.token_ids[i] != other.token_ids[i]:
                differing += 1
                if job["temperature"] == 0:
                    margins.append(float(values[0] - values[1]))
                break
    return {
        "model": model.name,
        "options": options,
        "requests": n,
        "requests_that_differ": sum(a.token_ids != b.token_ids for a, b in zip(alone, together, strict=True)),
        "rows_compared": compared,
        "tokens_that_differ": differing,
        "share": round(differing / compared, 6),
        "greedy_margins": [round(m, 4) for m in sorted(margins)],
        "logit_distance_median": round(statistics.median(distances), 6),
        "logit_distance_p99": round(float(np.percentile(distances, 99)), 6),
        "preemptions": metrics.preemptions,
        "evictions": metrics.prefix_evictions,
        "cached_tokens": metrics.cached_tokens,
    }


def main() -> None:
    """Measure one model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--pages", type=int, default=14)
    parser.add_argument("--deterministic", action="store_true")
    given = parser.parse_args()
    options = {"deterministic": True} if given.deterministic else {}
    print(json.dumps(measure(given.model, given.requests, given.pages, **options)))


if __name__ == "__main__":
    main()

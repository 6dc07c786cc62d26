"""What speculation brings: the same requests with and without it, in turn, one model and one process.

    python bench/speculation.py MODEL [--draft MODEL] [--repeat 5] [--json]

Three kinds of text: an answer that copies its prompt, one that does not, and random tokens at a high temperature.
Each is generated greedily or with a fixed seed, so that both ways have to give the same tokens; the script fails where
they do not. Speeds are of decoding alone, medians over the repetitions; ratios are medians of pairs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

import ggfw
from ggfw.engine import Engine
from ggfw.model import LoadedModel

TEXT = (
    "The old lighthouse stood at the edge of the cliff. Every evening, Martha climbed the narrow stairs and lit the "
    "great lamp. The light swept over the dark water and guided the fishing boats home. Her father had done the same, "
    "and his father before him. One winter night a storm came from the north. The wind broke the windows and the rain "
    "put out the lamp. Martha carried oil and matches through the broken glass until the flame was burning again. In "
    "the morning the fishermen came up the hill to thank her. They brought bread, smoked fish and a new pane of glass."
)
COPY = "Repeat the following text exactly, word for word, but write Anna instead of Martha:\n\n" + TEXT
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "copy and edit": (COPY, {"temperature": 0.0, "max_tokens": 110}),
    "story, greedy": ("Write a story about the sea.", {"temperature": 0.0, "max_tokens": 200}),
    "story, sampled": ("Write a story about the sea.", {"temperature": 0.8, "seed": 1, "max_tokens": 200}),
    "random tokens": ("Write a story.", {"temperature": 5.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 2,
                                         "max_tokens": 200}),
}  # fmt: skip


def measure(path: str, draft: str | None, repeat: int) -> list[dict[str, Any]]:
    """One row per case; see the module."""
    rows = []
    with ggfw.load(path, ctx=2048, spec="off", prefix_cache_mb=0, n_state_ring=9) as model:
        small = None if draft is None else LoadedModel.load(draft, ctx=2048)
        engines = {
            "off": model.engine,
            "on": Engine(model.loaded, spec="auto", draft=small, prefix_cache_mb=0),
        }
        for name, (prompt, options) in CASES.items():
            speeds: dict[str, list[float]] = {"off": [], "on": []}
            before = engines["on"].metrics()
            texts: dict[str, tuple[int, ...]] = {}
            for i in range(repeat + 1):
                for way in ("off", "on") if i % 2 else ("on", "off"):
                    request = model.chat_request(
                        [{"role": "user", "content": prompt}], ignore_eos=True, **options
                    )
                    result = engines[way].submit(request).result()
                    if texts.setdefault(way, result.token_ids) != result.token_ids:
                        sys.exit(f"{name}: two runs with speculation {way} gave different tokens")
                    if i:  # the first pair warms up
                        speeds[way].append(result.timings.decode_per_second)
            if texts["off"] != texts["on"]:
                sys.exit(f"{name}: speculation changed the tokens")
            after = engines["on"].metrics()
            rows.append(
                {
                    "case": name,
                    "off_tokens_per_second": statistics.median(speeds["off"]),
                    "on_tokens_per_second": statistics.median(speeds["on"]),
                    "ratio": statistics.median(
                        on / off for on, off in zip(speeds["on"], speeds["off"], strict=True)
                    ),
                    "ratios": [
                        round(on / off, 3) for on, off in zip(speeds["on"], speeds["off"], strict=True)
                    ],
                    "proposed": after.drafts_proposed - before.drafts_proposed,
                    "accepted": after.drafts_accepted - before.drafts_accepted,
                    "generated": after.generated_tokens - before.generated_tokens,
                }
            )
        engines["on"].close()
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--draft")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = measure(args.model, args.draft, args.repeat)
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    print(
        f"{'case':16} {'off tok/s':>10} {'on tok/s':>10} {'ratio':>7} {'proposed':>9} {'accepted':>9} {'drawn':>7}"
    )
    for r in rows:
        print(
            f"{r['case']:16} {r['off_tokens_per_second']:10.1f} {r['on_tokens_per_second']:10.1f} {r['ratio']:7.3f} "
            f"{r['proposed']:9} {r['accepted']:9} {r['generated']:7}  {r['ratios']}"
        )


if __name__ == "__main__":
    main()

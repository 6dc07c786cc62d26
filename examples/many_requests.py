"""Several answers at once from one loaded model: ``python examples/many_requests.py model.gguf``."""

from __future__ import annotations

import asyncio
import sys

import ggfw

QUESTIONS = ["Name three rivers in Europe.", "Write one sentence about the sea.", "What do otters eat?"]


async def main(path: str) -> None:
    """Ask all questions together; they share every step of the model."""
    with ggfw.load(path, n_parallel=len(QUESTIONS)) as model:
        answers = (model.achat([ggfw.user(question)], max_tokens=60) for question in QUESTIONS)
        for question, result in zip(QUESTIONS, await asyncio.gather(*answers), strict=True):
            print(f"{question}\n  {result.text}\n  ({result.timings.decode_per_second:.0f} tokens/s)\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1]))

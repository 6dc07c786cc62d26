"""Continue a text, and look at what came: ``python examples/generate.py model.gguf``."""

from __future__ import annotations

import sys

import ggfw


def main(model: ggfw.Model, prompt: str = "Once upon a time") -> ggfw.Result:
    """Continue a raw prompt, without a chat template."""
    result = model.generate(prompt, max_tokens=60, temperature=0.7, seed=1)
    print(prompt + result.text)
    print(f"({result.usage.completion_tokens} tokens, {result.timings.decode_per_second:.0f} per second)")
    return result


if __name__ == "__main__":
    with ggfw.load(sys.argv[1]) as loaded:
        main(loaded)

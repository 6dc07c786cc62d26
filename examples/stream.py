"""Show an answer while it comes, and stop it early: ``python examples/stream.py model.gguf``."""

from __future__ import annotations

import sys

import ggfw


def main(model: ggfw.Model, question: str = "Tell me about otters.", most: int = 200) -> str:
    """Print pieces of text as they come; leaving the loop cancels the request within one step."""
    shown = ""
    with model.chat_stream([ggfw.user(question)], max_tokens=400) as stream:
        for piece in stream:
            print(piece, end="", flush=True)
            shown += piece
            if len(shown) >= most:
                break
    print()
    return shown


if __name__ == "__main__":
    with ggfw.load(sys.argv[1]) as loaded:
        main(loaded)

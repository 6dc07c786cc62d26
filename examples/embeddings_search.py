"""Find the text that fits a question best: ``python examples/embeddings_search.py model.gguf``."""

from __future__ import annotations

import sys

import ggfw

TEXTS = ["Otters eat fish and crabs.", "The train leaves at nine.", "Bread needs flour, water and time."]


def main(model: ggfw.Model, question: str = "What do otters eat?") -> list[tuple[float, str]]:
    """Rank texts by the cosine of their embeddings with the question's, best first."""
    wanted = model.embed(question)  # (n_embd,)
    vectors = model.embed(TEXTS)  # (n_texts, n_embd)
    pairs = zip(vectors, TEXTS, strict=True)
    ranked = sorted(((ggfw.cosine_similarity(wanted, v), text) for v, text in pairs), reverse=True)
    for similarity, text in ranked:
        print(f"{similarity:.3f}  {text}")
    return ranked


if __name__ == "__main__":
    with ggfw.load(sys.argv[1]) as loaded:
        main(loaded)

"""``ggfw embed MODEL TEXT…``: embeddings of texts."""

from __future__ import annotations

import sys
from typing import Any

import click

from ggfw.cli import terminal
from ggfw.cli.loading import load_options, model_argument, split_load_options
from ggfw.cli.settings import setting, verb

__all__ = ["embed_verb"]


@verb("embed")
@model_argument()
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@setting("--json", "as_json", is_flag=True, help="Print JSON: a list of {text, token_count, embedding}.")
@load_options
def embed_verb(model: str, texts: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Print the embedding of each TEXT ("-": of stdin), pooled as the model says, of length 1; one line each."""
    from ggfw.cli.loading import load_model
    from ggfw.cli.resolve import find_model

    given = [sys.stdin.read() if text == "-" else text for text in texts]
    loading = split_load_options(options)
    with load_model(find_model(model, options["models_dir"]), loading) as loaded:
        vectors = loaded.embed(given)
        counts = [len(loaded.tokenize(text)) for text in given]
    if as_json:
        rows = zip(given, counts, vectors.tolist(), strict=True)
        terminal.print_json([{"text": t, "token_count": n, "embedding": v} for t, n, v in rows])
        return
    for vector in vectors:
        print(" ".join(f"{x:.7g}" for x in vector))

"""``ggfw perplexity MODEL FILE``: how well a model predicts a text, and how far it is from another."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ggfw.cli import terminal
from ggfw.cli.loading import COUNT, load_options, model_argument, split_load_options
from ggfw.cli.settings import setting, verb
from ggfw.errors import InvalidRequest

__all__ = ["perplexity_verb"]


@verb("perplexity")
@model_argument()
@click.argument("file", type=click.Path(allow_dash=True))
@setting("--chunks", type=COUNT, metavar="N", help="Chunks at most; default: the whole text.")
@setting("--save-base", metavar="F", help="Write the log-probabilities to F, to compare other models with.")
@setting("--kl-base", metavar="F", help="Compare with the log-probabilities that --save-base wrote to F.")
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
@load_options
def perplexity_verb(model: str, file: str, **options: Any) -> None:
    """Measure the perplexity of MODEL over the text in FILE (- for stdin), in chunks of --ctx tokens (default 512).

    The second half of each chunk counts, as in llama.cpp's tool. With --kl-base also the KL divergence from a base.
    """
    from ggfw.cli.loading import load_model
    from ggfw.cli.resolve import find_model
    from ggfw.perplexity import perplexity

    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"{file} is no text in UTF-8, so that it has no perplexity; convert it first", "file"
        ) from None
    del data
    loading = split_load_options(options)
    ctx = loading.setdefault("ctx", 512)
    path = find_model(model, options["models_dir"])

    def show(done: int, total: int, value: float) -> None:
        if terminal.is_terminal(sys.stderr):
            sys.stderr.write(
                f"\r{done} of {total} chunks: {value:.4f}\x1b[K" + ("\n" if done == total else "")
            )
            sys.stderr.flush()

    with load_model(path, loading, n_parallel=1) as loaded:
        found = perplexity(
            loaded,
            text,
            ctx=ctx,
            max_chunks=options["chunks"],
            save=options["save_base"],
            base=options["kl_base"],
            progress=show,
        )
    if options["as_json"]:
        row = asdict(found)
        row["perplexity"] = row.pop("value")
        terminal.print_json({"model": str(path), "ctx": ctx, **row})
        return
    print(
        f"perplexity {found.value:.4f} +- {found.error:.4f} ({found.n_tokens} tokens, {found.n_chunks} chunks)"
    )
    if found.divergence is not None:
        d = found.divergence
        print(
            f"base {d.base_perplexity:.4f}; mean KL {d.mean_kl:.6f} +- {d.kl_error:.6f}, 99 % {d.kl_99:.6f}, "
            f"largest {d.max_kl:.4f}; same likeliest token {100 * d.top1_same:.2f} %"
        )

"""``ggfw quantize MODEL TARGET TYPE``: a copy of a model with fewer bits."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from pathlib import Path

import click

from ggfw.cli import terminal
from ggfw.cli.loading import COUNT, model_argument, models_dir_option
from ggfw.cli.settings import setting, verb

__all__ = ["quantize_verb"]


@verb("quantize")
@model_argument()
@click.argument("target", type=click.Path(dir_okay=False))
@click.argument("type_", metavar="TYPE")
@setting("--imatrix", metavar="FILE", help="Importance of columns, as llama.cpp's imatrix tool writes it.")
@setting(
    "--tensor-type",
    "tensor_types",
    multiple=True,
    metavar="NAME=FORMAT",
    help="Another format for one tensor, or for one role in all layers: attn_v=Q8_0; may be repeated.",
)
@setting("--threads", type=COUNT, help="Threads; default: the usable physical cores.")
@setting("--force", is_flag=True, help="Replace TARGET if it exists.")
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
@models_dir_option
def quantize_verb(
    model: str,
    target: str,
    type_: str,
    imatrix: str | None,
    tensor_types: tuple[str, ...],
    threads: int | None,
    force: bool,
    as_json: bool,
    models_dir: str | None,
) -> None:
    """Write MODEL to the file TARGET as TYPE: Q8_0, Q6_K, Q5_K_M, Q4_K_M, Q4_0, IQ4_XS, F16, ...

    Best from a file with 16 or 32 bits: what an earlier quantisation lost does not come back.
    """
    from ggfw.cli.progress import size
    from ggfw.errors import InvalidRequest
    from ggfw.quantize import quantize_file, read_importance
    from ggfw.threads import default_threads

    source, wanted = _source(model, models_dir), Path(target)
    if wanted.exists() and not force:
        raise InvalidRequest(f"{wanted} exists; give another name, or --force to replace it", "target")
    overrides = {}
    for item in tensor_types:
        name, equals, fmt = item.partition("=")
        if not (name and equals and fmt):
            raise click.UsageError(f"--tensor-type is {item!r}; NAME=FORMAT was expected, like attn_v=Q8_0")
        overrides[name] = fmt
    begun = time.perf_counter()
    with _progress() as progress:
        made = quantize_file(
            source,
            wanted,
            type_,
            importance=None if imatrix is None else read_importance(imatrix),
            overrides=overrides,
            threads=default_threads(requested=threads),
            progress=progress,
        )
    seconds = time.perf_counter() - begun
    counts = Counter(made.formats.values())
    if as_json:
        terminal.print_json(
            {
                "source": str(source),
                "path": str(made.path),
                "type": type_,
                "source_bytes": made.source_bytes,
                "bytes": made.bytes,
                "seconds": seconds,
                "formats": dict(counts.most_common()),
                "narrowed": list(made.narrowed),
            }
        )
        return
    listed = ", ".join(f"{n} {fmt}" for fmt, n in counts.most_common())
    terminal.say(f"{size(made.source_bytes)} -> {size(made.bytes)} in {seconds:.1f} s: {listed}")
    if made.narrowed:
        terminal.say(
            f"{len(made.narrowed)} matrices have rows that the blocks of {type_} do not fit, "
            "and got a format with smaller ones"
        )
    print(made.path)
    gc.freeze()  # the process ends: nothing of what stands is worth a look by the collector


def _source(model: str, models_dir: str | None) -> Path:
    """The file of MODEL. What is a file needs no look at folders and caches, nor the modules that look."""
    if os.path.isfile(model):
        return Path(model)
    from ggfw.cli.resolve import find_model

    return find_model(model, models_dir)


def _progress():  # type: ignore[no-untyped-def]
    """A callback (tensor, done, total) that draws one bar on a terminal and is silent elsewhere."""
    import sys
    from contextlib import contextmanager

    @contextmanager
    def showing():  # type: ignore[no-untyped-def]
        if not terminal.is_terminal(sys.stderr):
            yield None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description:40}"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task("", total=None)

            def show(name: str, done: int, total: int) -> None:
                bars.update(task, description=name, completed=done, total=total)

            yield show

    return showing()

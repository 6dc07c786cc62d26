"""``ggfw trace MODEL [TEXT] --out F.npz``: every named tensor of one run, as arrays."""

from __future__ import annotations

import click

from ggfw.cli import terminal
from ggfw.cli.loading import COUNT, model_argument, models_dir_option
from ggfw.cli.settings import KV_TYPE_NAMES, Choice, setting, verb
from ggfw.cli.verify import TEXT, prompt_ids

__all__ = ["trace_verb"]


@verb("trace")
@model_argument()
@click.argument("text", default=TEXT)
@setting("--ids", metavar="1,2,3", help="Token ids to evaluate instead of TEXT, taken as they are.")
@setting(
    "--backend", metavar="NAME", help='Kernel backend, or "reference" (NumPy, exact); default: the best here.'
)
@setting(
    "--kv-type",
    type=Choice(KV_TYPE_NAMES),
    default="f32",
    help="Type of the attention cache; default: f32.",
)
@setting("--ctx", type=COUNT, help="Context, on which some graphs depend; default: enough for the prompt.")
@setting("--threads", type=COUNT, help="Threads; default: the usable physical cores.")
@setting("--out", required=True, type=click.Path(dir_okay=False), help="File to write (.npz).")
@setting("--json", "as_json", is_flag=True, help="Print names and shapes as JSON.")
@models_dir_option
def trace_verb(
    model: str,
    text: str,
    ids: str | None,
    backend: str | None,
    kv_type: str,
    ctx: int | None,
    threads: int | None,
    out: str,
    as_json: bool,
    models_dir: str | None,
) -> None:
    """Run MODEL once over TEXT ("-": of stdin; default: a short sentence) and write every named tensor to a file.

    Arrays are float32 (int32 for chosen experts), one row per token, in the order of evaluation, under the names that
    `ggfw show --graph` prints. Nothing is fused that would hide a tensor.
    """
    from ggfw.cli.progress import waiting
    from ggfw.cli.resolve import find_model
    from ggfw.verify import trace

    path = find_model(model, models_dir)
    tokens = prompt_ids(path, ids, text)
    with waiting("tracing"):
        arrays = trace(path, tokens, backend=backend, kv_type=kv_type, threads=threads, ctx=ctx)
    import numpy as np

    with open(out, "wb") as file:  # np.savez would add .npz to another name
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its own keywords come after the arrays
    if as_json:
        terminal.print_json(
            {
                "out": out,
                "token_ids": tokens,
                "tensors": [{"name": name, "shape": list(array.shape)} for name, array in arrays.items()],
            }
        )
    else:
        print(f"{len(arrays)} tensors of {len(tokens)} tokens in {out}")

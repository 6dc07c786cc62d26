"""``ggfw logits MODEL --ids 1,2,3 --out F.npz``: what the model computes for given tokens, as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ggfw.cli.loading import COUNT, load_options, model_argument, split_load_options
from ggfw.cli.settings import setting, verb

if TYPE_CHECKING:
    import numpy as np

    from ggfw import Model

__all__ = ["logits_verb"]


@verb("logits")
@model_argument()
@setting(
    "--ids",
    multiple=True,
    required=True,
    metavar="1,2,3",
    help="Token ids of a prompt, taken as they are. Repeatable.",
)
@setting("--together", is_flag=True, help="Run all prompts as one ragged batch; else one after the other.")
@setting("--chunk", type=COUNT, help="Positions of a prompt per step; default: as many as a step may have.")
@setting("--greedy", type=COUNT, metavar="N", help="Also the N best tokens after each prompt: greedy_i.")
@setting("--hidden", is_flag=True, help="Also the hidden states after the last norm: hidden_i.")
@setting("--pooled", is_flag=True, help="Also their pooled vector, not normalised: pooled_i.")
@setting("--out", required=True, type=click.Path(dir_okay=False), help="File to write (.npz).")
@load_options
def logits_verb(model: str, **options: Any) -> None:
    """Write the logits of every position of every prompt to an .npz file, as prompt_0, prompt_1, ..., float32."""
    from ggfw.cli.loading import load_model
    from ggfw.cli.resolve import find_model
    from ggfw.cli.tokens import parse_ids
    from ggfw.files import check_target

    check_target(options["out"])  # an archive of arrays is not written in one go
    prompts = [parse_ids(ids) for ids in options["ids"]]
    loading = split_load_options(options)
    path = find_model(model, options["models_dir"])
    n_parallel = len(prompts) if options["together"] else 1
    with load_model(path, loading, n_parallel=n_parallel) as loaded:
        arrays = _arrays(loaded, prompts, options)
    import numpy as np

    with open(options["out"], "wb") as file:  # np.savez would add .npz to another name
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its own keywords come after the arrays


def _arrays(model: Model, prompts: list[list[int]], options: dict[str, Any]) -> dict[str, np.ndarray]:
    import numpy as np

    from ggfw.evaluate import evaluate, greedy, pooled
    from ggfw.execute.batch import Wants

    together, chunk = options["together"], options["chunk"]

    def run(wants: Wants) -> list[np.ndarray]:
        job = evaluate(model.loaded, prompts, wants, chunk=chunk, together=together)
        return model.engine.run(job).result()

    arrays: dict[str, np.ndarray] = {}
    if model.loaded.n_vocab:
        arrays |= {f"prompt_{i}": rows for i, rows in enumerate(run(Wants.LOGITS))}
    if options["hidden"] or not model.loaded.n_vocab:
        arrays |= {f"hidden_{i}": rows for i, rows in enumerate(run(Wants.HIDDEN))}
    if options["pooled"]:
        job = pooled(model.loaded, prompts, chunk=chunk, together=together)
        arrays |= {f"pooled_{i}": vector for i, vector in enumerate(model.engine.run(job).result())}
    for i, ids in enumerate(prompts if options["greedy"] else ()):
        answer = model.engine.run(greedy(model.loaded, ids, options["greedy"], chunk=chunk)).result()
        arrays[f"greedy_{i}"] = np.asarray(answer, dtype=np.int32)
    return arrays

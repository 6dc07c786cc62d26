"""``ggfw verify MODEL``: the native executor against the reference, step by step."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from ggfw.cli import terminal
from ggfw.cli.loading import COUNT, model_argument, models_dir_option
from ggfw.cli.settings import KV_TYPE_NAMES, Choice, setting, verb

__all__ = ["prompt_ids", "verify_verb"]

#: Text that is evaluated when nothing else is given.
TEXT = "The quick brown fox jumps over the lazy dog. 3 + 4 = 7, and so on."


@verb("verify")
@model_argument()
@setting("--ids", metavar="1,2,3", help="Token ids to evaluate; default: those of a short sentence.")
@setting("--backend", metavar="NAME", help="Kernel backend; default: the best here.")
@setting(
    "--kv-type",
    type=Choice(KV_TYPE_NAMES),
    default="f32",
    help="Type of the attention cache; default: f32.",
)
@setting("--ctx", type=COUNT, help="Context, on which some graphs depend; default: enough for the prompt.")
@setting("--threads", type=COUNT, help="Threads; default: the usable physical cores.")
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
@models_dir_option
def verify_verb(
    model: str,
    ids: str | None,
    backend: str | None,
    kv_type: str,
    ctx: int | None,
    threads: int | None,
    as_json: bool,
    models_dir: str | None,
) -> int:
    """Check each native step of MODEL against the exact reference, then let it run free and compare the logits.

    Exits with 1 when a step is beyond the bound of its operation and format.
    """
    from ggfw.cli.progress import waiting
    from ggfw.cli.resolve import find_model
    from ggfw.verify import verify

    path = find_model(model, models_dir)
    tokens = prompt_ids(path, ids, TEXT)
    with waiting("comparing with the reference"):
        found = verify(path, tokens, backend=backend, kv_type=kv_type, threads=threads, ctx=ctx)
    bad, free = found.first_bad, found.free_run
    if as_json:
        terminal.print_json(
            {
                "ok": found.ok,
                "backend": found.backend,
                "kv_type": found.kv_type,
                "n_tokens": found.n_tokens,
                "steps": [{**asdict(step), "ok": step.ok} for step in found.steps],
                "first_bad": None if bad is None else bad.index,
                "free_run": None if free is None else asdict(free),
            }
        )
        return int(not found.ok)
    checked = f"{len(found.steps)} steps with backend {found.backend}, cache {found.kv_type}, {found.n_tokens} tokens"
    step = bad or max(found.steps, key=lambda step: step.error / step.bound)
    print(
        f"{'ok' if bad is None else 'failed'}: {checked}; "
        f"{'nearest to its bound' if bad is None else 'first step beyond its bound'}: "
        f"{step.index}, {step.step}: {step.error:.2e} of {step.bound:.0e}"
    )
    if free is not None and free.mean_kl is not None and free.top1_same is not None:
        print(
            f"free run: largest difference of logits {free.max_abs:.2e}, mean KL {free.mean_kl:.2e}, "
            f"same best token at {100 * free.top1_same:.1f} % of positions"
        )
    elif free is not None:
        print(f"free run: largest difference of hidden states {free.max_abs:.2e}")
    return int(not found.ok)


def prompt_ids(path: Path, ids: str | None, text: str) -> list[int]:
    """Return the token ids in ``ids``, or those of ``text`` ("-": of stdin) in the file's vocabulary."""
    from ggfw.cli.tokens import parse_ids
    from ggfw.gguf import GGUF
    from ggfw.tokenizer import Tokenizer

    if ids is not None:
        return parse_ids(ids)
    with GGUF.open(path) as gguf:
        return Tokenizer.from_metadata(gguf.metadata).encode(sys.stdin.read() if text == "-" else text)

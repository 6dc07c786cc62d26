"""What would otherwise be done while the first request waits: for servers, which say when they are ready."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ggfw.errors import GgfwError
from ggfw.evaluate import evaluate
from ggfw.execute.batch import Wants

if TYPE_CHECKING:
    from ggfw.library import Model

_TEXT = "The quick brown fox jumps over the lazy dog."
_TOKENS = 32  # of a prompt: enough for the kernels of prompts


def warm_up(model: Model) -> None:
    """Compile the chat template, build the vocabulary's tables, and read and touch the memory of a step.

    Waits for what stays mapped of the file to be read ahead. Leaves nothing behind: no request is counted, no prefix is
    kept. What a model cannot do (embedding models do not chat) is left out.

    Args:
        model: a loaded model whose engine runs; others may use it meanwhile.
    """
    ids = model.tokenizer.encode(_TEXT)
    with contextlib.suppress(GgfwError):
        ids = model.chat_request([{"role": "user", "content": _TEXT}]).prompt
        model.tokenizer.decode(ids)
    ids = [*ids, *ids][: min(_TOKENS, model.n_ctx)]
    if ids:
        model.engine.run(evaluate(model.loaded, [ids], Wants.HIDDEN)).result()
        if model.loaded.n_vocab:
            model.engine.run(evaluate(model.loaded, [ids[:1]])).result()
    wait = getattr(model.loaded.executor, "wait_until_read", None)
    if wait is not None:
        wait()

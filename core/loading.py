"""The library's door: :func:`load` opens a model file and starts its engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Any

from ggfw.errors import InvalidRequest, brief
from ggfw.library import Model
from ggfw.speculation import RECURRENT_DRAFTS, check_spec
from ggfw.threads import start_if_possible

if TYPE_CHECKING:
    from ggfw.gguf import GGUF
    from ggfw.models import Folders
    from ggfw.packed_cache import PackedCache
    from ggfw.registry import Registry

Log = Callable[[str, dict[str, Any]], None]


def load(
    source: str | os.PathLike[str] | bytes | GGUF,
    *,
    threads: int | None = None,
    ctx: int | None = None,
    kv_type: str | None = None,
    backend: str | None = None,
    n_parallel: int = 1,
    max_queue: int = 64,
    prefix_cache_mb: int | None = None,
    spec: str = "auto",
    draft: str | os.PathLike[str] | None = None,
    folders: Folders | None = None,
    log: Any = None,
    ubatch: int = 512,
    rope_scaling: str | None = None,
    rope_base: float | None = None,
    activations: str | None = None,
    deterministic: bool | None = None,
    n_state_ring: int | None = None,
    packed_cache: PackedCache | None = None,
    repack: bool | None = None,
    prefault: bool = True,
    registry: Registry | None = None,
) -> Model:
    """Load a model file and start its engine.

    Args:
        source: path of a GGUF file (any shard of a split set), its bytes, or an open :class:`ggfw.gguf.GGUF`; with
            ``folders`` also a model's name.
        threads: worker threads; None = usable physical cores.
        ctx: positions per sequence; None = what the model was trained for.
        kv_type: cache element type (f32, f16, bf16); None = the default for the file.
        backend: kernel backend, or ``reference``; None = the best one here.
        n_parallel: requests that may run at once.
        max_queue: requests that may wait besides.
        prefix_cache_mb: MiB for what later requests with the same beginning need not evaluate again, 0 = none; None = a
            quarter of the attention cache, at least 512 MiB, at most all of it.
        spec: how tokens are guessed, to be verified several at a time where that pays: ``ngram`` looks them up in the
            text, ``draft`` asks the draft model, ``auto`` does what is possible, ``off`` nothing. Results are the same.
        draft: a small model of the same vocabulary that guesses for this one.
        folders: where a model of the name ``source`` (or ``draft``) is looked for; see :func:`ggfw.select_model`.
        log: a structlog-like logger (``log.info(event, **fields)``) or a callable (event, fields); None = silence.
        ubatch, rope_scaling, rope_base, activations, deterministic, n_state_ring, packed_cache, repack, prefault,
            registry: see :meth:`ggfw.model.LoadedModel.load`; ``n_state_ring`` None = what guessing needs.

    Raises:
        ModelNotFound, ModelFileError, UnsupportedError, BackendError, InvalidRequest: with one sentence.
    """
    # Templates need Jinja, whose import is a good part of the time to the first token: it happens while weights load.
    start_if_possible(
        Thread(target=import_module, args=("ggfw.chat.template",), name="ggfw-import", daemon=True)
    )
    from ggfw.model import LoadedModel

    check_spec(spec, draft is not None)
    if folders is not None:
        from ggfw.models import select_model

        if isinstance(source, str | os.PathLike):
            source = select_model(source, folders).path
        if draft is not None:
            draft = select_model(draft, folders).path
    if n_state_ring is None:
        n_state_ring = 2 if spec == "off" else RECURRENT_DRAFTS + 2
    shared: dict[str, Any] = {
        "threads": threads, "backend": backend, "kv_type": kv_type, "n_parallel": n_parallel, "log": as_log(log)
    }  # fmt: skip
    loaded = LoadedModel.load(
        source,
        ctx=ctx,
        ubatch=ubatch,
        rope_scaling=rope_scaling,
        rope_base=rope_base,
        activations=activations,
        deterministic=deterministic,
        n_state_ring=n_state_ring,
        packed_cache=packed_cache,
        repack=repack,
        prefault=prefault,
        registry=registry,
        **shared,
    )
    small = None
    try:
        if draft is not None and spec != "off":
            small = LoadedModel.load(draft, ctx=loaded.n_ctx, **shared)
        return Model(loaded, max_queue=max_queue, prefix_cache_mb=prefix_cache_mb, spec=spec, draft=small)
    except BaseException:
        loaded.close()
        if small is not None:
            small.close()
        raise


def as_log(log: Any) -> Log | None:
    """Make a callable (event, fields) of a structlog-like logger, a standard logger, or such a callable."""
    if log is None:
        return None
    info = getattr(log, "info", None)
    if info is None:
        if not callable(log):
            raise InvalidRequest(
                f"log is {brief(log)}; a logger, or a function of an event and its fields, was expected",
                "log",
            )
        return log  # type: ignore[no-any-return]
    import logging

    if isinstance(log, logging.Logger):
        return lambda event, fields: log.info("%s %s", event, fields)
    return lambda event, fields: info(event, **fields)

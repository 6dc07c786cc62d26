"""Taking what the prefix tree has for some tokens out, for a file, and in again. Jobs for ``Engine.run``.

Files are written and read by the caller, in its own thread: steps do not wait for a disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ggfw.cache import PAGE_SIZE, OutOfPages
from ggfw.cache.saved import SavedPrefix
from ggfw.engine import WAIT
from ggfw.errors import CacheFileError, ContextLengthExceeded, InvalidRequest
from ggfw.execute.kernel_set import DEFAULT_ACTIVATIONS

if TYPE_CHECKING:
    from ggfw.engine import Engine
    from ggfw.model import LoadedModel

_SAMPLE = 4096  # bytes of each tensor that go into the model's identity


def cache_facts(model: LoadedModel) -> dict[str, Any]:
    """What a saved cache depends on: the model (its architecture's keys, names, shapes, types and a sample of its
    tensors), its cache, its rope, and the arithmetic that filled it.

    Of two models that differ nowhere in these the cache is the same, or they were made to deceive.
    """
    architecture, metadata = model.gguf.architecture, model.gguf.metadata
    digest = hashlib.sha256(architecture.encode())
    for key in sorted(key for key in metadata if key.startswith(architecture + ".")):
        value = metadata[key]
        digest.update(
            repr(
                (key, list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value)
            ).encode()
        )
    for name, info in sorted(model.gguf.tensors.items()):
        digest.update(f"{name} {info.ggml_type} {tuple(info.shape)}".encode())
        digest.update(info.data[:_SAMPLE].tobytes())
    pools = [
        [list(spec.layers), spec.n_head_kv, spec.d_k, spec.d_v, spec.window, spec.v_in_k]
        for spec in (pool.spec for pool in model.cache.pools)
    ]
    memory = model.executor.memory
    run: dict[str, Any] = {
        name: getattr(model.run, name) for name in ("kv_type", "rope_scaling", "rope_freq_base")
    }
    run |= {"activations": model.activations or DEFAULT_ACTIVATIONS, "deterministic": model.exact}
    if any("rope_factors" in name for name in model.gguf.tensors):
        run["n_ctx"] = model.run.n_ctx  # it chooses between them
    return {
        "model": digest.hexdigest(),
        "run": run,
        "backend": model.executor.name,
        "page_size": PAGE_SIZE,
        "pools": pools,
        "page_bytes": list(memory.page_bytes),
        "state_bytes": memory.state_bytes,
    }


def known_facts(engine: Engine) -> Generator[Any, None, dict[str, Any]]:
    """:func:`cache_facts` of its model, which reads the file's tensors: in the engine's thread nobody closes it."""
    yield from ()
    return cache_facts(engine.model)


def take_out(
    engine: Engine, tokens: Sequence[int], key: Hashable = None
) -> Generator[Any, None, SavedPrefix]:
    """Copy the longest prefix of ``tokens`` that is known.

    Raises:
        InvalidRequest: nothing of them is known.
    """
    tree, cache = engine.reuse.tree, engine.model.cache
    match = tree.match((key,), tokens, len(tokens))
    if not match.n:
        raise InvalidRequest("nothing is known of these tokens; evaluate them first", "tokens")
    pages = []
    for i, pool in enumerate(cache.pools):
        first = pool.spec.first_block(match.n)
        own = [tree.memory.read_page(i, node.pages[i]) for node in match.nodes[first:]]
        pages.append(np.stack(own) if own else np.zeros((0, tree.memory.page_bytes[i]), np.uint8))
    state = match.state if match.state is not None else np.zeros(0, np.uint8)
    yield from ()
    return SavedPrefix(cache_facts(engine.model), list(tokens[: match.n]), pages, state)


def take_in(engine: Engine, saved: SavedPrefix, key: Hashable = None) -> Generator[Any, None, int]:
    """Give the tree what :func:`take_out` took: later requests find it.

    Returns:
        (through StopIteration) how many tokens that are.

    Raises:
        CacheFileError: tokens, pages and state do not belong together.
        ContextLengthExceeded: this context is too short for them.
        OutOfPages: the cache has no room, and nobody will make any.
    """
    model, tree = engine.model, engine.reuse.tree
    n, cache = len(saved.tokens), model.cache
    _check(engine, saved)
    room = min([model.n_ctx, *(pool.n_pages * PAGE_SIZE for pool in cache.pools)])
    if n > room:
        raise ContextLengthExceeded(n, room)
    while True:
        try:
            sequence = cache.sequence()
            try:
                sequence.reserve(n)
            except OutOfPages:
                sequence.close()
                raise
            break
        except OutOfPages:
            yield WAIT
    try:
        for i, (pool, pages) in enumerate(zip(cache.pools, saved.pages, strict=True)):
            first = pool.spec.first_block(n)
            for table_at, page in enumerate(pages, first):
                tree.memory.write_page(i, sequence.tables[i][table_at], page)
        sequence.advance(n)
        states = [(n, saved.state.copy())] if saved.state.size else []
        tree.insert((key,), saved.tokens, sequence, states)
    finally:
        sequence.close()
        tree.trim()
    return n


def _check(engine: Engine, saved: SavedPrefix) -> None:
    """Compare the sizes of what was saved with what its tokens take here.

    Raises:
        CacheFileError: they differ.
    """
    cache, memory = engine.model.cache, engine.reuse.tree.memory
    n = len(saved.tokens)
    wanted = [
        (-(-n // PAGE_SIZE) - pool.spec.first_block(n), n_bytes)
        for pool, n_bytes in zip(cache.pools, memory.page_bytes, strict=True)
    ]
    good = (
        n > 0
        and max(saved.tokens) < engine.model.n_vocab
        and [pages.shape for pages in saved.pages] == wanted
        and saved.state.size == memory.state_bytes
    )
    if not good:
        raise CacheFileError(
            "the saved cache is damaged: its tokens, pages and state do not belong together; save it again"
        )

"""A file and the plugins that can run it become a loaded model.

The tokenizer is built in a thread of its own while the weights are packed: both take a good part of the time to the
first token, and both release the interpreter most of the time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from ggfw import arguments
from ggfw.cache import PAGE_SIZE, Cache
from ggfw.descriptors import resolve
from ggfw.errors import (
    GgfwError,
    GraphError,
    InvalidRequest,
    ModelFileError,
    PluginError,
    brief,
    kind_and_text,
)
from ggfw.gguf import GGUF
from ggfw.graph.architecture import Architecture, RunConfig
from ggfw.graph.builder import Graph
from ggfw.graph.cache_layout import CacheLayout, cache_layout
from ggfw.graph.hparams import Hparams
from ggfw.graph.weights import Weights
from ggfw.registry import Registry, default_registry
from ggfw.threads import default_threads, start_if_possible

if TYPE_CHECKING:
    from ggfw.execute.batch import Executor
    from ggfw.packed_cache import PackedCache
    from ggfw.tokenizer import Tokenizer

#: Name of the executor that is no kernel backend.
REFERENCE = "reference"

_F32 = 0
_MOST_WHOLE = 8192  # rows of a step that are made room for unasked
_LARGE = 1 << 30  # bytes of a file from which on it may run straight from its mapping unasked
_MOST_SAID = 400  # characters of an exception of a plugin that are shown


class Described:
    """A file's architecture and graph, before any weight is read.

    Attributes:
        gguf: the open file.
        architecture: an instance of the plugin's class.
        hparams, weights: what ``build`` got.
        run: what ``build`` was told of the run.
        graph: what it described.
        layout: the caches the graph needs.
    """

    def __init__(self, gguf: GGUF, run: RunConfig, registry: Registry) -> None:
        self.gguf = gguf
        self.run = run
        spec = registry.architecture_for(gguf.metadata)
        architecture = resolve(spec.load)
        try:
            self.architecture: Architecture = (
                architecture() if isinstance(architecture, type) else copy(architecture)
            )
        except (GgfwError, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as exc:
            raise PluginError(
                f"architecture plugin {spec.name} cannot be made: {kind_and_text(exc)[:_MOST_SAID]}"
            ) from exc
        if not isinstance(self.architecture, Architecture):
            raise PluginError(
                f"architecture plugin {spec.name} loads {architecture!r}; expected an Architecture class"
            )
        self.hparams = Hparams(gguf.metadata, gguf.architecture)
        self.weights = Weights(gguf.tensors)
        causal = self.architecture.causal and bool(self.hparams.get("attention.causal", True))
        if not causal:
            self.architecture.causal = self.architecture.chunkable = self.architecture.cacheable = False
        self.graph = Graph(causal)
        try:
            self.architecture.build(self.graph, self.hparams, self.weights, run)
        except (GgfwError, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as exc:
            # An impossible value in the file shows up anywhere in the plugin's arithmetic.
            key = self.hparams.last_key
            said = kind_and_text(exc)  # which may hold a text of the file, of any length
            said = said if len(said) <= _MOST_SAID else f"{said[:_MOST_SAID]}..."
            what = f"{said}{_place(exc, architecture.build.__module__)}"
            raise GraphError(
                f"architecture {spec.name} failed on this file ({what}) after reading "
                f"{key} = {brief(gguf.get(key))}; the file or the plugin is wrong"
            ) from exc
        if self.graph.hidden is None:
            raise GraphError(
                f"architecture {spec.name} described no output; build() has to end with g.output(...)"
            )
        if self.graph.pooled is not None and self.architecture.chunkable:
            raise GraphError(
                f"architecture {spec.name} pools and is chunkable; a pooled output needs whole prompts in one step"
            )
        self.layout: CacheLayout = cache_layout(self.graph)

    @property
    def n_positions(self) -> int | None:
        """Positions that have an embedding of their own, the most a sequence can have; None = no such limit."""
        tables = [n.attrs["weight"].shape[0] for n in self.graph.nodes if n.attrs.get("by") == "position"]
        return min(tables, default=None)


class LoadedModel:
    """A model that can run; make one with :meth:`load`.

    Attributes:
        gguf, hparams, architecture: the file and what serves it.
        run: how it was asked to run.
        executor: runs batches; one thread at a time.
        cache: pages and slots for its sequences.
        n_ctx: positions a sequence may have.
        n_parallel: sequences the cache was made for.
        n_vocab: width of the logits, 0 for models without.
        repack: False where weights stay in the mapped file.
        load_ms: time from opening the file to being ready (the tokenizer may still be under way).
        exact: whether results depend on the request alone, bit for bit, not on company or what was asked before.
        activations: what products of quantised weights take their activations in; None: the default.
    """

    def __init__(
        self,
        described: Described,
        executor: Executor,
        cache: Cache,
        tokenizer: Future[Tokenizer],
        *,
        n_ctx: int,
        n_parallel: int,
        load_ms: float,
        repack: bool = True,
        exact: bool = False,
        activations: str | None = None,
    ) -> None:
        self.gguf = described.gguf
        self.run = described.run
        self.hparams = described.hparams
        self.architecture = described.architecture
        self.graph = described.graph
        self.unused_tensors = described.weights.unused()
        self.executor = executor
        self.cache = cache
        self.n_ctx = n_ctx
        self.n_parallel = n_parallel
        self.n_vocab = executor.n_vocab
        self.load_ms = load_ms
        self.repack = repack
        self.exact = exact
        self.activations = activations
        self._tokenizer = tokenizer

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str] | bytes | GGUF,
        *,
        threads: int | None = None,
        ctx: int | None = None,
        kv_type: str | None = None,
        backend: str | None = None,
        n_parallel: int = 1,
        ubatch: int = 512,
        rope_scaling: str | None = None,
        rope_base: float | None = None,
        activations: str | None = None,
        deterministic: bool | None = None,
        n_state_ring: int = 2,
        packed_cache: PackedCache | None = None,
        repack: bool | None = None,
        prefault: bool = True,
        registry: Registry | None = None,
        log: Callable[[str, dict[str, Any]], None] | None = None,
    ) -> LoadedModel:
        """Load a model.

        Args:
            source: path (any shard of a split set), bytes, or an open file.
            threads: of the process's pool; None = usable physical cores.
            ctx: positions per sequence; None or 0 = what the model was trained for; never more than have an embedding,
                where positions have one each.
            kv_type: cache element type, f32, f16, bf16, q8_0 or q4_0 (the reference keeps float32 whatever is asked
                for); None = f16, or f32 when all matrices are F32.
            backend: kernel backend, or "reference" for the NumPy executor; None = the best one here.
            n_parallel: sequences that may run at once.
            ubatch: rows of the largest step; where prompts cannot be split at least ``ctx``, up to 8192.
            rope_scaling, rope_base: override the file's.
            activations: what products of quantised weights take their activations in: int16 (15 bits, two int8 planes;
                the default), int8 (fastest, 1 % of noise) or f32 (not rounded, slow).
            deterministic: one arithmetic for prompt and decode rows, so that the logits of a token have the same bits
                whether its prompt was read whole, in chunks of any size, or token by token; None = where all matrices
                are F32.
            n_state_ring: recurrent states kept of each sequence: two more than the drafts that may be verified at once.
            packed_cache: where packed weights are kept between processes; None = nowhere.
            repack: True = weights are packed into the layout that the kernels read fastest; False = they stay in the
                mapped file, for files larger than memory: the same results, slower; None = packed where memory is free
                for them.
            prefault: whether what stays mapped of the file is read ahead, in the background, as far as memory is free.
            registry: None = that of the process.
            log: called with (event, fields); None = silence.

        Raises:
            GgfwError: the file is damaged, nobody can run it, or memory is short.
        """
        begin = time.perf_counter()
        threads = None if threads is None else arguments.integer("threads", threads, 1)
        ctx = None if ctx is None else arguments.integer("ctx", ctx, 0)
        n_parallel = arguments.integer("n_parallel", n_parallel, 1)
        ubatch = arguments.integer("ubatch", ubatch, 1)
        n_state_ring = arguments.integer("n_state_ring", n_state_ring, 2)
        rope_base = None if rope_base is None else arguments.number("rope_base", rope_base, 1)
        deterministic = None if deterministic is None else arguments.flag("deterministic", deterministic)
        repack = None if repack is None else arguments.flag("repack", repack)
        prefault = arguments.flag("prefault", prefault)
        for name, word in (("kv_type", kv_type), ("backend", backend), ("activations", activations)):
            if word is not None:
                arguments.text(name, word)
        if registry is None:
            registry = default_registry()
        arguments.instance("registry", registry, Registry, "a ggfw.registry.Registry")
        if packed_cache is not None:
            from ggfw.packed_cache import PackedCache

            arguments.instance("packed_cache", packed_cache, PackedCache, "a PackedCache(folder, limit_mb)")
        own = not isinstance(source, GGUF)
        gguf = source if isinstance(source, GGUF) else GGUF.open(source)
        try:
            n_ctx = ctx or Hparams(gguf.metadata, gguf.architecture).n_ctx_train
            floats = _all_f32(gguf)
            kv_type = kv_type or ("f32" if floats else "f16")
            deterministic = floats if deterministic is None else deterministic
            described = Described(gguf, RunConfig(n_ctx, kv_type, rope_scaling, rope_base), registry)
            n_ctx = min(n_ctx, described.n_positions or n_ctx)
            if not described.architecture.chunkable:
                ubatch = max(ubatch, min(n_ctx, _MOST_WHOLE))  # whole prompts in one step
            tokenizer = _in_thread(lambda: _tokenizer_of(gguf))
            pages_each = -(-n_ctx // PAGE_SIZE)  # a page belongs to one sequence
            if pages_each * n_parallel > arguments.MOST:
                raise InvalidRequest(
                    f"{n_parallel} sequences of {n_ctx} positions are more than a cache holds; lower ctx or n_parallel",
                    "n_parallel",
                )
            n_slots = n_parallel if described.layout.states else 0
            cache = Cache(described.layout.pools, pages_each * PAGE_SIZE * n_parallel, n_slots, n_state_ring)
            if repack is None:
                repack = _fits(gguf)
            executor = _executor(
                described, cache, backend, kv_type, ubatch, threads, registry, activations, deterministic,
                packed_cache, repack, prefault,
            )  # fmt: skip
            try:
                check_vocabulary(gguf, executor.n_vocab)
            except BaseException:
                executor.close()
                raise
        except BaseException:
            if own:
                gguf.close()
            raise
        load_ms = (time.perf_counter() - begin) * 1e3
        model = cls(
            described,
            executor,
            cache,
            tokenizer,
            n_ctx=n_ctx,
            n_parallel=n_parallel,
            load_ms=load_ms,
            repack=repack,
            exact=bool(deterministic),
            activations=activations,
        )
        if log is not None:
            fields = {"model": model.name, "backend": executor.name, "n_ctx": n_ctx, "kv_type": kv_type}
            log("model_loaded", {**fields, "load_ms": round(load_ms, 1)})
            if not repack and backend != REFERENCE:
                log("weights_stay_mapped", {"model": model.name, "size_bytes": gguf.n_bytes})
            if model.unused_tensors:
                log("unused_tensors", {"names": model.unused_tensors})
        return model

    @cached_property
    def name(self) -> str:
        """``general.name``, else the file's stem, else the architecture."""
        name = self.gguf.get("general.name", None)
        path = self.gguf.path
        return str(name or (Path(path).stem if path else self.gguf.architecture))

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; waits for its thread on first use.

        Raises:
            UnknownPreTokenizer: and other errors of building it.
        """
        return self._tokenizer.result()

    def close(self) -> None:
        """Free weights, caches and the mapping; the model must be idle."""
        self.executor.close()
        self._tokenizer.exception()  # waits for its thread, which reads the mapping
        self.gguf.close()


def _place(exc: BaseException, module: str) -> str:
    """Where in the plugin's own ``module`` an exception arose, for its author; empty where it did not."""
    place, frame = "", exc.__traceback__
    while frame is not None:
        code = frame.tb_frame.f_code
        if frame.tb_frame.f_globals.get("__name__") == module:
            place = f", {os.path.basename(code.co_filename)} line {frame.tb_lineno}"
        frame = frame.tb_next
    return place


def _all_f32(gguf: GGUF) -> bool:
    """Whether all matrices are F32. Such files are for comparing: nothing is rounded, and rows of every kind take one
    arithmetic, unless asked for otherwise."""
    return all(info.ggml_type == _F32 for info in gguf.tensors.values() if len(info.shape) > 1)


def _fits(gguf: GGUF) -> bool:
    """Whether a large file finds memory for packed weights; a small one is refused where it does not."""
    if gguf.n_bytes < _LARGE or not gguf.mappings:
        return True
    from ggfw.free_memory import has_room

    return has_room(gguf)


def _executor(
    described: Described,
    cache: Cache,
    backend: str | None,
    kv_type: str,
    ubatch: int,
    threads: int | None,
    registry: Registry,
    activations: str | None,
    deterministic: bool,
    packed_cache: PackedCache | None,
    repack: bool,
    prefault: bool,
) -> Executor:
    if backend == REFERENCE:
        from ggfw.execute.reference import ReferenceExecutor

        return ReferenceExecutor(described.graph, described.layout, described.gguf, cache, max_rows=ubatch)
    from ggfw.execute.kernel_set import DEFAULT_ACTIVATIONS, KernelSet
    from ggfw.execute.native import NativeExecutor
    from ggfw.free_memory import check_room

    if repack:
        check_room(described.gguf)
    return NativeExecutor(
        described.graph,
        described.gguf,
        cache,
        kernels=KernelSet(backend, registry, activations or DEFAULT_ACTIVATIONS, deterministic, repack),
        kv_type=kv_type,
        max_rows=ubatch,
        threads=threads or default_threads(),
        packed_cache=packed_cache,
        prefault=prefault,
    )


def check_vocabulary(gguf: GGUF, n_vocab: int) -> None:
    """Check that tokens and logits are as many: a drawn id could otherwise have no text.

    Raises:
        ModelFileError: they are not.
    """
    tokens = gguf.get("tokenizer.ggml.tokens")
    if n_vocab and hasattr(tokens, "__len__") and not isinstance(tokens, str) and len(tokens) != n_vocab:
        raise ModelFileError(
            f"{gguf.source}: tokenizer.ggml.tokens has {len(tokens)} tokens and the output has {n_vocab} rows; "
            "one for each was expected, so the file is damaged or its vocabulary is another model's"
        )


def _tokenizer_of(gguf: GGUF) -> Tokenizer:
    from ggfw.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_metadata(gguf.metadata)
    gguf.release()  # the vocabulary's part of the file is not read again
    return tokenizer


def _in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Start ``work`` in a thread and return its future."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as exc:
            future.set_exception(exc)

    if not start_if_possible(Thread(target=run, name="ggfw-tokenizer", daemon=True)):
        run()
    return future

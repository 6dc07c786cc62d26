"""How much memory a model needs, told from its header before anything is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ggfw.errors import GgfwError
from ggfw.free_memory import PACKING
from ggfw.gguf import GGUF
from ggfw.gguf.analysis import kv_elements
from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw.graph.cache_layout import CacheLayout
    from ggfw.registry import Registry

#: Bytes per element of the attention cache.
KV_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}

#: What the interpreter, the libraries, the tokenizer and a step's buffers take besides weights and cache; measured
#: with SmolLM2 and gemma-3, and the same within a few megabytes.
_BASE = 96 << 20


#: Contexts that are offered when the wanted one does not fit.
_STEPS = [1 << n for n in range(9, 25)]


class MemoryShort(GgfwError):
    """A model needs more memory than there is.

    Args:
        message: the sentence with the figures.
        needed, available: bytes.
        largest: the largest context that fits, or None.
        passing: whether there will be room when models that answer now have finished.
    """

    def __init__(
        self, message: str, needed: int, available: int, largest: int | None = None, *, passing: bool = False
    ) -> None:
        super().__init__(message)
        self.needed, self.available, self.largest, self.passing = needed, available, largest, passing


def layout_of(gguf: GGUF, registry: Registry | None = None) -> CacheLayout | None:
    """The caches that the file's architecture asks for; None where none is installed, or the file does not fit it.

    Only the architecture knows which layers see a window: the files of Gemma 3 and gpt-oss do not say.
    """
    from ggfw.graph.architecture import RunConfig
    from ggfw.model import Described
    from ggfw.registry import default_registry

    trained = gguf.arch_get("context_length")
    n_ctx = trained if isinstance(trained, int) and 0 < trained < 2**31 else 4096
    try:
        return Described(gguf, RunConfig(n_ctx), registry or default_registry()).layout
    except GgfwError:
        return None


def kv_bytes(gguf: GGUF, n_ctx: int, kv_type: str = "f16", layout: CacheLayout | None = None) -> int | None:
    """Bytes of the attention cache that one sequence needs; of layers with a window, those of the window.

    Args:
        gguf: an open file.
        n_ctx: positions.
        kv_type: element type of the cache.
        layout: what :func:`layout_of` found; None: told from the header alone, and windows that it does not place in
            layers are not counted.

    Returns:
        bytes; None if there is no layout and the header does not say.
    """
    elements = kv_elements(gguf, n_ctx) if layout is None else _elements(layout, n_ctx, windows=True)
    return None if elements is None else int(elements * KV_BYTES[kv_type])


def _held_bytes(gguf: GGUF, n_ctx: int, kv_type: str, layout: CacheLayout | None) -> int:
    """Bytes of cache that a sequence's share comes to hold: pages that left a window are kept for later prompts."""
    elements = kv_elements(gguf, n_ctx) if layout is None else _elements(layout, n_ctx, windows=False)
    return int((elements or 0) * KV_BYTES[kv_type])


def _elements(layout: CacheLayout, n_ctx: int, *, windows: bool) -> int:
    return sum(
        len(pool.layers)
        * pool.n_head_kv
        * (pool.d_k + (0 if pool.v_in_k else pool.d_v))
        * (min(n_ctx, pool.window) if windows and pool.window else n_ctx)
        for pool in layout.pools
    )


def memory_needed(
    gguf: GGUF, n_ctx: int, *, kv_type: str = "f16", n_parallel: int = 1, layout: CacheLayout | None = None
) -> int:
    """Bytes that the loaded model will take: packed weights, caches of ``n_parallel`` sequences, and the rest.

    Args:
        gguf: an open file.
        n_ctx: positions per sequence.
        kv_type: element type of the cache.
        n_parallel: sequences that may run at once.
        layout: see :func:`kv_bytes`.
    """
    weights = sum(tensor.n_bytes for tensor in gguf.tensors.values())
    cache = _held_bytes(gguf, n_ctx, kv_type, layout) * n_parallel
    return int(weights * PACKING) + cache + _BASE


def largest_context(
    gguf: GGUF,
    budget: int,
    *,
    kv_type: str = "f16",
    n_parallel: int = 1,
    most: int | None = None,
    layout: CacheLayout | None = None,
) -> int | None:
    """The largest power of two, or ``most``, as context for which :func:`memory_needed` is within ``budget`` bytes.

    Args:
        layout: see :func:`kv_bytes`.

    Returns:
        positions; None when not even 512 fit.
    """
    candidates = [n for n in _STEPS if most is None or n < most] + ([most] if most else [])
    options = {"kv_type": kv_type, "n_parallel": n_parallel, "layout": layout}
    return max((n for n in candidates if memory_needed(gguf, n, **options) <= budget), default=None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Footprint:
    """What a model file would take if it was loaded, told from its header.

    Args:
        name: what messages call it.
        weights: bytes of its tensors in the file, those of a draft model included.
        n_ctx: positions per sequence.
        n_parallel: sequences that may run at once.
        cache: (context, bytes of the caches of one sequence) for the contexts that may be offered, ascending; the last
            one is ``n_ctx``.
        asked: whether somebody chose this context; else it is what the model was trained for.
    """

    name: str
    weights: int
    n_ctx: int
    n_parallel: int
    cache: tuple[tuple[int, int], ...]
    asked: bool = True

    @classmethod
    def of(
        cls,
        source: str | os.PathLike[str] | GGUF,
        *,
        ctx: int | None = None,
        kv_type: str | None = None,
        n_parallel: int = 1,
        draft: str | os.PathLike[str] | None = None,
        repack: bool | None = None,
    ) -> Footprint:
        """Read it from a header; the arguments are those of :func:`ggfw.load`. Weights that stay in the mapped file
        (``repack`` False) count for nothing: the system takes their memory back where it is needed.

        Raises:
            ModelFileError: the file is damaged.
        """
        if not isinstance(source, GGUF):
            with GGUF.open(source) as gguf:
                return cls.of(
                    gguf, ctx=ctx, kv_type=kv_type, n_parallel=n_parallel, draft=draft, repack=repack
                )
        trained = source.arch_get("context_length")
        n_ctx = ctx or (trained if isinstance(trained, int) and trained > 0 else 4096)
        tensors = source.tensors.values()
        floats = all(tensor.ggml_type == 0 for tensor in tensors if len(tensor.shape) > 1)
        kind = kv_type or ("f32" if floats else "f16")
        steps = [*(n for n in _STEPS if n < n_ctx), n_ctx]
        layout = layout_of(source)
        cache = [(n, _held_bytes(source, n, kind, layout)) for n in steps]
        weights = 0 if repack is False else sum(tensor.n_bytes for tensor in tensors)
        if draft is not None:
            with GGUF.open(draft) as small:
                weights += sum(tensor.n_bytes for tensor in small.tensors.values())
                layout = layout_of(small)
                cache = [(n, size + _held_bytes(small, n, kind, layout)) for n, size in cache]
        name = Path(source.path).name if source.path else str(source.get("general.name", "the model"))
        return cls(name, weights, n_ctx, n_parallel, tuple(cache), bool(ctx))

    def needed(self, n_ctx: int | None = None) -> int:
        """Bytes with a context of ``n_ctx`` (one of those in ``cache``); None = its own."""
        sizes = dict(self.cache)
        cache = sizes[self.n_ctx if n_ctx is None else n_ctx] * self.n_parallel
        return int(self.weights * PACKING) + cache + _BASE

    def largest(self, budget: int) -> int | None:
        """The largest context with which it takes at most ``budget`` bytes; None when not even the smallest fits."""
        return max((n for n, _ in self.cache if self.needed(n) <= budget), default=None)

    def short(self, budget: int, why: str, *, passing: bool = False) -> MemoryShort:
        """The error for a budget that it exceeds.

        Args:
            why: where the budget comes from, for the sentence.
            passing: see :class:`MemoryShort`.
        """
        fits = self.largest(budget)
        at_once = f" for {self.n_parallel} requests at once" if self.n_parallel > 1 else ""
        if passing:
            way_out = "other models are answering; try again later"
        elif fits:
            way_out = f"a context of {fits} fits (--ctx {fits})"
        else:
            way_out = "no context fits; choose a smaller model, or lower --parallel"
        return MemoryShort(
            f"{self.name} with a context of {self.n_ctx}{at_once} needs {size_text(self.needed())}, but "
            f"{size_text(budget)} are to be had ({why}); {way_out}",
            self.needed(),
            budget,
            fits,
            passing=passing,
        )


def size_text(n_bytes: int) -> str:
    """A number of bytes for people: 310 MiB, 4.2 GiB."""
    return f"{n_bytes / (1 << 30):.1f} GiB" if abs(n_bytes) >= 1 << 30 else f"{n_bytes / (1 << 20):.0f} MiB"

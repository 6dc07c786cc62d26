"""What a server knows of one model: how to load it, and what stands loaded.

An :class:`Entry` can be asked for by its names whether it is loaded or not; its :class:`Slot` is the loaded model. The
pool (`ggfw.server.pool`) decides when the one becomes the other.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ggfw.footprint import Footprint
from ggfw.library import Model
from ggfw.server.room import LoadWatch
from ggfw.server.views import with_template


@dataclass(eq=False)
class Slot:
    """A loaded model and those who use it.

    Args:
        model: what was loaded.
        owned: whether the pool closes it.
        n_bytes: memory it takes, as told beforehand; 0: nobody knows.
        load_seconds: what loading it took.
        users: requests that use it now.
        used: the pool's clock when somebody used it last.
        retired: whether it is no longer the entry's model, and goes when nobody uses it any more.
        views: the model under other chat templates, by their sources.
    """

    model: Model
    owned: bool = True
    n_bytes: int = 0
    load_seconds: float = 0.0
    users: int = 0
    used: float = 0.0
    retired: bool = False
    views: dict[str, Model] = field(default_factory=dict)

    def seen_by(self, entry: Entry) -> Model:
        """The model as a derived one has it: with its own chat template."""
        source = entry.preset.get("template")
        if not source:
            return self.model
        if source not in self.views:
            self.views[source] = with_template(self.model, source)
        return self.views[source]


@dataclass
class Entry:
    """One model that can be asked for.

    Args:
        id: what lists call it.
        load: makes the model; called in a thread, by one caller at a time; with ``ctx=`` where the context had to be
            made to fit.
        owned: whether the pool closes what ``load`` made.
        aliases: other names.
        facts: for lists while it is not loaded: ``path``, ``size_bytes``, ``architecture``, ``quant``, ``n_ctx_train``…
        footprint: tells what memory it would take; None: nobody knows.
        check: raises where its file must not be read.
        slot: the loaded model.
        expires: seconds of the pool's clock after which it may be unloaded; None: never.
        users: requests that use it now, or wait for it.
        created: Unix time.
        loading: under way, for those who wait.
        watch: how far loading has come.
        reserved: bytes that are kept free for it while it is being loaded.
        preset: what a derived model adds: ``from``, ``system``, ``messages``, ``options``, ``num_ctx``, ``template``.
        base: the model that answers for a derived one.
        revive: gives a derived one again once its base is gone, or raises.
    """

    id: str
    load: Callable[..., Model]
    owned: bool = True
    aliases: frozenset[str] = frozenset()
    facts: dict[str, Any] = field(default_factory=dict)
    footprint: Callable[[], Footprint] | None = None
    check: Callable[[], None] = lambda: None
    slot: Slot | None = None
    expires: float | None = None
    users: int = 0
    created: int = field(default_factory=lambda: int(time.time()))
    loading: asyncio.Future[None] | None = None
    watch: LoadWatch | None = None
    reserved: int = 0
    preset: dict[str, Any] = field(default_factory=dict)
    base: Entry | None = None
    revive: Callable[[], Entry] | None = None

    @property
    def model(self) -> Model | None:
        """The loaded model, of a derived one the model it was made from."""
        slot = (self.base or self).slot
        return None if slot is None else slot.model

    @property
    def load_seconds(self) -> float:
        """What loading it took; 0 while it is not loaded."""
        return self.slot.load_seconds if self.slot is not None else 0.0

    @property
    def state(self) -> str:
        """``loaded``, ``loading`` or ``available``."""
        own = self.base or self
        return "loading" if own.loading is not None else "loaded" if own.slot is not None else "available"

    @property
    def names(self) -> set[str]:
        """Everything it can be called, in lower case."""
        return {name.lower() for name in (self.id, *self.aliases)}

    @property
    def info(self) -> dict[str, Any]:
        """Facts for lists: of the loaded model, else of the file."""
        if self.base is not None:
            return {**self.base.info, **self.facts}
        if self.slot is None:
            return self.facts
        return {**self.facts, **{k: v for k, v in self.slot.model.info.items() if v is not None}}

    @property
    def real_path(self) -> str:
        """Where the model's own file lies, links resolved; empty: it has none."""
        path = self.facts.get("path")
        return os.path.realpath(path) if path and self.base is None else ""


def bytes_of(model: Model) -> int:
    """Memory that a loaded model takes, as told from its file; 0: nobody knows."""
    from ggfw.gguf import GGUF

    if not isinstance(model.gguf, GGUF):
        return 0
    n_parallel, repack = model.engine.scheduler.n_parallel, model.loaded.repack
    return Footprint.of(model.gguf, ctx=model.n_ctx, n_parallel=n_parallel, repack=repack).needed()


def facts_of(model: Model) -> dict[str, Any]:
    """What lists say about a model besides its ``info``."""
    from ggfw.gguf import GGUF, analyze

    return {"quant": analyze(model.gguf).quantization} if isinstance(model.gguf, GGUF) else {}

"""The models of a server: which there are, which are loaded, who uses them, and when they may go.

A lease keeps a model loaded while a request uses it. Afterwards it stays for its keep-alive time. A model that the
host brought is never closed here; unloading it only takes it off the list of loaded ones until it is asked for again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ggfw.errors import ModelNotFound
from ggfw.library import Model

#: Seconds a model stays loaded without requests, where nobody says otherwise: for ever.
KEEP_ALIVE = -1.0


@dataclass
class Entry:
    """One model that can be asked for.

    Args:
        id: what lists call it.
        load: makes the model; called in a thread, by one caller at a time.
        owned: whether the pool closes what ``load`` made.
        aliases: other names.
        facts: for lists while it is not loaded: ``path``, ``size_bytes``, ``architecture``, ``quant``, ``n_ctx_train``…
        model: the loaded model.
        expires: seconds of the pool's clock after which it may be unloaded; None: never.
        users: requests that use it now.
        created: Unix time.
        load_seconds: what loading it took.
        loading: under way, for those who wait.
        preset: what a derived model adds: ``from``, ``system``, ``messages``, ``options``, ``num_ctx``.
        base: the model that answers for a derived one.
    """

    id: str
    load: Callable[[], Model]
    owned: bool = True
    aliases: frozenset[str] = frozenset()
    facts: dict[str, Any] = field(default_factory=dict)
    model: Model | None = None
    expires: float | None = None
    users: int = 0
    created: int = field(default_factory=lambda: int(time.time()))
    load_seconds: float = 0.0
    preset: dict[str, Any] = field(default_factory=dict)
    base: Entry | None = None
    loading: asyncio.Future[None] | None = None

    @property
    def names(self) -> set[str]:
        """Everything it can be called, in lower case."""
        return {name.lower() for name in (self.id, *self.aliases)}

    @property
    def info(self) -> dict[str, Any]:
        """Facts for lists: of the loaded model, else of the file."""
        if self.base is not None:
            return {**self.base.info, **self.facts}
        if self.model is None:
            return self.facts
        return {**self.facts, **{k: v for k, v in self.model.info.items() if v is not None}}


class Lease:
    """A model while a request uses it; see :meth:`Pool.lease`."""

    def __init__(self, entry: Entry, model: Model, load_ms: float) -> None:
        self.entry = entry
        self.model = model
        self.load_ms = load_ms

    @property
    def id(self) -> str:
        """The model's id."""
        return self.entry.id


class Pool:
    """Models by name.

    Args:
        keep_alive: seconds a model stays loaded after its last request; negative: for ever.
        clock: gives Unix time; tests bring their own.
    """

    def __init__(self, *, keep_alive: float = KEEP_ALIVE, clock: Callable[[], float] = time.time) -> None:
        self.keep_alive = keep_alive
        self.clock = clock
        self.entries: dict[str, Entry] = {}
        self.default: Entry | None = None

    def add(self, entry: Entry) -> Entry:
        """Make a model known; the first one answers requests that name none."""
        self.entries[entry.id] = entry
        self.default = self.default or entry
        return entry

    def add_model(self, model: Model, id: str | None = None) -> Entry:
        """Make a model known that is loaded already and that somebody else closes."""
        path = model.gguf.path
        own = id or (Path(path).stem if path else model.name)
        aliases = {model.name, *({Path(path).stem, Path(path).name} if path else ())}
        entry = Entry(own, lambda: model, owned=False, aliases=frozenset(aliases), model=model)
        entry.facts = facts_of(model)
        return self.add(entry)

    def remove(self, entry: Entry) -> None:
        """Forget a model; it must have been unloaded."""
        del self.entries[entry.id]
        if self.default is entry:
            self.default = next(iter(self.entries.values()), None)

    def rows(self) -> list[Entry]:
        """All models, the default one first."""
        return sorted(self.entries.values(), key=lambda e: e is not self.default)

    def loaded(self) -> list[Entry]:
        """Those that are loaded now."""
        self.expire()
        return [e for e in self.rows() if e.model is not None]

    def find(self, name: str | None) -> Entry:
        """The model of that name; None means the default one. ``:latest`` at the end and case do not count.

        Raises:
            ModelNotFound: there is no such model.
        """
        if name is None:
            if self.default is None:
                raise ModelNotFound("this server has no model yet")
            return self.default
        wanted = name.lower()
        for spelling in (wanted, wanted.removesuffix(":latest")):
            for entry in self.entries.values():
                if spelling in entry.names:
                    return entry
        named = ", ".join(repr(e.id) for e in self.rows()[:4])
        raise ModelNotFound(f"there is no model {name!r} here; this server has {named or 'none'}")

    @contextlib.asynccontextmanager
    async def lease(self, name: str | None, *, keep_alive: float | None = None) -> AsyncIterator[Lease]:
        """Use a model; it is loaded first if need be, and stays at least until the lease ends.

        Args:
            keep_alive: seconds it stays afterwards; negative: for ever; 0: it goes at once; None: the pool's.

        Raises:
            ModelNotFound: there is no such model; besides the errors of loading.
        """
        self.expire()
        asked = self.find(name)
        entry = asked.base or asked
        entry.users += 1
        try:
            model, load_ms = await self._loaded(entry)
            yield Lease(asked, model, load_ms)
        finally:
            entry.users -= 1
            self.keep(entry, self.keep_alive if keep_alive is None else keep_alive)

    async def _loaded(self, entry: Entry) -> tuple[Model, float]:
        """The model, and what the caller waited for it in milliseconds."""
        if entry.model is not None:
            return entry.model, 0.0
        start = time.perf_counter()
        while entry.model is None:
            if entry.loading is None:
                entry.loading = asyncio.ensure_future(self._load(entry))
            # Shielded: one client that goes away must not stop what others wait for, nor lose a loaded model.
            await asyncio.shield(entry.loading)
        return entry.model, (time.perf_counter() - start) * 1e3

    async def _load(self, entry: Entry) -> None:
        start = time.perf_counter()
        try:
            entry.model = await asyncio.to_thread(entry.load)
            entry.load_seconds = time.perf_counter() - start
        finally:
            entry.loading = None

    def keep(self, entry: Entry, seconds: float) -> None:
        """Set when a model may go: ``seconds`` from now; negative: never; 0: now, if nobody uses it."""
        entry.expires = None if seconds < 0 else self.clock() + seconds
        if seconds == 0:
            self.expire()

    def expire(self) -> None:
        """Unload what is over its time and not in use."""
        now = self.clock()
        for entry in self.entries.values():
            due = entry.expires is not None and entry.expires <= now
            if due and entry.model is not None and not entry.users:
                self._unload(entry)

    def unload(self, entry: Entry) -> None:
        """Unload a model as soon as nobody uses it."""
        self.keep(entry.base or entry, 0)

    @staticmethod
    def _unload(entry: Entry) -> None:
        model, entry.model = entry.model, None
        if model is not None and entry.owned:
            # Freeing gigabytes takes a while: not in the event loop.
            threading.Thread(target=model.close, name=f"ggfw-unload-{entry.id}").start()

    def close(self) -> None:
        """Close all models that the pool has loaded itself, and wait for it."""
        for entry in self.entries.values():
            model, entry.model = entry.model, None
            if model is not None and entry.owned:
                model.close()


def facts_of(model: Model) -> dict[str, Any]:
    """What lists say about a model besides its ``info``."""
    from ggfw.gguf import GGUF, analyze

    return {"quant": analyze(model.gguf).quantization} if isinstance(model.gguf, GGUF) else {}

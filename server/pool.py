"""The models of a server: which there are, which are loaded, who uses them, and when they may go.

A lease keeps a model loaded while a request uses it. Afterwards it stays for its keep-alive time, or until another
model needs its memory. A model that the host brought is never closed here; unloading it only takes it off the list of
loaded ones until it is asked for again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ggfw.errors import ModelFileError, ModelNotFound
from ggfw.library import Model
from ggfw.server.entries import Entry, Slot, bytes_of, facts_of
from ggfw.server.room import LoadWatch, Room
from ggfw.threads import start_if_possible

#: Seconds a model stays loaded without requests, where nobody says otherwise: for ever.
KEEP_ALIVE = -1.0
#: Seconds between looks at whether a closed model has gone.
FREEING = (0.05, 0.2, 1.0)


class Lease:
    """A model while a request uses it; see :meth:`Pool.lease`."""

    def __init__(self, pool: Pool, entry: Entry, slot: Slot, load_ms: float) -> None:
        self.entry = entry
        self.model = slot.seen_by(entry)
        self.load_ms = load_ms
        self._pool, self._slot = pool, slot

    @property
    def id(self) -> str:
        """The model's id."""
        return self.entry.id

    def failed(self, error: BaseException) -> None:
        """Tell of an error: where the model's file is what failed, the model is not used any more."""
        if file_failed(error):
            self._pool.retire(self.entry.base or self.entry, self._slot, str(error))


class Pool:
    """Models by name.

    Args:
        keep_alive: seconds a model stays loaded after its last request; negative: for ever.
        clock: gives Unix time; tests bring their own.
        memory: bytes that all loaded models may take together; None: what the machine has.
        available: bytes that the process may still take, None: nobody knows.
    """

    def __init__(
        self,
        *,
        keep_alive: float = KEEP_ALIVE,
        clock: Callable[[], float] = time.time,
        memory: int | None = None,
        available: Callable[[], int | None] | None = None,
    ) -> None:
        self.keep_alive = keep_alive
        self.clock = clock
        #: By id. Threads that fetch or derive models add to it: who goes through it goes through a copy.
        self.entries: dict[str, Entry] = {}
        self.default: Entry | None = None
        #: Gives the models that the folders hold now; called in a thread. None: nobody looks again.
        self.discover: Callable[[], list[Entry]] | None = None
        #: Makes derived models known that others have written since.
        self.look_for_derived: Callable[[], None] = lambda: None
        #: Derived models that cannot be used now: name in lower case -> gives the entry after all, or raises.
        self.absent: dict[str, Callable[[], Entry]] = {}
        #: Called with (event, fields) when a model comes or goes.
        self.log: Callable[[str, dict[str, Any]], None] = lambda event, fields: None
        self.room = Room(memory, available)
        self._closing: list[threading.Thread] = []
        self._making_room = asyncio.Lock()
        self._looking = asyncio.Lock()

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
        entry = Entry(own, lambda: model, owned=False, aliases=frozenset(aliases), facts=facts_of(model))
        entry.slot = Slot(model, owned=False, n_bytes=bytes_of(model))
        return self.add(entry)

    def load_now(self, entry: Entry) -> Model:
        """Load a model before there is an event loop.

        Raises:
            MemoryShort: there is no room for it; besides the errors of loading.
        """
        start = time.perf_counter()
        found = entry.footprint() if entry.footprint is not None else None
        n_bytes, ctx = self.room.fit(found, list(self._slots()), (), self.log)
        model = entry.load() if ctx is None else entry.load(ctx=ctx)
        entry.slot = Slot(model, entry.owned, n_bytes, time.perf_counter() - start, used=self.clock())
        return model

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
        return [e for e in self.rows() if e.slot is not None]

    def find(self, name: str | None) -> Entry:
        """The model of that name; None means the default one. ``:latest`` at the end and case do not count.

        Raises:
            ModelNotFound: there is no such model, or it was made from one that is not there.
        """
        if name is None:
            if self.default is None:
                raise ModelNotFound("this server has no model yet")
            return self.default
        wanted = name.lower()
        for spelling in (wanted, wanted.removesuffix(":latest")):
            for entry in tuple(self.entries.values()):
                if spelling in entry.names:
                    return entry
            if spelling in self.absent:
                return self.absent[spelling]()
        named = ", ".join(repr(e.id) for e in self.rows()[:4])
        raise ModelNotFound(f"there is no model {name!r:.200} here; this server has {named or 'none'}")

    async def known(self, name: str | None) -> Entry:
        """What :meth:`find` gives; where that is nothing, or its file has gone, the folders are looked into again.

        Raises:
            ModelNotFound: see :meth:`find`.
        """
        with contextlib.suppress(ModelNotFound):
            found = self.find(name)
            if not self._is_gone(found.base or found):
                return found
        await self.refresh()
        return self.find(name)

    async def refresh(self) -> None:
        """Look into the folders again: models that have come become known, those whose file has gone are forgotten.

        One that is loaded or asked for, and the default one, stay known: it would be wrong to answer with another.
        """
        if self.discover is None:
            return
        async with self._looking:
            found = await asyncio.to_thread(self.discover)
        for entry in tuple(self.entries.values()):
            if self._is_gone(entry):
                self._forget(entry)
        paths = {path: entry for entry in tuple(self.entries.values()) if (path := entry.real_path)}
        taken = {name for entry in tuple(self.entries.values()) for name in entry.names}
        for new in found:
            old = paths.get(new.real_path)
            if old is None and new.id.lower() not in taken:
                self.log("model_found", {"model": new.id})
                self.add(new)
            elif old is not None and old.slot is None and old.loading is None:
                old.facts.update(new.facts)  # it may be another file of the same name
        self.look_for_derived()

    def _is_gone(self, entry: Entry) -> bool:
        idle = entry.slot is None and entry.loading is None and not entry.users and entry is not self.default
        path = entry.real_path
        return bool(idle and path and not os.path.exists(path))

    def _forget(self, entry: Entry) -> None:
        """Forget a model whose file has gone; those that were made from it are kept for when it comes again."""
        self.log("model_gone", {"model": entry.id})
        for derived in [e for e in tuple(self.entries.values()) if e.base is entry]:
            self.remove(derived)
            if derived.revive is not None:
                self.absent[derived.id.lower()] = derived.revive
        self.remove(entry)

    @contextlib.asynccontextmanager
    async def lease(self, name: str | None, *, keep_alive: float | None = None) -> AsyncIterator[Lease]:
        """Use a model; it is loaded first if need be, and stays at least until the lease ends.

        Args:
            keep_alive: seconds it stays afterwards; negative: for ever; 0: it goes at once; None: the pool's.

        Raises:
            ModelNotFound: there is no such model.
            MemoryShort: there is no room for it; besides the errors of loading.
        """
        self.expire()
        asked = await self.known(name)
        entry = asked.base or asked
        entry.users += 1
        slot: Slot | None = None
        try:
            slot, load_ms = await self._loaded(entry)
            slot.users += 1
            lease = Lease(self, asked, slot, load_ms)
            try:
                yield lease
            except Exception as error:
                lease.failed(error)
                raise
            finally:
                slot.users -= 1
                slot.used = self.clock()
        finally:
            entry.users -= 1
            if slot is not None and slot.retired:
                self._end(slot, entry, "file")
            self.keep(entry, self.keep_alive if keep_alive is None else keep_alive)

    async def _loaded(self, entry: Entry) -> tuple[Slot, float]:
        """The model, and what the caller waited for it in milliseconds."""
        if entry.slot is not None:
            return entry.slot, 0.0
        start = time.perf_counter()
        while entry.slot is None:
            if entry.loading is None:
                entry.loading = asyncio.ensure_future(self._load(entry))
            # Shielded: one client that goes away must not stop what others wait for, nor lose a loaded model.
            await asyncio.shield(entry.loading)
        return entry.slot, (time.perf_counter() - start) * 1e3

    async def _load(self, entry: Entry) -> None:
        start = time.perf_counter()
        try:
            await asyncio.to_thread(entry.check)
            ctx = await self._make_room(entry)
            entry.watch = LoadWatch(entry.reserved or int(entry.facts.get("size_bytes") or 0))
            self.log("model_loading", {"model": entry.id, "bytes": entry.reserved})
            model = await asyncio.to_thread(entry.load, **({} if ctx is None else {"ctx": ctx}))
            seconds = time.perf_counter() - start
            entry.slot = Slot(model, entry.owned, entry.reserved, seconds, used=self.clock())
            self.log("model_ready", {"model": entry.id, "load_ms": round(seconds * 1e3, 1)})
        finally:
            entry.loading = entry.watch = None
            entry.reserved = 0

    # -- memory ---------------------------------------------------------------------------------------------------

    async def _make_room(self, entry: Entry) -> int | None:
        """Unload idle models, those longest unused first, until one more fits; reserves its bytes.

        Returns:
            The context that it has to be loaded with, where that had to be made to fit; else None.

        Raises:
            MemoryShort: it does not fit, now or ever.
        """
        if entry.footprint is None:
            return None
        found = await asyncio.to_thread(entry.footprint)
        async with self._making_room:
            while True:
                for thread in [t for t in self._closing if t.is_alive()]:
                    await asyncio.to_thread(thread.join)
                idle = [
                    e
                    for e in tuple(self.entries.values())
                    if e.slot is not None and e.slot.owned and not e.users
                ]
                slots = [e.slot for e in idle if e.slot is not None]
                held = [slot for slot in self._slots() if slot not in slots]
                reserved = sum(e.reserved for e in tuple(self.entries.values()))
                ctx: int | None = None
                if not self.room.fits(found, [*held, *slots], reserved):
                    # Looked at before anybody has to go: what can never fit costs nobody his model.
                    n_bytes, ctx = self.room.fit(found, held, slots, self.log, reserved)
                    if slots:
                        oldest = min(idle, key=lambda e: e.slot.used if e.slot is not None else 0.0)
                        self._unload(oldest, "memory")
                        continue
                else:
                    n_bytes = found.needed()
                entry.reserved = n_bytes
                return ctx

    def _slots(self) -> Iterator[Slot]:
        for entry in tuple(self.entries.values()):
            if entry.slot is not None:
                yield entry.slot

    # -- coming to an end -----------------------------------------------------------------------------------------

    def keep(self, entry: Entry, seconds: float) -> None:
        """Set when a model may go: ``seconds`` from now; negative: never; 0: now, if nobody uses it."""
        entry.expires = None if seconds < 0 else self.clock() + seconds
        if seconds == 0:
            self.expire()

    def expire(self) -> None:
        """Unload what is over its time and not in use."""
        now = self.clock()
        for entry in tuple(self.entries.values()):
            due = entry.expires is not None and entry.expires <= now
            if due and entry.slot is not None and not entry.users:
                self._unload(entry, "keep_alive")

    def unload(self, entry: Entry) -> None:
        """Unload a model as soon as nobody uses it."""
        self.keep(entry.base or entry, 0)

    def retire(self, entry: Entry, slot: Slot, why: str) -> None:
        """Use a loaded model no more: the next request loads its file anew; it is closed when its last user leaves."""
        if slot.retired or not slot.owned:
            return
        slot.retired = True
        if entry.slot is slot:
            entry.slot = None
        self.log("model_failed", {"model": entry.id, "error": why})

    def _unload(self, entry: Entry, why: str) -> None:
        slot, entry.slot = entry.slot, None
        if slot is not None:
            self._end(slot, entry, why)

    def _end(self, slot: Slot, entry: Entry, why: str) -> None:
        """Close a model that nobody uses any more."""
        if not slot.owned or slot.users:
            return
        slot.owned = False  # once only
        self.log("model_unloaded", {"model": entry.id, "reason": why})
        # Freeing gigabytes takes a while: not in the event loop.
        models = [slot.model]
        thread = threading.Thread(target=_free, args=(models,), name=f"ggfw-unload-{entry.id}")
        if start_if_possible(thread):
            self._closing = [t for t in self._closing if t.is_alive()] + [thread]
        else:
            _free(models, ())  # in the event loop: nobody may wait

    def close(self) -> None:
        """Close all models that the pool has loaded itself, and wait for it."""
        for entry in tuple(self.entries.values()):
            slot, entry.slot = entry.slot, None
            if slot is not None and slot.owned:
                slot.owned = False
                slot.model.close()
        for thread in self._closing:
            thread.join()


def _free(models: list[Model], pauses: Sequence[float] = FREEING) -> None:
    """Close a model, the last of a list, and give its memory back.

    What it is made of refers to each other. Left to itself the collector comes when there are many new objects, which a
    tokenizer of 200 MB is not: models that come and go would pile up. Whoever used it last may hold it for a moment
    more, so it is looked after until it has gone, or the ``pauses`` are over.
    """
    model = models.pop()
    model.close()
    engine = weakref.ref(model.engine)
    del model
    for pause in (0.0, *pauses):
        time.sleep(pause)
        gc.collect()
        if engine() is None:
            return


def file_failed(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that of a model file that changed while it was in use."""
    while error is not None:
        if isinstance(error, ModelFileError):
            return True
        error = error.__cause__
    return False

"""Paged KV: pools of fixed-size pages, one pool per kind of layer, and the sequences that own pages.

Page tables are all that the executors see (``ggfw_batch.pages``), so a page can be shared, moved between sequences or
given back without touching a kernel. A page is free when no sequence refers to it and nobody holds it: sequences that
share a prefix refer to the same pages, and the prefix tree holds pages beyond the life of the sequence that wrote them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Sequence as SequenceABC

from ggfw.errors import GgfwError
from ggfw.records import dataclass

#: Positions per page; kernels need a multiple of 16.
PAGE_SIZE = 32

#: Marks a page that left the attention window and was given back.
GIVEN_BACK = -1


#: Versions of page tables, unique in the process, so that a version alone says which table it was.
_versions = itertools.count(1)


class OutOfPages(GgfwError):
    """No free page is left in a pool; the scheduler preempts or waits."""


@dataclass(frozen=True)
class PoolSpec:
    """One pool: the layers whose K/V have the same shape and the same window.

    Args:
        layers: layer numbers, in the order of their index inside the pool.
        n_head_kv, d_k, d_v: shape of K and V of one position.
        window: attention window in positions, 0 = everything is kept.
        v_in_k: V is the first d_v columns of K and has no memory of its own (latent attention).
    """

    layers: tuple[int, ...]
    n_head_kv: int
    d_k: int
    d_v: int
    window: int = 0
    v_in_k: bool = False

    def first_block(self, position: int) -> int:
        """The first page of a table that the row at ``position`` can see."""
        return max(0, position - self.window + 1) // PAGE_SIZE if self.window else 0


class PagePool:
    """The pages of one pool, with their reference counts. Not thread-safe: the scheduler's thread owns it.

    Attributes:
        n_used: pages that sequences refer to.
        n_kept: pages that are held, but that no sequence refers to.
    """

    def __init__(self, spec: PoolSpec, n_pages: int) -> None:
        self.spec = spec
        self.n_pages = n_pages
        self.n_used = 0
        self.n_kept = 0
        self._free: list[int] = []
        self._n_ever_taken = 0  # pages from here on are free, too: a large context costs no list
        self._references: list[int] = []  # by sequences, of the pages ever taken
        self._holds: list[int] = []  # by the prefix tree

    @property
    def n_free(self) -> int:
        """Pages that nobody refers to or holds."""
        return len(self._free) + self.n_pages - self._n_ever_taken

    def take(self, n: int) -> list[int]:
        """Take ``n`` pages, those given back last first; all or nothing."""
        if n > self.n_free:
            raise OutOfPages(f"{n} cache pages wanted, {self.n_free} of {self.n_pages} are free")
        n_new = max(0, n - len(self._free))
        taken = [self._free.pop() for _ in range(n - n_new)]
        taken += range(self._n_ever_taken, self._n_ever_taken + n_new)
        self._n_ever_taken += n_new
        self._references += [0] * n_new
        self._holds += [0] * n_new
        for page in taken:
            self._references[page] = 1
        self.n_used += n
        return taken

    def share(self, pages: SequenceABC[int]) -> None:
        """Refer to pages that are used or held, once more each."""
        for page in pages:
            if page == GIVEN_BACK:
                continue
            if not self._references[page]:
                self.n_used += 1
                self.n_kept -= 1
            self._references[page] += 1

    def give(self, pages: SequenceABC[int]) -> None:
        """Give up one reference to each of the pages."""
        for page in reversed(pages):
            if page == GIVEN_BACK:
                continue
            self._references[page] -= 1
            if self._references[page]:
                continue
            self.n_used -= 1
            if self._holds[page]:
                self.n_kept += 1
            else:
                self._free.append(page)

    def hold(self, page: int) -> None:
        """Keep a page that is used, or held already, until :meth:`drop`."""
        self._holds[page] += 1

    def drop(self, page: int) -> None:
        """Undo one :meth:`hold`."""
        self._holds[page] -= 1
        if not self._holds[page] and not self._references[page]:
            self.n_kept -= 1
            self._free.append(page)

    def referred(self, page: int) -> bool:
        """Whether a sequence refers to the page."""
        return self._references[page] > 0


class Sequence:
    """One conversation's place in the cache: a page table per pool, and a recurrent state slot.

    Attributes:
        n_positions: positions that are filled; the next row stands at this position.
        tables: per pool, the page of every PAGE_SIZE positions (GIVEN_BACK where it left the window).
        state_slot: slot of the recurrent state, -1 when the model has none. A slot is a ring of ``cache.n_ring`` states
            (two halves, unless drafts are verified): a step reads one and writes the next, so that a step can be
            repeated; a step with drafts writes one more for each draft.
        version: new (and unique in the process) whenever a table changes, so that executors can keep their copy.
        keep_from: pages from this one of each table on stay though they have left the window, until it says otherwise:
            whoever wants to keep them has not done so yet. None: nobody does.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.n_positions = 0
        self.tables: list[list[int]] = [[] for _ in cache.pools]
        self.state_slot = cache.take_slot()
        self._state_at = 0  # in the ring
        self._n_given_back = [0] * len(cache.pools)
        self.keep_from: int | None = None
        self.version = next(_versions)

    def reserve(self, n_rows: int) -> None:
        """Make room for ``n_rows`` more positions in every pool; what is only kept makes way.

        Raises:
            OutOfPages: a pool has too few free pages; nothing is changed then.
        """
        need = -(-(self.n_positions + n_rows) // PAGE_SIZE)
        for table in self.tables:
            if len(table) < need:
                break
        else:
            return
        missing = [need - len(table) for table in self.tables]
        self.cache.make_room(missing)
        for pool, table, m in zip(self.cache.pools, self.tables, missing, strict=True):
            table.extend(pool.take(max(m, 0)))
        self.version = next(_versions)

    def room(self) -> int:
        """Rows that :meth:`reserve` can make room for now."""
        pools = zip(self.cache.pools, self.tables, strict=True)
        pages = min((len(table) + pool.n_free + pool.n_kept for pool, table in pools), default=1 << 40)
        return pages * PAGE_SIZE - self.n_positions

    def adopt(self, tables: SequenceABC[list[int]], n_positions: int) -> None:
        """Begin behind a prefix: an empty sequence takes over page tables, and the references that come with them."""
        for own, table in zip(self.tables, tables, strict=True):
            own.extend(table)
        self.n_positions = n_positions
        self._n_given_back = [self._first_kept(table) for table in self.tables]
        self.version = next(_versions)

    @staticmethod
    def _first_kept(table: list[int]) -> int:
        return next((i for i, page in enumerate(table) if page != GIVEN_BACK), len(table))

    def state_halves(self, n_drafts: int = 0) -> tuple[int, int]:
        """Return the numbers of the state to read and of the last one to write.

        (-1, ...) at the start of the sequence, (-1, -1) where the model has no state.

        Args:
            n_drafts: so many states before the last one are written, too, each to the place in front of the next.
        """
        if self.state_slot < 0:
            return -1, -1
        first = self.cache.n_ring * self.state_slot
        write = first + self._state_behind(n_drafts + 1 if n_drafts else 0)
        return (first + self._state_at if self.n_positions else -1), write

    def _state_behind(self, n_states: int) -> int:
        """The place so many states further on; 0: the other one of a pair, so that plain steps touch only two."""
        n_ring = self.cache.n_ring
        if not n_states:
            n_states = -1 if self._state_at % 2 else 1
        return (self._state_at + n_states) % n_ring

    def advance(self, n_rows: int, n_states: int = 0) -> None:
        """Count ``n_rows`` positions as filled and give back pages that no later row can see.

        Args:
            n_states: after a step with drafts: which of the states that it wrote is the one behind these rows.
        """
        self.n_positions += n_rows
        if self.state_slot >= 0:
            self._state_at = self._state_behind(n_states)
        self.trim()

    def trim(self) -> None:
        """Give back pages that no row from ``n_positions`` on can see, up to ``keep_from``."""
        for i, pool in enumerate(self.cache.pools):
            if not pool.spec.window:
                continue
            table = self.tables[i]
            end = min(pool.spec.first_block(self.n_positions), len(table))
            if self.keep_from is not None:
                end = min(end, self.keep_from)
            begin = self._n_given_back[i]
            if end > begin:
                pool.give(table[begin:end])
                table[begin:end] = [GIVEN_BACK] * (end - begin)
                self._n_given_back[i] = end
                self.version = next(_versions)

    def release(self) -> None:
        """Give everything back; the sequence is empty and may be used again from position 0."""
        for pool, table in zip(self.cache.pools, self.tables, strict=True):
            pool.give(table)
            table.clear()
        self.n_positions = 0
        self._n_given_back = [0] * len(self.tables)
        self.version = next(_versions)

    def close(self) -> None:
        """Give everything back, the state slot too."""
        self.release()
        self.cache.give_slot(self.state_slot)
        self.state_slot = -1


class Cache:
    """All pools and state slots of one loaded model.

    Args:
        specs: the pools the plan asks for.
        n_positions: positions that all sequences together may hold (per pool; less in windowed pools).
        n_slots: sequences that may exist at once when the model has recurrent state, 0 when it has none.
        n_ring: states of one slot, at least 2; two more than the drafts that may be verified in one step.

    Attributes:
        windowed: whether a pool has a window.
        reclaim: called with a number of pages per pool that should become free, where something keeps pages that no
            sequence refers to; it frees what it can.
    """

    def __init__(
        self, specs: SequenceABC[PoolSpec], n_positions: int, n_slots: int = 0, n_ring: int = 2
    ) -> None:
        n_pages = -(-n_positions // PAGE_SIZE)
        self.pools = [PagePool(spec, n_pages) for spec in specs]
        self.reclaim: Callable[[SequenceABC[int]], None] | None = None
        self.windowed = any(spec.window for spec in specs)
        self._slots = list(range(n_slots - 1, -1, -1))
        self.n_slots = n_slots
        self.n_ring = n_ring

    def make_room(self, n_pages: SequenceABC[int]) -> None:
        """See that each pool has so many free pages.

        Raises:
            OutOfPages: one cannot have; nothing is changed then.
        """
        for pool, n in zip(self.pools, n_pages, strict=True):
            if n > pool.n_free + pool.n_kept:
                raise OutOfPages(f"{n} cache pages wanted, {pool.n_free} of {pool.n_pages} are free")
        if self.reclaim is not None and any(n > p.n_free for p, n in zip(self.pools, n_pages, strict=True)):
            self.reclaim(n_pages)

    def take_slot(self) -> int:
        """Take a recurrent state slot (-1 where the model has none)."""
        if not self.n_slots:
            return -1
        if not self._slots:
            raise OutOfPages(f"all {self.n_slots} recurrent state slots are in use")
        return self._slots.pop()

    def give_slot(self, slot: int) -> None:
        """Give a slot back."""
        if slot >= 0:
            self._slots.append(slot)

    @property
    def n_slots_used(self) -> int:
        """Recurrent state slots that sequences own."""
        return self.n_slots - len(self._slots)

    def sequence(self) -> Sequence:
        """Return a new, empty sequence."""
        return Sequence(self)

    def n_pages_used(self) -> int:
        """Pages that sequences refer to, over all pools."""
        return sum(pool.n_used for pool in self.pools)

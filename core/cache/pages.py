"""Paged KV: pools of fixed-size pages, one pool per kind of layer, and the sequences that own pages.

Page tables are all that the executors see (``ggfw_batch.pages``), so a page can be shared, moved between sequences or
given back without touching a kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as SequenceABC
from dataclasses import dataclass

from ggfw.errors import GgfwError

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

    def page_floats(self) -> int:
        """Elements of K and V of one page, all layers of the pool."""
        return len(self.layers) * PAGE_SIZE * self.n_head_kv * (self.d_k + (0 if self.v_in_k else self.d_v))


class PagePool:
    """Free list of one pool's pages. Not thread-safe: the scheduler's thread owns it."""

    def __init__(self, spec: PoolSpec, n_pages: int) -> None:
        self.spec = spec
        self.n_pages = n_pages
        self._free: list[int] = []
        self._n_ever_taken = 0  # pages from here on are free, too: a large context costs no list

    @property
    def n_free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free) + self.n_pages - self._n_ever_taken

    def take(self, n: int) -> list[int]:
        """Take ``n`` pages, those given back last first; all or nothing."""
        if n > self.n_free:
            raise OutOfPages(f"{n} cache pages wanted, {self.n_free} of {self.n_pages} are free")
        n_new = max(0, n - len(self._free))
        taken = [self._free.pop() for _ in range(n - n_new)]
        taken += range(self._n_ever_taken, self._n_ever_taken + n_new)
        self._n_ever_taken += n_new
        return taken

    def give(self, pages: SequenceABC[int]) -> None:
        """Give pages back."""
        self._free.extend(reversed([p for p in pages if p != GIVEN_BACK]))


class Sequence:
    """One conversation's place in the cache: a page table per pool, and a recurrent state slot.

    Attributes:
        n_positions: positions that are filled; the next row stands at this position.
        tables: per pool, the page of every PAGE_SIZE positions (GIVEN_BACK where it left the window).
        state_slot: slot of the recurrent state, -1 when the model has none. A slot has two halves: a step reads one
            and writes the other, so that a step can be repeated.
        version: new (and unique in the process) whenever a table changes, so that executors can keep their copy.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.n_positions = 0
        self.tables: list[list[int]] = [[] for _ in cache.pools]
        self.state_slot = cache.take_slot()
        self._state_half = 0
        self.version = next(_versions)

    def reserve(self, n_rows: int) -> None:
        """Make room for ``n_rows`` more positions in every pool.

        Raises:
            OutOfPages: a pool has too few free pages; nothing is changed then.
        """
        need = -(-(self.n_positions + n_rows) // PAGE_SIZE)
        missing = [need - len(table) for table in self.tables]
        if all(m <= 0 for m in missing):
            return
        for pool, m in zip(self.cache.pools, missing, strict=True):
            if m > pool.n_free:
                raise OutOfPages(f"{m} cache pages wanted, {pool.n_free} of {pool.n_pages} are free")
        for pool, table, m in zip(self.cache.pools, self.tables, missing, strict=True):
            table.extend(pool.take(max(m, 0)))
        self.version = next(_versions)

    def state_halves(self) -> tuple[int, int]:
        """Return (half-slot to read, half-slot to write); (-1, ...) at the start of the sequence, (-1, -1) without."""
        if self.state_slot < 0:
            return -1, -1
        read, write = 2 * self.state_slot + self._state_half, 2 * self.state_slot + 1 - self._state_half
        return (read if self.n_positions else -1), write

    def advance(self, n_rows: int) -> None:
        """Count ``n_rows`` positions as filled and give back pages that no later row can see."""
        self.n_positions += n_rows
        self._state_half = 1 - self._state_half
        for pool, table in zip(self.cache.pools, self.tables, strict=True):
            window = pool.spec.window
            if not window:
                continue
            # The next row, at n_positions, sees positions > n_positions - window.
            n_dead = max(0, self.n_positions - window + 1) // PAGE_SIZE
            dead = [i for i in range(n_dead - 1, -1, -1) if i < len(table)]
            for i in dead:
                if table[i] == GIVEN_BACK:
                    break
                pool.give([table[i]])
                table[i] = GIVEN_BACK
                self.version = next(_versions)

    def release(self) -> None:
        """Give everything back; the sequence is empty and may be used again from position 0."""
        for pool, table in zip(self.cache.pools, self.tables, strict=True):
            pool.give(table)
            table.clear()
        self.n_positions = 0
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
    """

    def __init__(self, specs: SequenceABC[PoolSpec], n_positions: int, n_slots: int = 0) -> None:
        n_pages = -(-n_positions // PAGE_SIZE)
        self.pools = [PagePool(spec, n_pages) for spec in specs]
        self._slots = list(range(n_slots - 1, -1, -1))
        self.n_slots = n_slots

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

    def sequence(self) -> Sequence:
        """Return a new, empty sequence."""
        return Sequence(self)

    def n_pages_used(self) -> int:
        """Pages owned by sequences, over all pools."""
        return sum(pool.n_pages - pool.n_free for pool in self.pools)

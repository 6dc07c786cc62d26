"""Reading, writing and copying pages and recurrent states between two steps: what prefix reuse and saving need."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]


class CacheMemory(Protocol):
    """The bytes of one executor's caches. Used between steps only, in the thread that runs them.

    Attributes:
        page_bytes: per pool, bytes of one page: K, then V, of all layers.
        state_bytes: bytes of one half-slot over all recurrent states; 0 where there are none.
    """

    page_bytes: list[int]
    state_bytes: int

    def copy_page(self, pool: int, source: int, target: int) -> None:
        """Copy page ``source`` of a pool to page ``target``."""

    def read_page(self, pool: int, page: int) -> U8:
        """A copy of a page, (page_bytes,) uint8."""

    def write_page(self, pool: int, page: int, data: U8) -> None:
        """Write what :meth:`read_page` gave."""

    def read_state(self, half: int) -> U8:
        """A copy of a half-slot, (state_bytes,) uint8."""

    def write_state(self, half: int, data: U8) -> None:
        """Write what :meth:`read_state` gave."""


class NumpyCacheMemory:
    """:class:`CacheMemory` over arrays whose first axis is the page, or the half-slot.

    Args:
        pools: per pool its arrays (n_pages, …): K and V of each layer.
        states: arrays (n_halves, …), one per recurrent state.
    """

    def __init__(self, pools: list[list[NDArray[Any]]], states: list[NDArray[Any]]) -> None:
        self._pools = [[_as_bytes(array) for array in arrays] for arrays in pools]
        self._states = [_as_bytes(array) for array in states]
        self.page_bytes = [sum(a.shape[1] for a in arrays) for arrays in self._pools]
        self.state_bytes = sum(a.shape[1] for a in self._states)

    def copy_page(self, pool: int, source: int, target: int) -> None:
        """See :class:`CacheMemory`."""
        for array in self._pools[pool]:
            array[target] = array[source]

    def read_page(self, pool: int, page: int) -> U8:
        """See :class:`CacheMemory`."""
        return _read(self._pools[pool], page)

    def write_page(self, pool: int, page: int, data: U8) -> None:
        """See :class:`CacheMemory`."""
        _write(self._pools[pool], page, data)

    def read_state(self, half: int) -> U8:
        """See :class:`CacheMemory`."""
        return _read(self._states, half)

    def write_state(self, half: int, data: U8) -> None:
        """See :class:`CacheMemory`."""
        _write(self._states, half, data)


def native_cache_memory(ffi: Any, pools: Any, states: Any) -> NumpyCacheMemory:
    """The caches of the native executor: its ``ggfw_pool`` and ``ggfw_state`` arrays (see ``ggfw_kernels.h``)."""
    arrays: list[list[NDArray[Any]]] = []
    for pool in pools:
        # K of (layer l, page p) stands at k + (l * n_pages + p) * k_page_bytes, V likewise.
        own: list[NDArray[Any]] = []
        for base, n_bytes in ((pool.k, pool.k_page_bytes), (pool.v, pool.v_page_bytes)):
            if n_bytes:
                buffer = ffi.buffer(base, pool.n_layers * pool.n_pages * n_bytes)
                own.extend(np.frombuffer(buffer, np.uint8).reshape(pool.n_layers, pool.n_pages, n_bytes))
        arrays.append(own)
    halves = [
        np.frombuffer(ffi.buffer(s.data, s.n_slots * s.slot_floats * 4), np.uint8).reshape(s.n_slots, -1)
        for s in states
        if s.n_slots
    ]
    return NumpyCacheMemory(arrays, halves)


def _as_bytes(array: NDArray[Any]) -> U8:
    """A view of an array as (n, bytes); it must be contiguous, for a copy would not be the cache."""
    view = array.reshape(len(array), -1).view(np.uint8)
    assert np.shares_memory(view, array) or not array.size
    return view


def _read(arrays: list[U8], index: int) -> U8:
    return np.concatenate([a[index] for a in arrays]) if arrays else np.zeros(0, np.uint8)


def _write(arrays: list[U8], index: int, data: U8) -> None:
    begin = 0
    for array in arrays:
        array[index] = data[begin : begin + array.shape[1]]
        begin += array.shape[1]

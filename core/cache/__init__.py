"""Caches: pages of K and V, recurrent state slots."""

from ggfw.cache.pages import GIVEN_BACK, PAGE_SIZE, Cache, OutOfPages, PagePool, PoolSpec, Sequence

__all__ = ["GIVEN_BACK", "PAGE_SIZE", "Cache", "OutOfPages", "PagePool", "PoolSpec", "Sequence"]

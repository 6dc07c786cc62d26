"""Names of prefixes: those of a prompt are those that the engine's tree has after it; needs no Ray."""

from __future__ import annotations

from ggfw_ray.prefix import CachedBlocks, block_names, chain

import ggfw
from ggfw.cache import PAGE_SIZE
from ggfw.testing import tiny_gguf


def test_a_name_depends_on_all_tokens_before_it() -> None:
    ids = list(range(3 * PAGE_SIZE))
    names = block_names(ids)
    assert len(names) == len(set(names)) == 3
    assert block_names(ids[: 2 * PAGE_SIZE + 5]) == names[:2] and block_names(ids[:5]) == []
    other = block_names([7, *ids[1:]])
    assert not set(other) & set(names), "the second block has the same tokens, but another beginning"
    assert names[0] == chain(0, ids[:PAGE_SIZE]) != chain(1, ids[:PAGE_SIZE])


def test_the_tree_has_the_names_of_what_was_evaluated() -> None:
    with ggfw.load(tiny_gguf(n_ctx=1024), spec="off") as model:
        cached = CachedBlocks(model.engine.reuse.tree)
        assert cached.names() == []
        first = [1, *range(40, 40 + 3 * PAGE_SIZE)]
        second = [*first[: 2 * PAGE_SIZE], *range(200, 150, -1)]
        for prompt in (first, second):
            model.generate(prompt, max_tokens=2)
            assert set(block_names(prompt)) <= set(cached.names())
        names = cached.names()
        assert cached.names() == names, "a second look says the same"
        assert len(names) == len(set(names))
        both = set(block_names(first)) & set(block_names(second))
        assert len(both) == 2


def test_what_was_evicted_has_no_name_any_more() -> None:
    with ggfw.load(tiny_gguf(n_ctx=1024), spec="off", prefix_cache_mb=0) as model:
        cached = CachedBlocks(model.engine.reuse.tree)
        model.generate([1, *range(40, 200)], max_tokens=2)
        assert cached.names() == []

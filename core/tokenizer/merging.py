"""Pair merging, the common core of SentencePiece-style and byte-pair encoding.

A text starts as a list of characters. The adjacent pair with the smallest key is joined, again and again,
until no pair has a key; among equal keys the leftmost goes first. The key is the rank of the merge (BPE) or
the negated score of the joined piece (SentencePiece). This order is exactly that of llama.cpp's work queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush

NO_MERGE = math.inf
_QUADRATIC_LIMIT = 96  # symbols; below, scanning a short list (in C) is faster than a heap

PairKey = Callable[[str, str], float]


def merge_pairs(symbols: list[str], key: PairKey) -> list[str]:
    """Merge until nothing is left to merge.

    Args:
        symbols: characters of one piece of text; consumed.
        key: order of merging two neighbours (smallest first), ``NO_MERGE`` if they do not merge.

    Returns:
        The remaining symbols in order; joined they are the input.
    """
    return _merge_by_scan(symbols, key) if len(symbols) <= _QUADRATIC_LIMIT else _merge_by_heap(symbols, key)


def _merge_by_scan(symbols: list[str], key: PairKey) -> list[str]:
    keys = [key(a, b) for a, b in zip(symbols, symbols[1:], strict=False)]
    while keys:
        best = min(keys)
        if best == NO_MERGE:
            break
        i = keys.index(best)
        symbols[i] += symbols.pop(i + 1)
        del keys[i]
        if i:
            keys[i - 1] = key(symbols[i - 1], symbols[i])
        if i < len(keys):
            keys[i] = key(symbols[i], symbols[i + 1])
    return symbols


def _merge_by_heap(symbols: list[str], key: PairKey) -> list[str]:
    # The list becomes a chain of live symbols. A queue entry is stale if one of its two symbols is gone or has grown,
    # which shows in the sum of their lengths.
    count = len(symbols)
    following = list(range(1, count + 1))
    before = list(range(-1, count - 1))
    queue: list[tuple[float, int, int, int]] = []  # (key, left, right, joined length)
    for i in range(count - 1):
        k = key(symbols[i], symbols[i + 1])
        if k != NO_MERGE:
            queue.append((k, i, i + 1, len(symbols[i]) + len(symbols[i + 1])))
    heapify(queue)
    while queue:
        _, left, right, length = heappop(queue)
        a, b = symbols[left], symbols[right]
        if not a or not b or len(a) + len(b) != length:
            continue
        symbols[left] = a = a + b
        symbols[right] = ""
        after = following[right]
        following[left] = after
        if after < count:
            before[after] = left
            k = key(a, symbols[after])
            if k != NO_MERGE:
                heappush(queue, (k, left, after, length + len(symbols[after])))
        left_of = before[left]
        if left_of >= 0:
            k = key(symbols[left_of], a)
            if k != NO_MERGE:
                heappush(queue, (k, left_of, left, len(symbols[left_of]) + length))
    return [s for s in symbols if s]

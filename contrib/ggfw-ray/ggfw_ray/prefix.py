"""Names for prefixes: a hash for each whole block of tokens, which depends on all tokens before it.

The ingress names the blocks of a prompt, replicas name those in their prefix tree, and the router compares. Nothing of
a text can be read from a name, and 64 bits are enough for names that are only hints.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any

from ggfw.cache import PAGE_SIZE


def chain(before: int, block: Sequence[int]) -> int:
    """The name of a block behind the block of the name ``before`` (0: at the beginning)."""
    data = before.to_bytes(8, "little") + array("i", block).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def block_names(ids: Sequence[int]) -> list[int]:
    """Names of the whole blocks of a prompt, first to last."""
    names: list[int] = []
    for at in range(0, len(ids) - PAGE_SIZE + 1, PAGE_SIZE):
        names.append(chain(names[-1] if names else 0, ids[at : at + PAGE_SIZE]))
    return names


class CachedBlocks:
    """Names of the blocks in an engine's prefix tree; names of nodes that stay are not computed again.

    Args:
        tree: a :class:`ggfw.cache.prefix.PrefixTree`.
    """

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        #: Node -> its name, of the nodes of the last look.
        self._known: dict[Any, int] = {}

    def names(self) -> list[int]:
        """Names of what the tree holds now, most recently used first."""
        for _ in range(100):
            try:
                nodes = list(
                    self.tree
                )  # one step of the interpreter; the engine's thread may have been in another
                break
            except RuntimeError:
                continue
        else:
            return []
        known: dict[Any, int] = {}
        found = [name for node in reversed(nodes) if (name := self._name(node, known))]
        self._known = known
        return found

    def _name(self, node: Any, known: dict[Any, int]) -> int:
        """The name of a node; 0 for what was dropped meanwhile, and for parts of a block."""
        path = []
        while node is not None and len(node.tokens) == PAGE_SIZE and node not in known:
            path.append(node)
            node = node.parent
        if node is None or (node.tokens and node not in known):
            return 0  # dropped, so that it has no parent any more, or a part of a block
        name = known.get(node, 0)
        for part in reversed(path):
            name = self._known.get(part) or chain(name, part.tokens)
            known[part] = name
        return name

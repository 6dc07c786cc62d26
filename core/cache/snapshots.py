"""Snapshots of recurrent state at positions inside the prefix tree, dropped oldest use first."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ggfw.cache.prefix import Node

State = NDArray[np.uint8]


class Snapshots:
    """The snapshots of one tree. A node knows which of its offsets have one; the states are here.

    Attributes:
        n_bytes: of all states.
    """

    def __init__(self) -> None:
        self.n_bytes = 0
        self._states: OrderedDict[tuple[int, int], tuple[Node, State]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def add(self, node: Node, offset: int, state: State) -> None:
        """Keep the state behind the first ``offset`` tokens of a node; one that is there already is as good."""
        key = (id(node), offset)
        if offset in node.offsets:
            self._states.move_to_end(key)
            return
        node.offsets.add(offset)
        self._states[key] = (node, state)
        self.n_bytes += state.nbytes

    def get(self, node: Node, offset: int) -> State:
        """A state that is there, which counts as used."""
        key = (id(node), offset)
        self._states.move_to_end(key)
        return self._states[key][1]

    def drop_oldest(self) -> Node:
        """Drop the state that was not used for longest; gives the node that had it."""
        (_, offset), (node, state) = self._states.popitem(last=False)
        node.offsets.discard(offset)
        self.n_bytes -= state.nbytes
        return node

    def drop(self, node: Node) -> None:
        """Drop all states of a node."""
        for offset in node.offsets:
            _, state = self._states.pop((id(node), offset))
            self.n_bytes -= state.nbytes
        node.offsets.clear()

    def move(self, source: Node, target: Node) -> None:
        """Give a node's states to one whose tokens begin with the same ones."""
        for offset in sorted(source.offsets):
            self.add(target, offset, self._states[id(source), offset][1])
        self.drop(source)

"""The prefix tree: which pages hold which tokens, over all requests of one model.

A node stands for the tokens of one page, below the node of the tokens before them; a leaf may stand for fewer. It holds
a page of each pool, or none where the page had left the window before the node came to be. A prefix can be used up to a
position when every pool has the pages that the row there sees, and, where the model has recurrent state, a snapshot
stands at exactly that position.

Nodes are dropped least recently used first, leaves before what they hang on, never while a sequence refers to their
pages. Pages that nobody refers to have a budget of bytes, and so have snapshots; pages make way at once for requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from collections.abc import Sequence as SequenceABC
from dataclasses import field
from typing import TYPE_CHECKING

from ggfw.cache.pages import GIVEN_BACK, PAGE_SIZE, Cache, OutOfPages, Sequence
from ggfw.cache.snapshots import Snapshots, State
from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw.execute.cache_memory import CacheMemory

#: Nodes that give up pages, but stay, at a time.
_STRIPPED_AT_ONCE = 16


class Node:
    """A page's tokens, below those before them.

    Attributes:
        parent: None for a root and for what was dropped.
        tokens: PAGE_SIZE ids; fewer in a tail, none in a root.
        children: nodes of whole pages by their tokens.
        tails: leaves of fewer tokens.
        pages: per pool; GIVEN_BACK where there is none.
        offsets: where in its tokens a snapshot stands: behind so many of them.
    """

    __slots__ = ("children", "offsets", "pages", "parent", "tails", "tokens")

    def __init__(self, parent: Node | None, tokens: tuple[int, ...], n_pools: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.children: dict[tuple[int, ...], Node] = {}
        self.tails: list[Node] = []
        self.pages = [GIVEN_BACK] * n_pools
        self.offsets: set[int] = set()

    @property
    def is_leaf(self) -> bool:
        """Whether nothing hangs on it."""
        return not self.children and not self.tails


@dataclass
class Match:
    """The longest prefix that can be used.

    Attributes:
        n: its tokens; 0: there is none.
        nodes: one per page, the last one perhaps used in part.
        state: the recurrent state there, or None.
    """

    n: int = 0
    nodes: list[Node] = field(default_factory=list)
    state: State | None = None


class PrefixTree:
    """See the module. Not thread-safe: the engine's thread owns it.

    Args:
        cache: whose pages it holds.
        memory: of the executor that fills them.
        budget: bytes that pages which nobody refers to may take.
        state_budget: bytes that snapshots may take.

    Attributes:
        n_evicted: nodes dropped to make room.
    """

    def __init__(self, cache: Cache, memory: CacheMemory, budget: int, state_budget: int = 0) -> None:
        self.cache = cache
        self.memory = memory
        self.budget = budget
        self.state_budget = state_budget
        self.snapshots = Snapshots()
        self.n_evicted = 0
        self._roots: dict[Hashable, Node] = {}
        self._order: OrderedDict[Node, None] = (
            OrderedDict()
        )  # least recently used first; parents behind children
        cache.reclaim = self.make_room

    # -- what there is -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._order)

    @property
    def kept_bytes(self) -> int:
        """Bytes of pages that only the tree keeps."""
        pools = zip(self.cache.pools, self.memory.page_bytes, strict=True)
        return sum(pool.n_kept * n_bytes for pool, n_bytes in pools)

    @property
    def n_bytes(self) -> int:
        """Bytes of pages that only the tree keeps, and of snapshots."""
        return self.kept_bytes + self.snapshots.n_bytes

    # -- finding -------------------------------------------------------------------------------------------------

    def match(self, key: Hashable, tokens: SequenceABC[int], limit: int) -> Match:
        """The longest prefix of ``tokens`` that can be used, at most ``limit`` of them.

        Args:
            key: only what was inserted with the same key is found.
        """
        node = self._roots.get(key)
        if node is None or limit < 1:
            return Match()
        path: list[Node] = []
        at = 0
        while at + PAGE_SIZE <= len(tokens):
            child = node.children.get(tuple(tokens[at : at + PAGE_SIZE]))
            if child is None:
                break
            path.append(child)
            node, at = child, at + PAGE_SIZE
        found = self._best(path, self._partly(node, tokens, at), limit)
        if found.nodes:
            self._touch(found.nodes[-1])
        return found

    @staticmethod
    def _partly(node: Node, tokens: SequenceABC[int], at: int) -> list[tuple[int, Node]]:
        """Nodes below ``node`` that begin like ``tokens`` from ``at`` on, with the number of tokens in common."""
        rest = tokens[at : at + PAGE_SIZE]
        if not rest:
            return []
        first, found = rest[0], []
        for child in (*node.tails, *node.children.values()):
            if child.tokens[0] == first:
                n = next(
                    (i for i, (a, b) in enumerate(zip(child.tokens, rest, strict=False)) if a != b), None
                )
                found.append((min(len(child.tokens), len(rest)) if n is None else n, child))
        return found

    def _best(self, path: list[Node], partly: list[tuple[int, Node]], limit: int) -> Match:
        """The deepest usable position on a path, or in one of the nodes that continue it."""
        at = len(path) * PAGE_SIZE
        # (position, node that continues the path or None), the deepest first
        options: list[tuple[int, Node | None]] = []
        if self.memory.state_bytes:
            options += [(at + o, child) for n, child in partly for o in child.offsets if o <= n]
            options += [(i * PAGE_SIZE + o, None) for i, node in enumerate(path) for o in node.offsets]
            options = [option for option in options if option[0] <= limit]
        else:
            options += [(min(at + n, limit), child) for n, child in partly if n and limit > at]
            options += [(min(at, limit), None)]
        options.sort(key=lambda option: -option[0])
        for position, child in options:
            nodes = path if child is None else [*path, child]
            while position > 0:
                gap = self._missing(nodes, position)
                if gap is None:
                    return self._matched(nodes, position)
                if self.memory.state_bytes:
                    break
                position = gap * PAGE_SIZE  # every position behind it and before this one sees the gap, too
        return Match()

    def _missing(self, nodes: list[Node], position: int) -> int | None:
        """The first page that the row at ``position`` would see and that is not there; None: it sees everything."""
        last = (position - 1) // PAGE_SIZE
        missing = None
        for i, pool in enumerate(self.cache.pools):
            for block in range(pool.spec.first_block(position), last + 1):
                if nodes[block].pages[i] == GIVEN_BACK:
                    missing = block if missing is None else max(missing, block)
        return missing

    def _matched(self, nodes: list[Node], position: int) -> Match:
        last, offset = (position - 1) // PAGE_SIZE, (position - 1) % PAGE_SIZE + 1
        state = self.snapshots.get(nodes[last], offset) if self.memory.state_bytes else None
        return Match(position, nodes[: last + 1], state)

    def adopt(self, match: Match, sequence: Sequence) -> None:
        """Let an empty sequence begin behind a match: it shares whole pages, and has a copy of the last one's part.

        Raises:
            OutOfPages: there is no page for the copy; nothing is changed then.
        """
        tables: list[list[int]] = []
        pools = self.cache.pools
        for i, pool in enumerate(pools):
            first = pool.spec.first_block(match.n)
            tables.append([GIVEN_BACK] * first + [node.pages[i] for node in match.nodes[first:]])
            pool.share(tables[i])
        if match.n % PAGE_SIZE:
            try:
                self.cache.make_room([1] * len(pools))
            except OutOfPages:
                for pool, table in zip(pools, tables, strict=True):
                    pool.give(table)
                raise
            for i, (pool, table) in enumerate(zip(pools, tables, strict=True)):
                [copy] = pool.take(1)
                self.memory.copy_page(i, table[-1], copy)
                pool.give(table[-1:])
                table[-1] = copy
        sequence.adopt(tables, match.n)
        if match.state is not None:
            self.memory.write_state(sequence.state_halves()[0], match.state)

    # -- growing -------------------------------------------------------------------------------------------------

    def insert(
        self,
        key: Hashable,
        tokens: SequenceABC[int],
        sequence: Sequence,
        states: SequenceABC[tuple[int, State]] = (),
    ) -> None:
        """Hold the pages of a sequence.

        Args:
            key: see :meth:`match`.
            tokens: what stands at its positions, as many of them as shall be kept.
            states: (position, snapshot) of its recurrent state.
        """
        n_pools, n = len(self.cache.pools), len(tokens)
        root = self._roots.get(key)
        if root is None:
            root = self._roots[key] = Node(None, (), n_pools)
        node, nodes = root, []
        for block in range(n // PAGE_SIZE):
            own = tuple(tokens[block * PAGE_SIZE : (block + 1) * PAGE_SIZE])
            child = node.children.get(own)
            if child is None:
                child = node.children[own] = Node(node, own, n_pools)
            self._fill(child, sequence, block)
            if node.tails:
                self._absorb_tails(node, child)
            node = child
            nodes.append(node)
        if n % PAGE_SIZE:
            node = self._tail(node, tuple(tokens[n - n % PAGE_SIZE :]), sequence, n // PAGE_SIZE)
            nodes.append(node)
        for position, state in states:
            if 0 < position <= n:
                block = (position - 1) // PAGE_SIZE
                self.snapshots.add(nodes[block], position - block * PAGE_SIZE, state)
        if node is not root:
            self._touch(node)
            self._prune(node)
        elif root.is_leaf:
            del self._roots[key]
        self.trim()

    def _fill(self, node: Node, sequence: Sequence, block: int) -> None:
        """Hold those pages of a block that the node has not."""
        for i, pool in enumerate(self.cache.pools):
            page = sequence.tables[i][block]
            if node.pages[i] == GIVEN_BACK and page != GIVEN_BACK:
                pool.hold(page)
                node.pages[i] = page

    def _absorb_tails(self, parent: Node, child: Node) -> None:
        """Drop tails that a new node makes superfluous."""
        for tail in list(parent.tails):
            if tail is child or child.tokens[: len(tail.tokens)] != tail.tokens:
                continue
            # Where the node came to be its page may have left the window already; the tail has it still.
            if all(
                own != GIVEN_BACK or old == GIVEN_BACK
                for own, old in zip(child.pages, tail.pages, strict=True)
            ):
                self.snapshots.move(tail, child)
                self._remove(tail)

    def _tail(self, parent: Node, tokens: tuple[int, ...], sequence: Sequence, block: int) -> Node:
        """The node for the tokens of a page that is not full."""
        n = len(tokens)
        for child in (*parent.children.values(), *parent.tails):
            if child.tokens[:n] == tokens:
                if len(child.tokens) == n:
                    self._fill(child, sequence, block)
                pages = (table[block] for table in sequence.tables)
                if all(
                    own != GIVEN_BACK or page == GIVEN_BACK
                    for own, page in zip(child.pages, pages, strict=True)
                ):
                    return child
        tail = Node(parent, tokens, len(self.cache.pools))
        parent.tails.append(tail)
        self._fill(tail, sequence, block)
        self._absorb_tails(parent, tail)
        return tail

    def _touch(self, node: Node | None) -> None:
        """Count a node and those it hangs on as just used."""
        order = self._order
        while node is not None and node.parent is not None:
            order[node] = None
            order.move_to_end(node)
            node = node.parent

    # -- shrinking -----------------------------------------------------------------------------------------------

    def make_room(self, n_pages: SequenceABC[int]) -> None:
        """Drop nodes until each pool has so many free pages, or nothing is left to drop."""
        while any(n > pool.n_free for pool, n in zip(self.cache.pools, n_pages, strict=True)):
            if not self._evict():
                return

    def trim(self) -> None:
        """Drop what is beyond the budget."""
        while self.snapshots.n_bytes > self.state_budget:
            self._prune(self.snapshots.drop_oldest())
        while self.kept_bytes > self.budget and self._evict():
            pass

    def clear(self) -> None:
        """Drop everything that no sequence refers to."""
        while self._evict():
            pass
        for node in list(self._order):
            self.snapshots.drop(node)
            self._prune(node)

    def discard(self, key: Hashable, tokens: SequenceABC[int]) -> None:
        """Drop what was inserted for ``tokens``, as far as nobody refers to it and nothing else hangs on it."""
        node = self._roots.get(key)
        if node is None:
            return
        at = 0
        while at < len(tokens):
            child = node.children.get(tuple(tokens[at : at + PAGE_SIZE]))
            if child is None:
                found = self._partly(node, tokens, at)
                whole = [c for n, c in found if n == len(c.tokens)]
                node = whole[0] if whole else node
                break
            node, at = child, at + PAGE_SIZE
        while node.parent is not None and node.is_leaf and not self._referred(node):
            parent = node.parent
            self._remove(node)
            node = parent

    def _referred(self, node: Node) -> bool:
        pools = zip(self.cache.pools, node.pages, strict=True)
        return any(page != GIVEN_BACK and pool.referred(page) for pool, page in pools)

    def _evict(self) -> bool:
        """Drop the least recently used leaf, else pages above leaves that are in use; False: there is nothing."""
        seen: set[Node] = set()
        while self._order:
            node = next(iter(self._order))
            if node in seen:
                break
            seen.add(node)
            if node.is_leaf and not self._referred(node):
                parent = node.parent
                self._remove(node)
                self._prune(parent)
                self.n_evicted += 1
                return True
            self._touch(node)
        return self._strip()

    def _strip(self) -> bool:
        """Drop pages that nobody refers to from the first nodes that have some; what is left of them stays.

        Such pages are behind the windows of those who run, or those who run have pages of their own for these tokens.
        """
        n_stripped = 0
        for node in self._order:
            dropped = False
            for i, pool in enumerate(self.cache.pools):
                page = node.pages[i]
                if page != GIVEN_BACK and not pool.referred(page):
                    node.pages[i] = GIVEN_BACK
                    pool.drop(page)
                    dropped = True
            n_stripped += dropped
            if n_stripped == _STRIPPED_AT_ONCE:
                break
        self.n_evicted += n_stripped
        return n_stripped > 0

    def _prune(self, node: Node | None) -> None:
        """Drop a leaf that holds nothing, and what it hangs on if that is one then."""
        while (
            node is not None
            and node.parent is not None
            and node.is_leaf
            and not node.offsets
            and all(page == GIVEN_BACK for page in node.pages)
        ):
            parent = node.parent
            self._remove(node)
            node = parent

    def _remove(self, node: Node) -> None:
        """Take a leaf out of the tree."""
        parent = node.parent
        assert parent is not None
        if len(node.tokens) == PAGE_SIZE:
            del parent.children[node.tokens]
        else:
            parent.tails.remove(node)
        node.parent = None
        self.snapshots.drop(node)
        for i, pool in enumerate(self.cache.pools):
            if node.pages[i] != GIVEN_BACK:
                pool.drop(node.pages[i])
                node.pages[i] = GIVEN_BACK
        self._order.pop(node, None)
        if parent.parent is None and parent.is_leaf:
            for key in [key for key, root in self._roots.items() if root is parent]:
                del self._roots[key]

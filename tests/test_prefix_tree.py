"""Pages, reference counts and the prefix tree under any order of events: nothing is lost, shared wrongly, or leaks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ggfw.cache import GIVEN_BACK, PAGE_SIZE, Cache, OutOfPages, PoolSpec, Sequence
from ggfw.cache.prefix import Node, PrefixTree
from ggfw.cache.snapshots import Snapshots
from ggfw.execute.cache_memory import NumpyCacheMemory

N_PAGES = 24


class Machine(RuleBasedStateMachine):
    """Sequences write their tokens into pages, and a running hash into the state, as an executor would K and V."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences: list[tuple[Sequence, list[int], str]] = []
        self.dice = random.Random(0)

    @initialize(
        windows=st.sampled_from([(0,), (0, 40), (40,), (33, 100), ()]),
        states=st.booleans(),
        pages=st.integers(0, 20),
    )
    def make(self, windows: tuple[int, ...], states: bool, pages: int) -> None:
        states = states or not windows
        specs = [PoolSpec((i,), 1, 1, 1, window=w) for i, w in enumerate(windows)]
        self.cache = Cache(specs, N_PAGES * PAGE_SIZE, 4 if states else 0)
        self.pages = [np.full((N_PAGES, PAGE_SIZE), -1, np.int64) for _ in specs]
        self.states = np.zeros((8, 1), np.int64)
        memory = NumpyCacheMemory([[p] for p in self.pages], [self.states] if states else [])
        self.tree = PrefixTree(self.cache, memory, pages * PAGE_SIZE * 8, 6 * 8 if states else 0)

    # -- what an engine does --------------------------------------------------------------------------------------

    @rule(seed=st.integers(0, 5), n=st.integers(1, 150), key=st.sampled_from("ab"))
    def begin(self, seed: int, n: int, key: str) -> None:
        """A request with a prompt of few kinds, so that prefixes are common."""
        dice = random.Random(seed // 2)
        tokens = [dice.randrange(3) for _ in range(n)]
        if seed % 2:
            tokens[n // 2 :] = [7] * (n - n // 2)
        try:
            sequence = self.cache.sequence()
        except OutOfPages:
            return
        match = self.tree.match(key, tokens, n - 1)
        assert match.n <= n - 1
        if match.n:
            try:
                self.tree.adopt(match, sequence)
            except OutOfPages:
                sequence.close()
                return
        sequence.keep_from = match.n // PAGE_SIZE
        self.check(sequence, tokens[: match.n])
        self.sequences.append((sequence, tokens[: match.n], key))
        self.write(len(self.sequences) - 1, tokens[match.n :])

    @precondition(lambda self: self.sequences)
    @rule(which=st.integers(0, 99), n=st.integers(1, 70), token=st.integers(0, 3))
    def go_on(self, which: int, n: int, token: int) -> None:
        self.write(which % len(self.sequences), [token] * n)

    def write(self, which: int, tokens: list[int]) -> None:
        sequence, written, _ = self.sequences[which]
        before = self.free()
        need = -(-(sequence.n_positions + len(tokens)) // PAGE_SIZE)
        missing = [need - len(table) for table in sequence.tables]
        try:
            sequence.reserve(len(tokens))
        except OutOfPages:
            assert self.free() == before
            assert any(n > free for n, free in zip(missing, before, strict=True)), "there was room"
            return
        at = sequence.n_positions
        for table, pages in zip(sequence.tables, self.pages, strict=True):
            for i, token in enumerate(tokens, at):
                pages[table[i // PAGE_SIZE], i % PAGE_SIZE] = token
        written += tokens
        if sequence.state_slot >= 0:
            self.states[sequence.state_halves()[1]] = hash(tuple(written))
        sequence.advance(len(tokens))
        self.check(sequence, written)

    @precondition(lambda self: self.sequences)
    @rule(which=st.integers(0, 99))
    def commit(self, which: int) -> None:
        sequence, written, key = self.sequences[which % len(self.sequences)]
        self.insert(sequence, written, key)
        sequence.keep_from = None
        sequence.trim()

    @precondition(lambda self: self.sequences)
    @rule(which=st.integers(0, 99), keep=st.booleans(), discard=st.booleans())
    def end(self, which: int, keep: bool, discard: bool) -> None:
        sequence, written, key = self.sequences.pop(which % len(self.sequences))
        if keep:
            self.insert(sequence, written, key)
        sequence.close()
        if discard:
            self.tree.discard(key, written)
        self.tree.trim()

    def insert(self, sequence: Sequence, written: list[int], key: str) -> None:
        states = []
        if sequence.state_slot >= 0 and sequence.n_positions:
            states = [(len(written), self.tree.memory.read_state(sequence.state_halves()[0]))]
        self.tree.insert(key, written, sequence, states)

    # -- what must hold -------------------------------------------------------------------------------------------

    def free(self) -> list[int]:
        return [pool.n_free + pool.n_kept for pool in self.cache.pools]

    def check(self, sequence: Sequence, written: list[int]) -> None:
        """What the next row sees is what this sequence wrote, or what was written for the same tokens."""
        n = sequence.n_positions
        assert n == len(written)
        for pool, table, pages in zip(self.cache.pools, sequence.tables, self.pages, strict=True):
            first = max(0, n - pool.spec.window + 1) if pool.spec.window else 0
            seen = [int(pages[table[i // PAGE_SIZE], i % PAGE_SIZE]) for i in range(first, n)]
            assert seen == written[first:], "pages of another prefix"
        if n and sequence.state_slot >= 0:
            assert self.states[sequence.state_halves()[0]] == hash(tuple(written)), (
                "a state of another prefix"
            )

    @invariant()
    def every_page_is_counted(self) -> None:
        if not hasattr(self, "tree"):
            return
        for i, pool in enumerate(self.cache.pools):
            referred = [p for s, _, _ in self.sequences for p in s.tables[i] if p != GIVEN_BACK]
            held = [node.pages[i] for node in self.tree if node.pages[i] != GIVEN_BACK]
            free = set(pool._free) | set(range(pool._n_ever_taken, pool.n_pages))
            assert len(free) == pool.n_free == pool.n_pages - len({*referred, *held})
            assert not free & {*referred, *held}, "free and in use"
            assert pool.n_used == len(set(referred)) and pool.n_kept == len({*held} - {*referred})
            assert all(pool._references[p] == referred.count(p) for p in {*referred, *held})
        if self.cache.n_slots:
            assert self.cache.n_slots_used == len(self.sequences)

    @invariant()
    def the_tree_is_in_order(self) -> None:
        if not hasattr(self, "tree"):
            return
        place = {node: i for i, node in enumerate(self.tree)}
        seen = 0

        def walk(node: Node) -> None:
            nonlocal seen
            for child in (*node.children.values(), *node.tails):
                assert child.parent is node and (node.parent is None or place[child] < place[node])
                assert (len(child.tokens) == PAGE_SIZE) == (child.tokens in node.children)
                seen += 1
                walk(child)

        for root in self.tree._roots.values():
            assert not root.is_leaf
            walk(root)
        assert seen == len(place) == len(self.tree)
        assert len(self.tree.snapshots) == sum(len(node.offsets) for node in self.tree)
        assert self.tree.snapshots.n_bytes == 8 * len(self.tree.snapshots) <= self.tree.state_budget

    @invariant()
    def the_budget_is_kept(self) -> None:
        if hasattr(self, "tree") and not self.sequences:
            self.tree.trim()
            assert self.tree.kept_bytes <= self.tree.budget

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        for sequence, _, _ in self.sequences:
            sequence.close()
        self.sequences = []
        self.tree.clear()
        assert (
            self.cache.n_pages_used()
            == sum(pool.n_kept for pool in self.cache.pools)
            == self.cache.n_slots_used
            == len(self.tree)
            == 0
        )
        assert all(pool.n_free == pool.n_pages for pool in self.cache.pools)
        assert not self.tree._roots and not len(self.tree.snapshots)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_what_runs_is_never_dropped() -> None:
    cache = Cache([PoolSpec((0,), 1, 1, 1)], 4 * PAGE_SIZE)
    tree = PrefixTree(cache, NumpyCacheMemory([[np.zeros((4, 8), np.uint8)]], []), 1 << 20)
    first = cache.sequence()
    first.reserve(2 * PAGE_SIZE)
    first.advance(2 * PAGE_SIZE)
    tree.insert(None, [1] * (2 * PAGE_SIZE), first)
    second = cache.sequence()
    with pytest.raises(OutOfPages):
        second.reserve(3 * PAGE_SIZE)
    assert len(tree) == 2
    first.close()
    assert sum(pool.n_kept for pool in cache.pools) == 2
    second.reserve(3 * PAGE_SIZE)
    assert len(tree) == 1 and sum(pool.n_kept for pool in cache.pools) == 1, (
        "one page has made way, the later one"
    )
    assert tree.match(None, [1] * 80, 80).n == PAGE_SIZE


def test_a_gap_in_a_window_sends_the_hit_back_to_where_nobody_sees_it() -> None:
    specs: list[Any] = [PoolSpec((0,), 1, 1, 1), PoolSpec((1,), 1, 1, 1, window=40)]
    cache = Cache(specs, 20 * PAGE_SIZE)
    tree = PrefixTree(cache, NumpyCacheMemory([[np.zeros((20, 8), np.uint8)]] * 2, []), 1 << 20)
    tokens = list(range(10 * PAGE_SIZE))
    sequence = cache.sequence()
    for at in range(0, len(tokens), PAGE_SIZE):
        sequence.reserve(PAGE_SIZE)
        sequence.advance(PAGE_SIZE)
        if at == 3 * PAGE_SIZE:
            tree.insert(None, tokens[: sequence.n_positions], sequence)
    tree.insert(None, tokens, sequence)
    sequence.close()
    # Of the windowed pool pages 0, 1 and 4 to 7 were given back before they could be inserted.
    assert [tree.match(None, tokens, n).n // PAGE_SIZE for n in (320, 300, 256, 160, 128, 96)] == [
        10,
        9,
        4,
        4,
        4,
        0,
    ]


def test_the_snapshot_that_was_used_least_recently_goes_first() -> None:
    snapshots = Snapshots()
    nodes = [Node(None, (i,), 0) for i in range(3)]
    for i, node in enumerate(nodes):
        snapshots.add(node, 1, np.full(4, i, np.uint8))
    assert snapshots.get(nodes[0], 1)[0] == 0  # used
    snapshots.add(nodes[1], 1, np.full(4, 9, np.uint8))  # taken again, which is a use, too
    assert snapshots.get(nodes[1], 1)[0] == 1, "what is there already is as good"
    assert [snapshots.drop_oldest() for _ in range(3)] == [nodes[2], nodes[0], nodes[1]]
    assert snapshots.n_bytes == len(snapshots) == 0 and not any(node.offsets for node in nodes)

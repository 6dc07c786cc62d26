"""Where a request's sequence begins and ends: behind the longest prefix that is known, and in the tree.

A prompt enters the tree when its first token has been drawn from finite logits, never before: pages of a request that
produces nothing finite must not reach another one. Until then its pages stay although they leave the window. At the
end of a request, or when it is preempted, everything that it evaluated enters.

Recurrent state cannot be rewound, so snapshots are taken on the way: before the last token of a prompt (where the same
prompt begins again), every STATE_EVERY tokens (where another one branches off), and at the end (where it goes on).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from ggfw.cache import PAGE_SIZE, Cache, OutOfPages, Sequence
from ggfw.cache.prefix import PrefixTree
from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw.execute.cache_memory import CacheMemory
    from ggfw.running import Running

#: Tokens of a prompt between two snapshots of recurrent state.
STATE_EVERY = 512

#: What is kept unasked: a quarter of the cache, but at least so many bytes (or the whole cache, if that is less).
_LEAST = 512 << 20
#: Snapshots per sequence that are kept unasked.
_STATES_EACH = 4


@dataclass(frozen=True)
class KeepBudget:
    """How much the prefix tree may keep besides what running requests hold.

    Args:
        pages: bytes of pages; 0 = no reuse between requests.
        states: bytes of snapshots of recurrent state.
    """

    pages: int
    states: int

    @classmethod
    def of(cls, cache: Cache, memory: CacheMemory, megabytes: int | None, n_parallel: int) -> KeepBudget:
        """The budget for ``megabytes`` MiB in all; None = a default by the size of the cache."""
        if megabytes is not None:
            n_bytes = megabytes << 20
            states = n_bytes // 2 if memory.state_bytes else 0
            # A model without attention keeps snapshots only.
            return cls(n_bytes - states if cache.pools else n_bytes, states if cache.pools else n_bytes)
        whole = sum(p.n_pages * n for p, n in zip(cache.pools, memory.page_bytes, strict=True))
        return cls(
            max(1, min(whole, max(whole // 4, _LEAST))), _STATES_EACH * (n_parallel + 1) * memory.state_bytes
        )


class PrefixReuse:
    """See the module. The scheduler's thread owns it.

    Args:
        cache: where sequences live.
        memory: of the executor.
        budget: what the tree may keep.
        chunkable: whether prompts may be cut.

    Attributes:
        n_asked, n_hits: requests that looked for a prefix, and those that found one.
        n_tokens: tokens that were found and needed no evaluation.
    """

    def __init__(
        self, cache: Cache, memory: CacheMemory, budget: KeepBudget, *, chunkable: bool = True
    ) -> None:
        self.cache = cache
        self.memory = memory
        self.enabled = budget.pages > 0 and chunkable
        # One snapshot has its place in any case: choices of one prompt share it while they run.
        self.tree = PrefixTree(cache, memory, budget.pages, max(budget.states, memory.state_bytes))
        self._cuts = bool(memory.state_bytes) and chunkable
        self.n_asked = self.n_hits = self.n_tokens = 0

    def shares(self, work: Running) -> bool:
        """Whether a request takes from the tree and gives to it."""
        return self._public(work) or work.leader is not None or work.leads

    def _public(self, work: Running) -> bool:
        return self.enabled and work.request.cache_prompt

    def _key(self, work: Running) -> Hashable:
        """Who shares with a request: those with its key, or nobody but the other choices of its prompt."""
        return (work.request.cache_key,) if self._public(work) else (work.leader or work).serial

    def begin(self, work: Running) -> None:
        """Give a request a sequence, behind what is known of what it has to read.

        Raises:
            OutOfPages: there is no state slot, or no page, for it.
        """
        sequence = self.cache.sequence()
        if self.shares(work):
            # The row that gives the first logits has to be evaluated; after a preemption there are tokens already.
            try:
                n = self._adopt(work, sequence, len(work.feed) - (not work.tokens))
            except BaseException:
                sequence.close()
                raise
            if not work.tokens:
                sequence.keep_from = n // PAGE_SIZE
        work.sequence = sequence
        work.n_fed = sequence.n_positions
        if not work.t_start:
            work.n_cached = work.n_fed

    def _adopt(self, work: Running, sequence: Sequence, limit: int) -> int:
        """Let an empty sequence begin behind what is known, at most ``limit`` tokens; gives how many that are.

        A prefix that ends within a page needs a page for the copy. Where its own pages are all there are, nobody would
        ever give one back: then a prefix that ends before that page has to do.
        """
        while limit > 0:
            match = self.tree.match(self._key(work), work.feed, limit)
            if not match.n:
                break
            try:
                self.tree.adopt(match, sequence)
                return match.n
            except OutOfPages:
                limit = (match.n - 1) // PAGE_SIZE * PAGE_SIZE
        return 0

    def count(self, work: Running) -> None:
        """Count a request that begins, as it stands."""
        if self.shares(work):
            self.n_asked += 1
            self.n_hits += work.n_fed > 0
            self.n_tokens += work.n_fed

    def cut(self, work: Running) -> int:
        """Where the next chunk of what a request reads has to end at the latest."""
        end, at = len(work.feed), work.n_fed
        if not self._cuts or not self.shares(work):
            return end
        cut = (at // STATE_EVERY + 1) * STATE_EVERY
        if not work.tokens and end > PAGE_SIZE and at < end - 1:
            cut = min(cut, end - 1)
        return min(cut, end)

    def read(self, work: Running) -> None:
        """A request has read up to ``n_fed``: take a snapshot where one is wanted."""
        at = work.n_fed
        if not self._cuts or not self.shares(work) or work.sequence is None:
            return
        if at % STATE_EVERY == 0 or (at == len(work.feed) - 1 and not work.tokens):
            work.states.append((at, self.memory.read_state(work.sequence.state_halves()[0])))
            if len(work.states) * self.memory.state_bytes > self.tree.state_budget:
                del work.states[0]

    def verified(self, work: Running) -> None:
        """The first token of a request was drawn: what it has read may be used by others."""
        sequence = work.sequence
        if sequence is None or not self.shares(work):
            return
        self.tree.insert(self._key(work), work.feed[: sequence.n_positions], sequence, work.states)
        work.states = []
        sequence.keep_from = None
        sequence.trim()

    def end(self, work: Running, keep: bool) -> None:
        """Give back what a request holds.

        Args:
            keep: whether the tree may have it.
        """
        sequence = work.sequence
        if sequence is None:
            return
        if keep and work.tokens and sequence.n_positions and self._public(work):
            n = sequence.n_positions
            states = work.states
            if self.memory.state_bytes:
                states = [*states, (n, self.memory.read_state(sequence.state_halves()[0]))]
            tokens = [*work.request.prompt, *work.tokens][:n]
            self.tree.insert(self._key(work), tokens, sequence, states)
        work.states = []
        work.sequence = None
        sequence.close()
        if self.shares(work) and not self._public(work):
            self.forget(work)
        self.tree.trim()

    def forget(self, work: Running) -> None:
        """Drop what a request that turned out bad gave to the tree, as far as nobody uses it."""
        self.tree.discard(self._key(work), [*work.request.prompt, *work.tokens])

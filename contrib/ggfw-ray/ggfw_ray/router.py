"""Which replica a request goes to: the one that holds the longest beginning of its prompt, unless it is too busy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import FIFOMixin, LocalityMixin, PendingRequest, RequestRouter, RunningReplica

#: Name of the argument of a replica's method that holds the names of a prompt's blocks.
BLOCKS = "blocks"
#: Share of a prompt's blocks that a replica must hold to be preferred for it.
ENOUGH = 0.1


def n_known(blocks: Sequence[int], cached: Any) -> int:
    """How many blocks of a prompt, from its beginning, are cached."""
    return next((i for i, name in enumerate(blocks) if name not in cached), len(blocks))


class PrefixRouter(FIFOMixin, LocalityMixin, RequestRouter):
    """Routes by what replicas really hold: their routing stats name the cached blocks, so evictions are followed.

    Where queues are balanced (see ``balance``), a request goes to the replicas with the longest cached beginning of its
    prompt, if that is a tenth of it or more; where none has any, to the one with the least in its cache, so that new
    conversations spread; else to the emptier of two random ones. What was just sent somewhere counts as cached there
    until the replica has spoken: the second turn of a conversation often comes sooner than the next report.
    """

    def initialize_state(self, balance: int = 4, **others: Any) -> None:
        """Take the settings of ``request_router_kwargs``."""
        self.balance = balance
        #: Replica -> blocks that were sent to it lately, newest last.
        self._sent: dict[Any, dict[int, None]] = {}
        #: Replica -> (its last report, the same as a set).
        self._reports: dict[Any, tuple[Any, frozenset[int]]] = {}

    def _cached(self, replica: RunningReplica) -> frozenset[int]:
        report = replica.routing_stats.get("blocks", ())
        known = self._reports.get(replica.replica_id)
        if known is None or known[0] is not report:
            known = self._reports[replica.replica_id] = (report, frozenset(report))
        return known[1]

    def _queue(self, replica: RunningReplica) -> int:
        return self.replica_queue_len_cache.get(replica.replica_id) or 0

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return ranks of replicas, the best first; Serve takes the first that accepts."""
        if not candidate_replicas:
            return []
        blocks = list(pending_request.kwargs.get(BLOCKS, ())) if pending_request is not None else []
        others = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        others.sort(key=self._queue)
        queues = {id(r): self._queue(r) for r in candidate_replicas}
        if not blocks or max(queues.values()) - min(queues.values()) >= self.balance:
            return [[replica] for replica in others]
        held = {id(r): self._held(r, blocks) for r in candidate_replicas}
        most = max(held.values())
        if most >= max(1.0, ENOUGH * len(blocks)):
            best = [r for r in candidate_replicas if held[id(r)] == most]
            return [best, [replica for replica in others if replica not in best]]
        sizes = {
            id(r): len(self._cached(r)) + len(self._sent.get(r.replica_id, ())) for r in candidate_replicas
        }
        ranked = sorted(candidate_replicas, key=lambda r: (queues[id(r)], sizes[id(r)]))
        return [[replica] for replica in ranked]

    def _held(self, replica: RunningReplica, blocks: Sequence[int]) -> int:
        cached, sent = self._cached(replica), self._sent.get(replica.replica_id, {})
        return max(n_known(blocks, cached), n_known(blocks, sent))

    def on_request_routed(self, pending_request: PendingRequest, replica_id: Any, result: Any) -> None:
        """Remember what was sent where."""
        sent = self._sent.setdefault(replica_id, {})
        for name in pending_request.kwargs.get(BLOCKS, ()):
            sent.pop(name, None)
            sent[name] = None
        while len(sent) > 4096:
            del sent[next(iter(sent))]

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """Forget what was sent to a replica that is no more."""
        super().on_replica_actor_died(replica_id)
        self._sent.pop(replica_id, None)
        self._reports.pop(replica_id, None)

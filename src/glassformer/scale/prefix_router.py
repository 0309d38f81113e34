"""The router of our replicas, in every process that has a handle to them. See `prefixes` for whom it prefers.

Interface: https://docs.ray.io/en/latest/serve/advanced-guides/custom-request-router.html
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from glassformer.scale.prefixes import PrefixIndex


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Prefers the replica that has read the longest part of the prompt, unless it has more than its share to do."""

    def initialize_state(self, **_: Any) -> None:
        self.index: PrefixIndex[ReplicaID] = PrefixIndex()
        self.running: Counter[ReplicaID] = Counter()  # requests of this process, by replica

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        replicas = {replica.replica_id: replica for replica in candidate_replicas}
        loads = {replica_id: self._load(replica_id) for replica_id in replicas}
        return [[replicas[replica_id]] for replica_id in self.index.rank(_keys(pending_request), loads)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        self.running[replica_id] += 1
        self.index.record(_keys(pending_request), replica_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self.running[replica_id] = max(0, self.running[replica_id] - 1)

    def _load(self, replica_id: ReplicaID) -> int:
        """Requests in progress: those of this process, and of others as far as the replica has told of them lately."""
        return max(self.running[replica_id], self.replica_queue_len_cache.get(replica_id) or 0)


def _keys(request: PendingRequest) -> tuple[int, ...]:
    """The keys of a forwarded request; other calls have none."""
    return getattr(request.args[0], "keys", ()) if request.args else ()

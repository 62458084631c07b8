"""The keyspace's work on one node: what serves watches, and what keeps leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raftkv.plugin import Host, Metric, Route, Service

from .lessor import Lessor
from .routes import routes
from .watch_hub import WatchHub

if TYPE_CHECKING:
    from .api import KVApi

__all__ = ["KVService"]


class KVService(Service):
    """Passes the hooks on. Each part knows nothing of the others."""

    def __init__(self, host: Host, api: KVApi) -> None:
        self.hub = WatchHub(host)
        api.hub = self.hub
        self._host, self._api, self._pasts = host, api, api.pasts
        self.lessor = Lessor(host)

    async def start(self) -> None:
        self.hub.start()
        self.lessor.start()

    async def stop(self) -> None:
        self._api.leases.searches.end()
        self.lessor.stop()
        self.hub.stop()

    def on_leader(self) -> None:
        self.lessor.on_leader()

    def on_follower(self) -> None:
        self.lessor.on_follower()

    def on_incarnation(self, incarnation: int) -> None:
        self.hub.node_ready()

    def on_progress(self, index: int) -> None:
        self.hub.progressed()
        self.lessor.progressed()
        self._pasts.compacted()

    def on_restored(self, index: int) -> None:
        self._pasts.clear()
        self.hub.restored()

    def on_fault(self) -> None:
        self._api.leases.searches.end()
        self.hub.stop()

    def routes(self) -> Sequence[Route]:
        return routes(self._host)

    def metrics(self) -> Sequence[Metric]:
        pasts = Metric("pasts", "gauge", len(self._pasts), "Reads of the past that may go on.")
        waiting = Metric(
            "past_reads_waiting",
            "gauge",
            self._pasts.places.waiting,
            "Reads of the past that wait for a place to look at what has changed since.",
        )
        costly = Metric(
            "txn_too_costly_total",
            "counter",
            self._api.too_costly,
            "Transactions of this node's callers that look at more rows than rows_max.",
        )
        return (*self.hub.metrics(), *self.lessor.metrics(), pasts, waiting, costly)

    def status(self) -> Mapping[str, Any]:
        watches = {"watches": self.hub.count, "watches_behind": self.hub.behind_count}
        return {**watches, **self.lessor.status()}

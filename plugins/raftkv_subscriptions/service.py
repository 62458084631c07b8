"""What subscriptions do on a node unasked: serving other regions, and the leader's work.

Every node serves links of other regions (`links/serving.py`) and wakes who waits. The leader
fetches from other regions (`links/leading.py`), starts snapshots (`snapshot_timer.py`), and sweeps:
whatever is to be done stands in tables, or follows from them (retention); it proposes one `Sweep`
after the other, each of which compares everything again. So two leaders that overlap do no harm, a
leader that dies loses nothing, and an idle cluster proposes nothing.

Rules of this file
1. To look must cost next to nothing: soon after entries were applied and not for each, some topics
   at a time, and so that it takes a small share of the time however many there are.
2. Deadlines are of the log's clock, which stands still while nothing is written. The leader
   estimates it; a `Sweep` that comes too early finds nothing, and is repeated after a pause.
3. Nothing here decides. That time has passed is a reason to ask the log, no verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from raftkv.errors import ConfigError, RaftkvError, Stopped
from raftkv.plugin import Host, Metric, Route, Service, View

from .api import SubscriptionsApi
from .commands import Sweep, Swept
from .door import routes
from .door_consumers import DoorConsumers
from .links.door import link_routes
from .links.leading import Links
from .links.serving import Serving
from .links.transport import TransportFactory, check_link
from .metrics import gauges, link_metrics, serving_metrics
from .options import options_of
from .retention import due_ms, is_due
from .rows import Topic
from .scope import meta_of, own_region
from .snapshot_timer import SnapshotTimer
from .sweeping import work

__all__ = ["SubscriptionsService", "next_due_ms", "topics_due"]

# After entries were applied: under load a look costs more than an entry, and sweeping has time.
LOOK_S: Final = 0.02
# A cluster without a leader is tried again after so long.
RETRY_S: Final = 0.25
# A sweep that found nothing yet is repeated after the first, and then ever more rarely.
RETRY_FIRST_S: Final = 0.02
RETRY_MAX_S: Final = 5.0
# No timer is set for longer.
TIMER_S_MAX: Final = 3_600.0
# Topics that one sweep is told of.
SWEEP_TOPICS: Final = 64
# Topics that are looked at before others have their turn.
LOOK_TOPICS: Final = 32
# After a look that found nothing the next one waits for so many times what it took.
LOOK_SHARE: Final = 10

Topics = Iterable[tuple[str, Topic]]


def topics_due(view: View, now_ms: int, topics: Topics | None = None) -> tuple[str, ...]:
    """Some topics of which something can be trimmed now; of these `topics`, or of all."""
    found: list[str] = []
    for name, topic in view.table("topics").scan() if topics is None else topics:
        limited = topic.retention_ms or topic.retention_bytes
        if limited and is_due(view, name, topic, now_ms):
            found.append(name)
            if len(found) == SWEEP_TOPICS:
                break
    return tuple(found)


def next_due_ms(view: View, now_ms: int, topics: Topics | None = None) -> int | None:
    """When the next message gets beyond the retention time, later than now."""
    found: int | None = None
    for _, topic in view.table("topics").scan() if topics is None else topics:
        at_ms = due_ms(view, topic) if topic.retention_ms else None
        # What is due already waits for a subscription or a region: an entry brings that.
        if at_ms is not None and at_ms > now_ms and (found is None or at_ms < found):
            found = at_ms
    return found


class SubscriptionsService(Service):
    """One per node."""

    def __init__(
        self,
        host: Host,
        api: SubscriptionsApi,
        *,
        transport_factory: TransportFactory | None = None,
    ) -> None:
        self._host = host
        self._api = api
        self._factory = transport_factory
        self._door_consumers = DoorConsumers(host, api)
        #: This node's side of other regions' links.
        self.serving = Serving(host)
        #: The leader's own links.
        self.links = Links(host, transport_factory)
        self.snapshots = SnapshotTimer(host, self.links.all_up)
        self.sweeps = 0
        self.swept = 0
        self._leading = False
        self._ended = False
        self._wake = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None
        self._more = False
        self._looks_soon = False

    async def start(self) -> None:
        """Raises ConfigError for options of links that cannot be used."""
        options = options_of(self._host)
        if options.region in options.links:
            raise ConfigError(
                f"options.subscriptions.links names {options.region!r}, which is this region"
            )
        if self._factory is None:
            for name, link in options.links.items():
                try:
                    check_link(link)
                except ConfigError as error:
                    raise ConfigError(f"options.subscriptions.links.{name}: {error}") from None
        self._host.rpc.register("links", self._tell_links)
        self._api.start()

    async def stop(self) -> None:
        self._end()

    def on_fault(self) -> None:
        self._end()

    def _end(self) -> None:
        self._ended = True
        self.on_follower()
        self.serving.stop()
        self._api.stop()

    # --- what the log did ---

    def on_progress(self, index: int) -> None:
        self._api.on_progress(index)
        if self._leading and not self._looks_soon:
            self._looks_soon = True
            self._host.runtime.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._looks_soon = False
        if self._leading:
            self.links.look()
            self.snapshots.look()
            self._wake.set()

    def on_restored(self, index: int) -> None:
        self._api.on_restored(index)
        self.serving.restored()
        self._look()

    def on_incarnation(self, incarnation: int) -> None:
        self._api.on_incarnation(incarnation)

    # --- the leader's work ---

    def on_leader(self) -> None:
        if self._ended:
            # A node that stops may still come to lead: nobody would end what began now.
            return
        self._leading = True
        self.links.start()
        self.snapshots.start()
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = self._host.spawn(self._sweep(), "sweep")

    def on_follower(self) -> None:
        self._leading = False
        self.links.stop()
        self.snapshots.stop()
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            sweeper.cancel()

    async def _sweep(self) -> None:
        pause_s = RETRY_FIRST_S
        topics: tuple[str, ...] = ()
        while True:
            self._wake.clear()
            # With more to be done it is of the same topics first.
            if not self._more:
                began = self._host.runtime.monotonic()
                topics, at_ms = await self._due()
                if not topics and not work(self._host.view()):
                    took_s = self._host.runtime.monotonic() - began
                    await self._host.runtime.sleep(LOOK_SHARE * took_s)
                    await self._rest(at_ms)
                    continue
            try:
                swept: Swept = await self._host.propose(Sweep(topics))
            except Stopped:
                return
            except RaftkvError as error:
                self._host.log.debug("a sweep waits: %s", type(error).__name__)
                await self._host.runtime.sleep(RETRY_S)
                continue
            self.sweeps += 1
            self.swept += swept.rows
            self._more = swept.more
            if swept.rows:
                pause_s = RETRY_FIRST_S
            else:
                # The log's clock is behind the estimate, or the work has to wait for something.
                await self._host.runtime.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _due(self) -> tuple[tuple[str, ...], int | None]:
        """Some topics that are due, or when the next one will be.

        All are compared with one time: what gets due meanwhile is for the next look.
        """
        now_ms = self._host.now_ms()
        found: list[str] = []
        next_ms: int | None = None
        first: str | None = None
        while len(found) < SWEEP_TOPICS:
            view = self._host.view()
            some = list(view.table("topics").scan(first, limit=LOOK_TOPICS))
            found += topics_due(view, now_ms, some)
            at_ms = next_due_ms(view, now_ms, some)
            if at_ms is not None:
                next_ms = at_ms if next_ms is None else min(next_ms, at_ms)
            if len(some) < LOOK_TOPICS:
                break
            first = some[-1][0] + "\0"
            await self._host.runtime.sleep(0)
        return tuple(found[:SWEEP_TOPICS]), next_ms

    async def _rest(self, at_ms: int | None) -> None:
        """Until a deadline, or until something happens."""
        timer = None
        if at_ms is not None:
            delay_s = min(max(0, at_ms - self._host.now_ms()) / 1000, TIMER_S_MAX)
            timer = self._host.runtime.call_later(delay_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _tell_links(self, sender: str, payload: bytes) -> bytes:
        """Raises RuntimeError where the links are not: then the caller goes without."""
        if not self._leading:
            raise RuntimeError("this node does not lead")
        return msgspec.msgpack.encode(self.links.statuses())

    # --- the door ---

    def routes(self) -> Sequence[Route]:
        return (
            *routes(self._host, self._api, self._door_consumers),
            *link_routes(self._host, self.serving),
        )

    def metrics(self) -> Sequence[Metric]:
        links = self.links.statuses() if self._leading else ()
        own = (
            Metric("waiting", "gauge", len(self._api.waiting), "Who waits here for a message."),
            Metric("sweeps_total", "counter", self.sweeps, "Sweep commands of this node."),
            Metric("swept_total", "counter", self.swept, "Rows that they touched."),
            Metric(
                "snapshots_started_total",
                "counter",
                self.snapshots.started,
                "Snapshots that this node, as leader, has started.",
            ),
        )
        return (
            *self._api.counters.metrics(),
            *own,
            *gauges(self._host.view(), self._host.now_ms()),
            *serving_metrics(self.serving),
            *link_metrics(links),
            *self._door_consumers.metrics(),
        )

    def status(self) -> Mapping[str, Any]:
        view = self._host.view()
        meta = meta_of(view)
        return {
            "region": own_region(view),
            "mode": view.settings["mode"],
            "topics": len(view.table("topics")),
            "subscriptions": len(view.table("subs")),
            "consumers": meta.consumers,
            "published": meta.published,
            "delivered": meta.delivered,
            "serving": len(self.serving),
            "links": {link.region: link.state for link in self.links.statuses()}
            if self._leading
            else {},
            "waiting": len(self._api.waiting),
            **self._api.counters.as_dict(),
        }

"""What the queues do on a node unasked: telling who waits, taking part, and the leader's sweeping.

Whatever is to be done stands in tables: lives that ended, sessions that did, decided transactions
with rows left, rows of deleted queues, overflow, deadlines. The leader looks whether there is
anything, after each run of entries, and at the first deadline by a timer; if so it proposes one
`Sweep` after the other, each of which compares everything again when it is applied. So two leaders
that overlap do no harm, a leader that dies loses nothing, and an idle cluster proposes nothing.

Rules of this file
1. To look must cost next to nothing: tables are asked for their length, deadlines for the first
   one, soon after entries were applied and not for each. Who of the participants is gone is found
   when a member changes.
2. Deadlines are of the log's clock, which stands still while nothing is written. The leader
   estimates it; a `Sweep` that comes too early finds nothing, and is repeated after a pause.
3. Nothing here decides. That a deadline has passed is a reason to ask the log, no verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from raftkv.errors import RaftkvError, Stopped
from raftkv.plugin import Host, Member, Metric, Route, Service, View

from . import door
from .api import TxQueueApi
from .commands import Sweep, Swept, TransactionRow
from .door_sessions import DoorSessions
from .metrics import gauges
from .status import totals
from .views import to_forget

__all__ = ["TxQueueService", "first_due_ms", "has_gone_participant", "has_work"]

# Rows that one command touches: some milliseconds of each node.
SWEEP_ROWS: Final = 500
# After entries were applied: under load a look costs more than an entry, and sweeping has time.
LOOK_S: Final = 0.01
# A cluster without a leader is tried again after so long.
RETRY_S: Final = 0.25
# A sweep that found nothing yet is repeated after the first, and then ever more rarely.
RETRY_FIRST_S: Final = 0.02
RETRY_MAX_S: Final = 5.0
# A timer is not set for longer: a setting may make something due earlier, and that an entry brings
# it does not mean that this node estimates the clock right for hours.
TIMER_S_MAX: Final = 3_600.0

_WORK: Final = ("ended_nodes", "left", "ended_sessions", "unfolding", "dropped", "overfull")


def has_work(view: View) -> bool:
    """Whether rows wait to be swept, whatever the time is."""
    return any(len(view.table(name)) for name in _WORK)


def first_due_ms(view: View) -> int | None:
    """The first deadline, of the log's clock; None: there is none."""
    found: int | None = None
    for (at_ms, _), _ in view.table("due").scan(limit=1):
        found = at_ms
    for key, _ in view.table("ack_due").scan(limit=1):
        found = key[0] if found is None else min(found, key[0])
    for (at_ms, _, _), _ in view.table("timers").scan(limit=1):
        found = at_ms if found is None else min(found, at_ms)
    for (ended_ms, _), _ in view.table("old_sessions").scan(limit=1):
        at_ms = ended_ms + view.settings["outcome_retention_ms"]
        found = at_ms if found is None else min(found, at_ms)
    return found


def has_gone_participant(view: View) -> bool:
    """Whether a transaction is being prepared that a participant has left before its yes."""
    members = view.members
    row: TransactionRow
    for _, row in view.table("transactions").scan():
        if row.state != "preparing":
            continue
        for one in row.participants:
            member = members.get(one.node)
            alive = member is not None and member.up and member.incarnation == one.incarnation
            if not alive and not one.voted:
                return True
    return False


class TxQueueService(Service):
    """One per node."""

    def __init__(self, host: Host, api: TxQueueApi) -> None:
        self._host = host
        self._api = api
        self._door = DoorSessions(host, api)
        self._leading = False
        self._wake = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None
        # A member has changed since the participants were looked at.
        self._members_moved = False
        # The last sweep said that there is more.
        self._more = False
        # A look for work is to come.
        self._looks_soon = False
        # The deadline that is waited for; None: nothing is, 0: it sweeps.
        self._armed_ms: int | None = None

    async def start(self) -> None:
        self._api.start()
        self._api.observing.start()

    async def stop(self) -> None:
        self._end()

    def on_fault(self) -> None:
        self._end()

    def _end(self) -> None:
        self.on_follower()
        self._api.observing.stop()
        self._api.stop()

    # --- what the log did ---

    def on_progress(self, index: int) -> None:
        self._api.on_progress(index)
        if self._leading and not self._looks_soon:
            self._looks_soon = True
            self._host.runtime.call_later(LOOK_S, self._look_for_work)

    def _look_for_work(self) -> None:
        self._looks_soon = False
        if self._leading:
            at_ms = self._due_ms()
            if at_ms is not None and (self._armed_ms is None or at_ms < self._armed_ms):
                self._wake.set()

    def on_restored(self, index: int) -> None:
        self._api.observing.restored()
        self._api.on_restored(index)
        self._look()

    def on_incarnation(self, incarnation: int) -> None:
        self._api.observing.incarnation()
        self._api.on_incarnation(incarnation)

    def on_node_up(self, member: Member) -> None:
        self._look()

    def on_node_down(self, member: Member) -> None:
        self._look()

    def _look(self) -> None:
        self._members_moved = True
        self._wake.set()

    # --- the leader's work ---

    def on_leader(self) -> None:
        self._leading = True
        self._look()
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = self._host.spawn(self._sweep(), "txqueue sweep")

    def on_follower(self) -> None:
        self._leading = False
        self._wake.set()

    async def _sweep(self) -> None:
        pause_s = RETRY_FIRST_S
        while self._leading:
            self._wake.clear()
            at_ms = self._due_ms()
            if at_ms is None or at_ms > self._host.now_ms():
                await self._rest(at_ms)
                continue
            self._armed_ms = 0
            try:
                swept: Swept = await self._host.propose(Sweep(SWEEP_ROWS))
            except Stopped:
                return
            except RaftkvError as error:
                self._host.log.debug("txqueue: a sweep waits: %s", type(error).__name__)
                await self._host.runtime.sleep(RETRY_S)
                continue
            self._api.counters.add("sweeps")
            self._api.counters.add("swept", swept.rows)
            self._more = swept.more
            if swept.rows:
                pause_s = RETRY_FIRST_S
            else:
                # The log's clock is behind the estimate, or the work has to wait for something.
                await self._host.runtime.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _due_ms(self) -> int | None:
        """When a sweep is due, by the log's clock; 0: now; None: nothing is to come."""
        view = self._host.view()
        if self._more or has_work(view) or to_forget(view):
            return 0
        if self._members_moved:
            if has_gone_participant(view):
                return 0
            self._members_moved = False
        return first_due_ms(view)

    async def _rest(self, at_ms: int | None) -> None:
        """Until a deadline, or until something happens."""
        timer = None
        if at_ms is not None:
            delay_s = min(max(0, at_ms - self._host.now_ms()) / 1000, TIMER_S_MAX)
            timer = self._host.runtime.call_later(delay_s, self._wake.set)
        self._armed_ms = at_ms
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    # --- the door ---

    def routes(self) -> Sequence[Route]:
        return door.routes(self._host, self._api, self._door)

    def metrics(self) -> Sequence[Metric]:
        api, view = self._api, self._host.view()
        figures = (
            ("waiting", len(api.waiting), "Consumers of this node that wait for a message."),
            ("own_sessions", len(api.sessions), "Sessions of this node that go on."),
            ("own_observers", len(api.observing), "Factories of observers on this node."),
        )
        return (
            *api.counters.metrics(),
            *gauges(view, self._host.now_ms()),
            *(Metric(name, "gauge", value, doc) for name, value, doc in figures),
            *self._door.metrics(),
        )

    def status(self) -> Mapping[str, Any]:
        sums = totals(self._host.view(), self._host.now_ms())
        return {
            "queues": sums.queues,
            "messages": sums.messages,
            "ready": sums.ready,
            "transactions": sums.transactions,
            "in_doubt": sums.prepared,
            "in_doubt_age_ms": sums.prepared_age_ms,
            "unfolding": sums.unfolding,
            "waiting": len(self._api.waiting),
            **self._api.counters.as_dict(),
        }

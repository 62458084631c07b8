"""The limbo's work on a node: telling who waits, and the few things that are done unasked.

`on_progress` comes after a run of entries and costs nothing per entry; everything that waits finds
in the one row `State` whether there is anything new for it. Only callbacks on verdicts need to see
every entry's rows, and listen to them themselves (`hooks.py`).

Done unasked: the owner's node asks for a rollback of what has waited too long, if
`rollback_after_ms` says so; the leader's node makes itself the owner, if `leader_promotes` does,
and sweeps the rows of dropped spaces. Each of them is a command that is judged again when it is
applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from raftkv.errors import RaftkvError
from raftkv.plugin import Host, Member, Metric, Route, Service

from . import door
from .api import LimboApi
from .commands import FRESH, State, Sweep, Swept
from .metrics import gauges
from .status import age_ms, owns
from .views import state_of

__all__ = ["LimboService"]

# Rows that one command deletes: some milliseconds of each node.
SWEEP_ROWS: Final = 500
# Nobody tells a service of a changed setting: how long a new value may go unnoticed.
POLL_S: Final = 1.0
# A cluster without a leader, or a leader that is about to lose its office, is asked again.
RETRY_S: Final = 0.5
# How long the leader waits for the old owner's queue to settle before it looks anew.
PROMOTE_S: Final = 5.0
ROLLBACK_S: Final = 5.0


class LimboService(Service):
    """One per node."""

    def __init__(self, host: Host, api: LimboApi) -> None:
        self._host = host
        self._api = api
        self._leading = False
        self._seen: State | None = None
        self._settings: dict[str, Any] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._promoter: asyncio.Task[None] | None = None
        self._sweep_now = asyncio.Event()

    async def start(self) -> None:
        api, host = self._api, self._host
        self._seen = state_of(host.view())
        api.waiting.begin()
        api.hooks.start()
        host.spawn(api.submitting.run(), "submit")
        host.spawn(api.acking.run(), "ack")
        host.spawn(self._poll(), "poll")
        host.spawn(self._roll_back_late(), "roll back")

    async def stop(self) -> None:
        self._leading = False
        self._api.stop()

    def on_fault(self) -> None:
        self._api.stop()

    # --- what the log did ---

    def on_progress(self, index: int) -> None:
        view = self._host.view()
        # The very same row: nothing of the limbo has changed.
        state: State = view.table("meta").get("state", FRESH)
        if state is not self._seen:
            self._seen = state
            self._api.waiting.look(view, state)
            self._api.submitting.moved()
            self._api.acking.wake()
        elif state.head:
            # A vetoed, a declared or a joined one may have changed what has to be said.
            self._api.acking.wake()
        if self._leading and len(view.table("dropped")):
            self._sweep_now.set()

    def on_restored(self, index: int) -> None:
        self._seen = state_of(self._host.view())
        self._api.hooks.restored()
        self._api.acking.restored()
        self._look_at_all()

    def on_incarnation(self, incarnation: int) -> None:
        self._look_at_all()

    def on_node_up(self, member: Member) -> None:
        self._api.acking.wake()

    def on_node_down(self, member: Member) -> None:
        self._api.acking.wake()

    def _look_at_all(self) -> None:
        self._api.waiting.look_at_all()
        self._api.submitting.moved()
        self._api.submitting.wake()
        self._api.acking.wake()

    async def _poll(self) -> None:
        """See what no hook tells: a setting that is another one now."""
        while True:
            settings = dict(self._host.settings)
            if settings != self._settings:
                self._settings = settings
                self._look_at_all()
            if self._leading:
                self._lead()
            await self._host.runtime.sleep(POLL_S)

    # --- rollback by time-out, where it is asked for ---

    async def _roll_back_late(self) -> None:
        """Request a rollback of the oldest entry when it is older than the setting allows."""
        runtime = self._host.runtime
        while True:
            limit_ms = self._host.settings["rollback_after_ms"]
            state = state_of(self._host.view())
            if not limit_ms or not state.head or not owns(self._host, state):
                await runtime.sleep(min(POLL_S, limit_ms / 1000 or POLL_S))
                continue
            left_s = (limit_ms - age_ms(self._host)) / 1000
            if left_s > 0:
                await runtime.sleep(min(left_s, POLL_S))
                continue
            try:
                await self._api.promoting.rollback(
                    state.head, f"pending for {limit_ms} ms", state.term, ROLLBACK_S
                )
            except RaftkvError as error:
                # Confirmed meanwhile, another owner, no leader: the next look tells.
                self._host.log.debug("limbo: a late rollback: %s", type(error).__name__)
                await runtime.sleep(RETRY_S)

    # --- the leader's work ---

    def on_leader(self) -> None:
        self._leading = True
        self._lead()

    def on_follower(self) -> None:
        self._leading = False
        self._sweep_now.set()

    def _lead(self) -> None:
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = self._host.spawn(self._sweep(), "sweep")
        if self._host.settings["leader_promotes"] and (
            self._promoter is None or self._promoter.done()
        ):
            self._promoter = self._host.spawn(self._promote(), "promote")

    async def _sweep(self) -> None:
        self._sweep_now.set()
        while self._leading:
            await self._sweep_now.wait()
            self._sweep_now.clear()
            while self._must_sweep():
                try:
                    swept: Swept = await self._host.propose(Sweep(SWEEP_ROWS))
                except RaftkvError as error:
                    self._host.log.debug("limbo: a sweep waits: %s", type(error).__name__)
                    await self._host.runtime.sleep(RETRY_S)
                else:
                    self._api.counters.add("swept", swept.rows)

    def _must_sweep(self) -> bool:
        return self._leading and len(self._host.view().table("dropped")) > 0

    async def _promote(self) -> None:
        """Make this node the owner, as long as it leads and is not."""
        host = self._host
        while self._leading and host.settings["leader_promotes"]:
            if owns(host, state_of(host.view())) or not host.incarnation:
                return  # `_poll` begins anew when that has changed
            try:
                await self._api.promote(timeout_s=PROMOTE_S, rest="wait")
            except RaftkvError as error:
                host.log.debug("limbo: the leader's promotion: %s", type(error).__name__)
                await host.runtime.sleep(RETRY_S)

    # --- the door ---

    def routes(self) -> Sequence[Route]:
        return door.routes(self._host, self._api)

    def metrics(self) -> Sequence[Metric]:
        api, view = self._api, self._host.view()
        mine = owns(self._host, state_of(view))
        figures = (
            ("busy", int(api.busy), "1: this node promotes, demotes or rolls back."),
            ("in_rollback", int(api.hooks.is_in_rollback), "1: callbacks on a rollback run."),
            ("waiting_for_room", len(api.submitting.room), "Transactions that find no room yet."),
            ("submitting", len(api.submitting), "Transactions of this node not in the queue yet."),
            ("submitting_limit", api.options.waiting_max, "The option waiting_max."),
            ("waiting", len(api.waiting), "Transactions and questions that wait for a verdict."),
            ("validators", len(api.validators), "Validators registered on this node."),
        )
        return (
            *api.counters.metrics(),
            *gauges(view, mine=mine, age_ms=age_ms(self._host)),
            *(Metric(name, "gauge", value, doc) for name, value, doc in figures),
        )

    def status(self) -> Mapping[str, Any]:
        state = state_of(self._host.view())
        return {
            "owner": state.owner,
            "term": state.term,
            "last": state.last,
            "confirmed": state.confirmed,
            "pending": state.pending,
            "age_ms": age_ms(self._host),
            "busy": self._api.busy,
            **self._api.counters.as_dict(),
        }

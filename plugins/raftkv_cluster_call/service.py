"""The calls' work on a node: waking who waits for the log, and the leader's cleaning.

Hooks only look at what changed and wake somebody; everything that takes time is a task of its own:
the worker (`worker.py`), the joiner (`joining.py`), callers (`calling.py`).

Two kinds of work belong to the leader's node. Reservations whose time is over are ended by
`Expire` when the first of them is due on the log's clock, and the history is trimmed every
`cleanup_ms`, or at once where it exceeds its hard limit by a tenth. Both commands compare
everything again when they are applied, so two leaders that overlap do no harm. An idle cluster
proposes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from raftkv.errors import NotApplied, OutcomeUnknown, Refused
from raftkv.plugin import Change, Host, Member, Metric, Route, Service

from . import door
from .api import CallsApi
from .commands import Cursor, Expire, Expired, Record, Trim, Trimmed
from .metrics import gauges
from .views import cursor_of, expiry_due, last_id, trim_due

__all__ = ["CallsService"]

# Reservations that one command ends, and records that one deletes: some milliseconds of each node.
EXPIRE_TICKETS: Final = 100
TRIM_ROWS: Final = 500
# The history is cleaned early when it exceeds what its hard limit keeps by this part of the limit.
EARLY_TRIM_PART: Final = 10
# A cluster without a leader, or a leader that is about to lose its office, is asked again.
RETRY_S: Final = 0.5
# Nobody tells a service of a changed setting: how long a new value may go unnoticed.
SETTING_S: Final = 1.0
# A clock that was estimated a little ahead: ask again so soon.
EARLY_S: Final = 0.005


class CallsService(Service):
    """One per node."""

    # Not the keyspace's: its rows are only written here, and each of its puts would pay for it.
    hears: ClassVar[tuple[str, ...] | None] = ("calls",)

    def __init__(self, host: Host, api: CallsApi) -> None:
        self._host = host
        self._api = api
        self._leading = False
        self._expirer: asyncio.Task[None] | None = None
        self._trimmer: asyncio.Task[None] | None = None
        # Set when something may have become due, or too much.
        self._due_changed = asyncio.Event()
        self._trim_now = asyncio.Event()

    async def start(self) -> None:
        self._api.forwarding.serve()
        self._api.operator.register()
        await self._api.joining.start()
        self._host.spawn(self._api.worker.run(), "worker")
        self._host.spawn(self._watch(), "watch")
        self._api.alarm_book.look()

    async def stop(self) -> None:
        self._leading = False
        self._api.joining.stop()
        self._api.calling.stop()

    def on_fault(self) -> None:
        self._api.calling.stop()

    # --- what the log did ---

    def on_applied(self, index: int, changes: Sequence[Change]) -> None:
        api = self._api
        tickets: dict[int, None] = {}
        cursors = rows = lost = joining = False
        for change in changes:
            rows = True
            if change.table == "queue":
                tickets[change.key] = None
            elif change.table == "records":
                if isinstance(change.new, Record):
                    tickets[change.new.ticket] = None
            elif change.table == "cursors":
                cursors = True
                joining = joining or (change.key == self._host.name and _state_changed(change))
            elif change.table == "left":
                cursors = joining = True
            elif change.table == "due":
                self._due_changed.set()
            elif change.table == "lost":
                lost = True
        if not rows:
            return
        api.initiations.look(tickets)
        if cursors:
            api.waiting.look()
            if joining or self._joiner_cares():
                api.joining.wake()
        if lost:
            api.calling.look_at_lost()
        if cursors or lost:
            api.alarm_book.look()
        api.worker.wake()
        self._watch_history()

    def _joiner_cares(self) -> bool:
        """Whether other nodes' cursors matter to the joiner, or its states are to be told of ours.

        Cursors move with every call, and mostly it has nothing to do with that.
        """
        row = cursor_of(self._host.view(), self._host.name)
        if row is None or row.state != "following":
            return True
        return row.id > self._api.states.told or not self._api.states.settled

    def on_restored(self, index: int) -> None:
        self._api.initiations.look_at_all()
        self._wake_all()

    def on_incarnation(self, incarnation: int) -> None:
        self._api.initiations.on_incarnation(incarnation)
        self._wake_all()

    def on_node_up(self, member: Member) -> None:
        self._api.waiting.look()
        self._api.joining.wake()

    def on_node_down(self, member: Member) -> None:
        self._api.waiting.look()

    def _wake_all(self) -> None:
        self._due_changed.set()
        self._api.waiting.look()
        self._api.joining.wake()
        self._api.calling.look_at_lost()
        self._api.alarm_book.look()
        self._api.worker.wake()

    async def _watch(self) -> None:
        """See what no hook tells: that this node may take part now (a setting, a promotion), that
        joining is in trouble.
        """
        may = self._host.settings["replicants_take_part"], self._host.role
        trouble = self._api.joining.trouble
        while True:
            await self._host.runtime.sleep(SETTING_S)
            now = self._host.settings["replicants_take_part"], self._host.role
            if may != now:
                may = now
                self._api.joining.wake()
            if trouble is not self._api.joining.trouble:
                trouble = self._api.joining.trouble
                self._api.alarm_book.look()

    # --- the leader's work ---

    def on_leader(self) -> None:
        self._leading = True
        if self._expirer is None or self._expirer.done():
            self._expirer = self._host.spawn(self._expire(), "expire")
        if self._trimmer is None or self._trimmer.done():
            self._trimmer = self._host.spawn(self._trim(), "trim")

    def on_follower(self) -> None:
        self._leading = False
        self._due_changed.set()
        self._trim_now.set()

    def _watch_history(self) -> None:
        if self._leading:
            view = self._host.view()
            hard = int(view.settings["history_hard_max"])
            # So much stays for a node that is away for good. The slack lets one cleaning serve
            # many calls, where else each of them would have one of its own.
            kept = hard + int(view.settings["history_max"])
            if len(view.table("records")) > kept + hard // EARLY_TRIM_PART and trim_due(view):
                self._trim_now.set()

    async def _expire(self) -> None:
        while self._leading:
            self._due_changed.clear()
            due_ms = expiry_due(self._host.view())
            if due_ms is None:
                await self._due_changed.wait()
                continue
            left_s = (due_ms - self._host.now_ms()) / 1000
            if left_s > 0:
                await _until(self._due_changed, left_s)
                continue
            try:
                expired: Expired = await self._host.propose(Expire(EXPIRE_TICKETS))
            except (NotApplied, OutcomeUnknown, Refused) as error:
                self._host.log.debug("calls: ending what is due waits: %s", error)
                await self._host.runtime.sleep(RETRY_S)
            else:
                self._api.counters.add("expired", expired.tickets)
                if not expired.tickets and not expired.more:
                    await self._host.runtime.sleep(EARLY_S)

    async def _trim(self) -> None:
        runtime = self._host.runtime
        trimmed_at = runtime.monotonic()
        while self._leading:
            left_s = trimmed_at + self._host.settings["cleanup_ms"] / 1000 - runtime.monotonic()
            if left_s > 0 and not self._trim_now.is_set():
                await _until(self._trim_now, min(left_s, SETTING_S))
                continue
            self._trim_now.clear()
            trimmed_at = runtime.monotonic()
            while await self._trim_some():
                pass

    async def _trim_some(self) -> bool:
        """Whether there is more to trim."""
        if not self._leading or not trim_due(self._host.view()):
            return False
        try:
            trimmed: Trimmed = await self._host.propose(Trim(TRIM_ROWS))
        except (NotApplied, OutcomeUnknown, Refused) as error:
            self._host.log.debug("calls: trimming the history waits: %s", error)
            await self._host.runtime.sleep(RETRY_S)
            return True
        self._api.counters.add("trimmed", trimmed.rows)
        return trimmed.more

    # --- the door ---

    def routes(self) -> Sequence[Route]:
        return door.routes(self._host, self._api)

    def metrics(self) -> Sequence[Metric]:
        api, view = self._api, self._host.view()
        return (
            *api.counters.metrics(),
            *gauges(view, self._host.name),
            Metric("waiting_callers", "gauge", len(api.waiting), "Calls that wait for nodes here."),
            Metric("initiating", "gauge", len(api.initiations), "Calls of this node not decided."),
            Metric("failing_attempts", "gauge", api.worker.attempts_now, "Tries of what fails."),
            Metric("functions", "gauge", len(api.registry), "Functions registered on this node."),
            *api.alarm_book.metrics(),
            *api.joining.metrics(),
            *api.transfer.metrics(),
        )

    def status(self) -> Mapping[str, Any]:
        view = self._host.view()
        row = cursor_of(view, self._host.name)
        return {
            "last": last_id(view),
            "cursor": None if row is None else row.id,
            "state": "apart" if row is None else row.state,
            "queue": len(view.table("queue")),
            "records": len(view.table("records")),
            "alarms": len(self._api.alarms()),
            **self._api.counters.as_dict(),
        }


def _state_changed(change: Change) -> bool:
    """Whether a cursor came, went, or took another state: not whether it merely moved."""
    old, new = change.old, change.new
    return not (isinstance(old, Cursor) and isinstance(new, Cursor) and old.state == new.state)


async def _until(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, or that time is over."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return

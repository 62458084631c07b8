"""The registry's work on a node: telling what the log did, cleaning up, sweeping, the door.

The session manager, if the program has one, hears from here what concerns it: a channel of this
node that is registered no longer, another mode, other nodes, a new life.

Cleaning belongs to the leader's node alone. The entry that ends a life marks it in the table
`ended`; the leader walks its own copy in slices, and has the rows of that life deleted by commands
that compare everything again. The last of them deletes the mark. A leader that dies leaves the mark
to its successor; two that overlap delete the same rows, which is the same as once. What no end of
a life explains is found by the sweep (`sweep.py`), on each node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from raftkv.errors import NotApplied, OutcomeUnknown, SessionExpired
from raftkv.plugin import (
    Change,
    Host,
    Member,
    Metric,
    Route,
    Service,
    TableView,
)

from . import door
from .api import LcrApi
from .commands import MODES, Channel, Cleaned, Cleanup, Entry
from .legacy_wire import OLD_ALIVE, OldAlive, OldLiving, pack, unpack
from .modes import effective_mode, mode_of, old_nodes
from .options import options_of
from .sweep import Sweep

__all__ = ["LcrService"]

# Rows looked at between two breaths: some milliseconds of the node's loop.
SLICE_ROWS = 2_000
RETRY_S = 0.5
# The reason for clients whose node takes part no more.
STOPPED = "this node has left the cluster"
# For one answer of an old node about all of its channels: upstream's time for any such call.
ALIVE_TIMEOUT_S = 5.0
_MODE_DOC = "1 for the mode by which this node acts."


class LcrService(Service):
    """One per node."""

    def __init__(self, host: Host, api: LcrApi) -> None:
        self._host = host
        self._api = api
        self._leading = False
        self._cleaner: asyncio.Task[None] | None = None
        self.sweep = Sweep(
            host, api.counters, api.held, api.sessions_or_none, self._liveness, api.long_runs
        )

    async def start(self) -> None:
        self._api.legacy.serve()
        self._host.spawn(self.sweep.run(), "lcr-sweep")

    async def stop(self) -> None:
        self._api.reaper.stop()

    def on_fault(self) -> None:
        """The node was removed, or has stopped itself: end its channels, whose rows are fenced."""
        manager = self._api.sessions_or_none()
        if manager is not None:
            self._host.spawn(manager.kick_all(STOPPED), "lcr-kick-all")

    # --- what the log did ---

    def on_applied(self, index: int, changes: Sequence[Change]) -> None:
        name = self._host.name
        mode_changed = nodes_changed = False
        for change in changes:
            if change.table == "clients":
                old = change.old
                if isinstance(old, Entry) and old.owner.node == name:
                    new = change.new.owner if isinstance(change.new, Entry) else None
                    self._check_held(old.owner, new)
            elif change.table == "ended":
                self._wake_cleaner()
            elif change.table == "mode":
                mode_changed = True
            elif change.table == "nodes":
                nodes_changed = True
        if mode_changed:
            self._api.on_mode(mode_of(self._host.view()))
        if nodes_changed:
            self._api.on_nodes()

    def on_incarnation(self, incarnation: int) -> None:
        for channel in list(self._api.held.values()):
            if channel.incarnation != incarnation:
                self._api.lose(channel, None)
        self._api.on_incarnation()

    def on_node_up(self, member: Member) -> None:
        self._api.on_nodes()

    def on_node_down(self, member: Member) -> None:
        self._api.legacy.on_node_down(member)
        self._api.on_nodes()

    def on_restored(self, index: int) -> None:
        clients: TableView[str, Entry] = self._host.view().table("clients")
        for channel in list(self._api.held.values()):
            entry = clients.get(channel.client_id)
            self._check_held(channel, None if entry is None else entry.owner)
        self._wake_cleaner()
        self._api.on_mode(mode_of(self._host.view()))
        self._api.on_nodes()

    def _check_held(self, channel: Channel, owner: Channel | None) -> None:
        if owner == channel:
            return
        if self._api.held.get((channel.client_id, channel.channel)) == channel:
            self._api.lose(channel, owner)

    # --- cleaning ---

    def on_leader(self) -> None:
        self._leading = True
        self._wake_cleaner()

    def on_follower(self) -> None:
        self._leading = False

    def _wake_cleaner(self) -> None:
        if self._leading and (self._cleaner is None or self._cleaner.done()):
            self._cleaner = self._host.spawn(self._clean(), "lcr-cleanup")

    async def _clean(self) -> None:
        slow_s = options_of(self._host).slow_after_s
        with self._api.long_runs.watched("cleanup_slow", slow_s):
            await self._clean_all()

    async def _clean_all(self) -> None:
        while self._leading:
            mark = next(iter(self._host.view().table("ended").scan(limit=1)), None)
            if mark is None:
                return
            node, incarnation = mark[0]
            try:
                rows = await self._clean_life(node, incarnation)
            except (NotApplied, OutcomeUnknown, SessionExpired) as error:
                self._host.log.debug("lcr: cleaning up after %s waits: %s", node, error)
                await self._host.runtime.sleep(RETRY_S)
                continue
            self._api.counters.add("cleanup_runs")
            if rows:
                self._host.log.info(
                    "lcr: deleted %d rows of %s incarnation %d", rows, node, incarnation
                )

    async def _clean_life(self, node: str, incarnation: int) -> int:
        """Delete what that life left, in slices; how many rows it was."""
        first: str | None = ""
        total = 0
        while first is not None and self._leading:
            found, first = self._slice(first, node, incarnation)
            if found or first is None:
                command = Cleanup(node, incarnation, found, first is None)
                cleaned: Cleaned = await self._host.propose(command)
                total += cleaned.rows
                self._api.counters.add("cleanup_rows", cleaned.rows)
            else:
                await self._host.runtime.sleep(0)
        return total

    def _slice(self, first: str, node: str, incarnation: int) -> tuple[tuple[str, ...], str | None]:
        """Clients of that life from `first` on, and where to go on; None at the end.

        No row of an ended life can be added any more, so one walk finds them all.
        """
        view = self._host.view()
        clients: TableView[str, Entry] = view.table("clients")
        rows_max: int = view.settings["cleanup_rows_max"]
        found: list[str] = []
        rows = clients.scan(first=first, limit=SLICE_ROWS)
        for seen, (client_id, entry) in enumerate(rows, 1):
            claim = entry.claim
            if _holds(entry.owner, node, incarnation) or (
                claim is not None and _holds(claim.channel, node, incarnation)
            ):
                found.append(client_id)
            if len(found) >= rows_max or seen >= SLICE_ROWS:
                # The smallest string behind this one.
                return tuple(found), client_id + "\0"
        return tuple(found), None

    # --- the sweep ---

    async def _liveness(self, node: str, channels: Sequence[Channel]) -> Sequence[bool]:
        """Ask an old node, in its own protocol, which of its channels live."""
        self._api.counters.add("old_calls_made")
        question = pack(OldAlive(tuple(channels)))
        reply = await self._host.rpc.call(node, OLD_ALIVE, question, ALIVE_TIMEOUT_S)
        living: Sequence[bool] = unpack(reply, OldLiving).living
        return living

    # --- the door ---

    def routes(self) -> Sequence[Route]:
        return door.routes(self._host, self._api)

    def metrics(self) -> Sequence[Metric]:
        view = self._host.view()
        mode, old = effective_mode(view), old_nodes(view, view.members)
        manager = self._api.sessions_or_none()
        return (
            *self._api.counters.metrics(),
            *self._api.long_runs.metrics(),
            *(() if manager is None else manager.metrics()),
            Metric("clients", "gauge", len(view.table("clients")), "Clients with a channel."),
            Metric("held", "gauge", len(self._api.held), "Channels of this node."),
            Metric("in_doubt", "gauge", len(self._api.reaper), "Rows that are yet to be settled."),
            Metric("history_rows", "gauge", len(view.table("past")), "Rows of the history."),
            Metric("mode_epoch", "gauge", mode.epoch, "Log index of the last switch of the mode."),
            *(
                Metric("mode", "gauge", int(name == mode.mode), _MODE_DOC, {"mode": name})
                for name in MODES
            ),
            Metric("old_nodes", "gauge", len(old), "Members that know the old registry only."),
        )

    def status(self) -> Mapping[str, Any]:
        view = self._host.view()
        return {
            "clients": len(view.table("clients")),
            "held": len(self._api.held),
            "in_doubt": len(self._api.reaper),
            "lives_to_clean": len(view.table("ended")),
            "history_rows": len(view.table("past")),
            "mode": mode_of(view).mode,
            "effective_mode": effective_mode(view).mode,
            "mode_epoch": mode_of(view).epoch,
            "old_nodes": old_nodes(view, view.members),
            "alarms": [msgspec.to_builtins(alarm) for alarm in self._api.alarms()],
            **self._api.counters.as_dict(),
        }


def _holds(channel: Channel, node: str, incarnation: int) -> bool:
    return channel.node == node and channel.incarnation == incarnation

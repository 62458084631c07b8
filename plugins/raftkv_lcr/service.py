"""The registry's work on a node: cleaning up after dead nodes, telling of lost channels, the door.

Cleaning belongs to the leader's node alone. The entry that ends a life marks it in the table
`ended`; the leader walks its own copy in slices, and has the rows of that life deleted by commands
that compare everything again. The last of them deletes the mark. A leader that dies leaves the mark
to its successor; two that overlap delete the same rows, which is the same as once.
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
    Request,
    Response,
    Route,
    Service,
    TableView,
)

from .api import LcrApi
from .commands import Channel, Cleaned, Cleanup, Entry

__all__ = ["LcrService"]

# Rows looked at between two breaths: some milliseconds of the node's loop.
SLICE_ROWS = 2_000
RETRY_S = 0.5
# Channels in one answer of the door.
LIST_MAX = 1_000


class LcrService(Service):
    """One per node."""

    def __init__(self, host: Host, api: LcrApi) -> None:
        self._host = host
        self._api = api
        self._leading = False
        self._cleaner: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._api.legacy.serve()

    async def stop(self) -> None:
        self._api.reaper.stop()

    # --- losing channels ---

    def on_applied(self, index: int, changes: Sequence[Change]) -> None:
        name = self._host.name
        for change in changes:
            if change.table == "clients":
                old = change.old
                if isinstance(old, Entry) and old.owner.node == name:
                    new = change.new.owner if isinstance(change.new, Entry) else None
                    self._check_held(old.owner, new)
            elif self._leading and change.table == "ended":
                self._wake_cleaner()

    def on_incarnation(self, incarnation: int) -> None:
        for channel in list(self._api.held.values()):
            if channel.incarnation != incarnation:
                self._api.lose(channel, None)

    def on_restored(self, index: int) -> None:
        clients: TableView[str, Entry] = self._host.view().table("clients")
        for channel in list(self._api.held.values()):
            entry = clients.get(channel.client_id)
            self._check_held(channel, None if entry is None else entry.owner)
        self._wake_cleaner()

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

    def on_node_down(self, member: Member) -> None:
        self._api.legacy.on_node_down(member)

    def _wake_cleaner(self) -> None:
        if self._leading and (self._cleaner is None or self._cleaner.done()):
            self._cleaner = self._host.spawn(self._clean(), "lcr-cleanup")

    async def _clean(self) -> None:
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

    # --- the door ---

    def routes(self) -> Sequence[Route]:
        return (
            Route("GET", "clients/{client_id}", self._get_client, "The client's channel."),
            Route("GET", "clients", self._list_clients, "Registered channels, by client id."),
            Route("GET", "stats", self._stats, "Counters and sizes on this node."),
        )

    async def _get_client(self, request: Request) -> Response:
        client_id = request.params["client_id"]
        if request.query.get("consistency", "linearizable") == "local":
            channel = self._api.lookup_local(client_id)
        else:
            channel = await self._api.lookup(client_id)
        if channel is None:
            return Response({"client_id": client_id, "channel": None}, status=404)
        return Response(msgspec.structs.asdict(channel))

    async def _list_clients(self, request: Request) -> Response:
        limit = request.query.get("limit", "100")
        if not limit.isdecimal() or not 1 <= int(limit) <= LIST_MAX:
            return Response({"error": f"limit must be 1 to {LIST_MAX}"}, status=400)
        await self._host.barrier()
        view = self._host.view()
        rows = view.table("clients").scan(first=request.query.get("from", ""), limit=int(limit))
        channels = [msgspec.structs.asdict(entry.owner) for _, entry in rows]
        return Response({"channels": channels, "total": len(view.table("clients"))})

    async def _stats(self, request: Request) -> Response:
        return Response(dict(self.status()))

    def metrics(self) -> Sequence[Metric]:
        view = self._host.view()
        return (
            *self._api.counters.metrics(),
            Metric("clients", "gauge", len(view.table("clients")), "Clients with a channel."),
            Metric("held", "gauge", len(self._api.held), "Channels of this node."),
            Metric("in_doubt", "gauge", len(self._api.reaper), "Rows that are yet to be settled."),
        )

    def status(self) -> Mapping[str, Any]:
        view = self._host.view()
        return {
            "clients": len(view.table("clients")),
            "held": len(self._api.held),
            "in_doubt": len(self._api.reaper),
            "lives_to_clean": len(view.table("ended")),
            **self._api.counters.as_dict(),
        }


def _holds(channel: Channel, node: str, incarnation: int) -> bool:
    return channel.node == node and channel.incarnation == incarnation

"""The registry at the network door: `/v1/lcr/...`.

    GET  clients                      registered channels, in pages: ?from= &limit= &node=
    GET  clients/{client_id}          the client's channel: ?consistency=linearizable|local
    GET  clients/{client_id}/history  its last channel, after that has left
    POST clients/{client_id}/register, open, unregister   for brokers in other languages, and
    GET  alarms                       work of this node that takes too long: row_routes.py
    POST clients/{client_id}/kick     end connection and session, wherever they are: {"reason": r}
    POST clients/{client_id}/discard  the same as a clean start of the client does it
    GET  mode                         the mode, and which nodes follow it
    PUT  mode                         take the steps to another: {"mode": m, "timeout_s": s}
    GET  stats                        counters and sizes of this node
    GET  sweep                        what this node's sweeps have done
    GET  settings                     the replicated settings
    PUT  settings/{key}               {"value": json}, null: its default

Rules of this file: a client id is one percent-encoded segment of the path and may hold any
letters. Every answer that is no result is an error in the door's own shape (docs/http-api.md):
`error` for a person, with what to do next, and `reason`, a stable word for programs. What the
registry raises becomes such an answer in the door itself; a request that cannot be done as it is
is a `BadRequest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from raftkv.plugin import (
    BadRequest,
    Handler,
    Host,
    Member,
    Request,
    Response,
    Route,
    TableView,
    answered,
    body_of,
    error_response,
    fresh,
    only_query,
    query_number,
    settings_routes,
)

from .api import LcrApi
from .commands import MODES, Channel, Entry, Mode, NodeRow
from .modes import effective_mode, mode_of, not_adopted, old_nodes
from .owner import ChannelGone
from .past import gone
from .registry import live_owner
from .row_routes import client_id_of, row_routes, shown

__all__ = ["routes"]

# Channels in one answer: some 150 KB of JSON.
LIST_MAX: Final = 1_000
LIST_DEFAULT: Final = 100
# Rows that one request looks at when it filters: some 20 ms of the node's loop.
FILTER_ROWS_MAX: Final = 10_000
# What a client is told when it is kicked. An MQTT reason string has two bytes for its length.
REASON_CHARS_MAX: Final = 1_024
# How long one request may wait for a switch of the mode; another one goes on.
SWITCH_TIMEOUT_S: Final = 30.0
SWITCH_TIMEOUT_MAX_S: Final = 600.0


def routes(host: Host, api: LcrApi) -> Sequence[Route]:
    """The plugin's routes on this node."""
    door = _Door(host, api)
    return (
        Route("GET", "clients/{client_id}", _checked(door.client), "The client's channel."),
        Route("GET", "clients", _checked(door.clients), "Registered channels, by client id."),
        Route(
            "GET", "clients/{client_id}/history", _checked(door.history), "Its last channel, gone."
        ),
        Route("POST", "clients/{client_id}/kick", _checked(door.kick), "End its session."),
        Route(
            "POST", "clients/{client_id}/discard", _checked(door.discard), "Discard its session."
        ),
        Route("GET", "mode", _checked(door.mode), "Which registries the cluster works with."),
        Route("PUT", "mode", _checked(door.switch), "Take the steps to another mode."),
        Route("GET", "stats", door.stats, "Counters and sizes on this node."),
        Route("GET", "sweep", door.sweep, "What the sweeps of this node have done."),
        *settings_routes(host),
        *row_routes(api),
    )


class _Kick(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str = "kicked by an operator"


class _Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Mode
    timeout_s: float = SWITCH_TIMEOUT_S


class _Door:
    def __init__(self, host: Host, api: LcrApi) -> None:
        self._host = host
        self._api = api

    # --- reading ---

    async def client(self, request: Request) -> Response:
        client_id = client_id_of(request)
        only_query(request, "consistency", "registry")
        await fresh(self._host, request)
        match request.query.get("registry", "linear"):
            case "linear":
                channel = self._api.lookup_local(client_id)
            case "old":
                # A bag without order or barrier: what this node's copy holds, once there is one.
                await self._api.legacy.ready()
                bag = [shown(each) for each in self._api.legacy.channels_local(client_id)]
                return Response({"client_id": client_id, "channels": bag})
            case other:
                raise BadRequest(f"registry is {other!r}: say linear or old")
        if channel is None:
            return self._nobody(client_id)
        return Response(shown(channel))

    async def clients(self, request: Request) -> Response:
        only_query(request, "limit", "from", "node", "consistency")
        limit = query_number(request, "limit", LIST_DEFAULT, 1, LIST_MAX)
        first, node = request.query.get("from", ""), request.query.get("node")
        await fresh(self._host, request)
        view = self._host.view()
        clients: TableView[str, Entry] = view.table("clients")
        found: list[dict[str, Any]] = []
        after: str | None = None
        for seen, (client_id, entry) in enumerate(clients.scan(first=first)):
            if len(found) >= limit or seen >= FILTER_ROWS_MAX:
                after = client_id
                break
            owner = live_owner(entry, view.members)
            if owner is not None and node in (None, owner.node):
                found.append(shown(owner))
        return Response({"channels": found, "next": after, "total": len(clients)})

    async def history(self, request: Request) -> Response:
        client_id = client_id_of(request)
        only_query(request, "consistency")
        await fresh(self._host, request)
        view = self._host.view()
        row = gone(view, client_id)
        if row is None:
            text = f"nothing is known of a channel of {client_id!r} that has left"
            if view.settings["history_ms"] == 0:
                text += ": no history is kept (the replicated setting history_ms is 0)"
            return error_response(404, "lcr_no_history", text, client_id=client_id)
        age_ms = max(0, self._host.now_ms() - row.at_ms)
        return Response({"channel": shown(row.channel), "at_ms": row.at_ms, "age_ms": age_ms})

    async def mode(self, request: Request) -> Response:
        only_query(request, "consistency")
        await fresh(self._host, request)
        return Response(self._mode())

    def _mode(self) -> dict[str, Any]:
        view = self._host.view()
        row = mode_of(view)
        old, late = old_nodes(view, view.members), not_adopted(view, view.members)
        known: TableView[str, NodeRow] = view.table("nodes")

        def node(member: Member) -> dict[str, Any]:
            told = known.get(member.name)
            current = told if told is not None and told.incarnation == member.incarnation else None
            return {
                "name": member.name,
                "up": member.up,
                "protocol": None if current is None else current.protocol,
                "adopted": member.up and member.name not in old and member.name not in late,
            }

        return {
            "mode": row.mode,
            "epoch": row.epoch,
            "effective": effective_mode(view).mode,
            "old_nodes": old,
            "nodes": [node(member) for member in view.members.values()],
        }

    async def stats(self, request: Request) -> Response:
        view = self._host.view()
        return Response(
            {
                "clients": len(view.table("clients")),
                "held": len(self._api.held),
                "in_doubt": len(self._api.reaper),
                "lives_to_clean": len(view.table("ended")),
                "history": len(view.table("past")),
                **self._api.counters.as_dict(),
            }
        )

    async def sweep(self, request: Request) -> Response:
        counters = self._api.counters.as_dict()
        found = {
            name.removeprefix("sweep_"): value
            for name, value in counters.items()
            if name.startswith("sweep_")
        }
        settings = self._host.settings
        return Response(
            {
                **found,
                "rows_per_s": settings["sweep_rows_per_s"],
                "interval_s": settings["sweep_interval_s"],
            }
        )

    # --- doing ---

    async def kick(self, request: Request) -> Response:
        client_id = client_id_of(request)
        reason = body_of(request, _Kick).reason
        if len(reason) > REASON_CHARS_MAX:
            raise BadRequest(f"reason has {len(reason)} characters: say it in {REASON_CHARS_MAX}")
        manager = self._api.sessions_or_none()
        if manager is None:
            return self._no_broker(client_id)
        if not await manager.kick(client_id, reason):
            return self._nobody(client_id)
        return Response({"client_id": client_id, "kicked": True})

    async def discard(self, request: Request) -> Response:
        client_id = client_id_of(request)
        body_of(request, _Nothing)
        manager = self._api.sessions_or_none()
        if manager is None:
            return self._no_broker(client_id)
        if not await manager.discard(client_id):
            return self._nobody(client_id)
        return Response({"client_id": client_id, "discarded": True})

    async def switch(self, request: Request) -> Response:
        wanted = body_of(request, _Switch, f"; mode is one of {', '.join(MODES)}")
        if not 0 < wanted.timeout_s <= SWITCH_TIMEOUT_MAX_S:
            raise BadRequest(
                f"timeout_s is {wanted.timeout_s:g}: say more than 0 and at most "
                f"{SWITCH_TIMEOUT_MAX_S:g} seconds, and ask again if that was too short"
            )
        await self._api.switch_mode(wanted.mode, timeout_s=wanted.timeout_s)
        return Response(self._mode())

    # --- inside ---

    def _nobody(self, client_id: str) -> Response:
        mode = effective_mode(self._host.view()).mode
        text = f"the client {client_id!r} has no channel"
        if mode == "disabled":
            text += (
                " in the linear registry, which is not written in mode disabled: ask the HTTP API "
                "with ?registry=old, or switch the mode"
            )
        more = {"client_id": client_id, "channel": None}
        return error_response(404, "lcr_no_channel", text, **more)

    def _no_broker(self, client_id: str) -> Response:
        channel: Channel | None = self._api.lookup_local(client_id)
        where = "a node that a broker runs in" if channel is None else f"the node {channel.node}"
        text = f"no broker uses the registry in {self._host.name}: ask {where}"
        return error_response(409, "lcr_no_broker", text, client_id=client_id)


# --- what a request may say -----------------------------------------------------------------------


def _checked(handler: Handler) -> Handler:
    return answered(handler, _answer_to)


def _answer_to(error: Exception) -> Response | None:
    """The registry's own kind of error; the door itself knows the others."""
    if not isinstance(error, ChannelGone):
        return None
    text = (
        f"the channel did not answer ({error.kind}): it may have ended or not; look it up, "
        f"and try again if it is still there"
    )
    return error_response(504, error.code, text)

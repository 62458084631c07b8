"""Bugs to be planted into the plugin: each breaks one of its rules for the time of a storm.

    with planted("unregister-by-client"):
        ...                               # the storm must notice

A storm that finds nothing proves nothing until it has found what is known to be wrong. These are
the mistakes that the seed's upstream made, those its successors warn of, and those that were made
here on the way. They replace functions (`raftkv/testing/patching.py`), so a rename is an error and
not a bug that is never planted; the plugin itself has no switch for any of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from raftkv.testing.patching import around
from raftkv.testing.planting import Bug, Bugs
from raftkv_lcr import linear_flow, mixed, modes, order, reaper, registry, service, takeover
from raftkv_lcr.commands import Ahead, Channel, Registered, Restart
from raftkv_lcr.handover import Handover
from raftkv_lcr.owner import ChannelGone
from raftkv_lcr.wire import Handed, Reply, pack, unpack

__all__ = ["BUGS", "SEEDS_MAX", "planted"]

# Each must be found within so many seeds.
SEEDS_MAX = 200

BUGS = Bugs(SEEDS_MAX)
planted = BUGS.planted
_wrapping = BUGS.wrapping


# The decision -------------------------------------------------------------------------------------


def _names_the_owner(decide: Callable[..., Any]) -> Callable[..., Any]:
    """Upstream's order of clauses: whoever names the owner gets its place, however old it is."""

    def broken(command: Any, ctx: Any) -> Any:
        clients = ctx.table("clients")
        entry = clients.get(command.client_id)
        owner = registry.live_owner(entry, ctx.members)
        if owner is None or owner != command.predecessor:
            return decide(command, ctx)
        me = registry._connection(command, ctx)
        return registry._decide(command, me, entry, owner, clients, ctx)

    return broken


@contextlib.contextmanager
def _predecessor_first() -> Iterator[None]:
    """As there, nobody looks at the local copy before either."""
    with (
        around(registry, "_register", _names_the_owner),
        around(api_module().LcrApi, "newer_local", lambda newer: lambda *given: None),
    ):
        yield


def api_module() -> Any:
    """Imported late, for it imports nearly everything."""
    from raftkv_lcr import api

    return api


BUGS["predecessor-before-version"] = Bug(
    "a connection that names the owner gets its place without a look at who is newer",
    _predecessor_first,
    seeds_max=SEEDS_MAX,
)


@_wrapping(
    "claims-not-kept",
    "who is told to restart is not remembered, so that anybody may be faster for ever",
    registry,
    "_decide",
)
def _claims_not_kept(decide: Callable[..., Any]) -> Callable[..., Any]:
    def broken(command: Any, me: Channel, entry: Any, owner: Any, clients: Any, ctx: Any) -> Any:
        result = decide(command, me, entry, owner, clients, ctx)
        if isinstance(result, Restart):
            clients.put(me.client_id, msgspec.structs.replace(entry, claim=None))
        return result

    return broken


@_wrapping(
    "future-times-believed",
    "a connect time ahead of the log's clock is not moved to the stamp of the entry",
    order,
    "_between",
)
def _future_times_believed(between: Callable[..., int]) -> Callable[..., int]:
    def broken(given: int, now: int, age_max_ms: int) -> int:
        return max(given, between(given, now, age_max_ms))

    return broken


@_wrapping(
    "retries-grow-newer",
    "a connection that tries again gives no time, and so counts as made at its last attempt",
    linear_flow,
    "carried",
)
def _retries_grow_newer(carried: Callable[..., int | None]) -> Callable[..., int | None]:
    return lambda version, answer: version


@_wrapping(
    "retries-bounded-again",
    "connect_age_max_ms bounds the time of a connection that tries again, too",
    order,
    "place",
)
def _retries_bounded_again(place: Callable[..., tuple[int, int]]) -> Callable[..., Any]:
    def broken(given: int | None, ticket: int, ctx: Any) -> tuple[int, int]:
        t, ticket = place(given, ticket, ctx)
        return max(t, ctx.now - ctx.settings["connect_age_max_ms"]), ticket

    return broken


@_wrapping(
    "ahead-registers",
    "a connection whose predecessor has left is registered all the same",
    registry,
    "_decide",
)
def _ahead_registers(decide: Callable[..., Any]) -> Callable[..., Any]:
    def broken(command: Any, me: Channel, entry: Any, owner: Any, clients: Any, ctx: Any) -> Any:
        result = decide(command, me, entry, owner, clients, ctx)
        if isinstance(result, Ahead) and owner is None:
            return registry._write(me, command.predecessor, True, ctx)
        return result

    return broken


@_wrapping(
    "dead-lives-own",
    "a row counts for as long as its node is a member, whichever life wrote it",
    registry,
    "is_live",
)
def _dead_lives_own(is_live: Callable[..., bool]) -> Callable[..., bool]:
    def broken(channel: Channel, members: Any) -> bool:
        return channel.node in members

    return broken


@_wrapping(
    "epoch-not-compared",
    "an opening that began under another mode is registered",
    registry,
    "_open",
)
def _epoch_not_compared(open_: Callable[..., Any]) -> Callable[..., Any]:
    def broken(command: Any, ctx: Any) -> Any:
        present = modes.mode_of(ctx).epoch
        return open_(msgspec.structs.replace(command, epoch=present), ctx)

    return broken


@_wrapping(
    "unregister-by-client",
    "a row is deleted by its client id, whichever channel owns it by then",
    registry,
    "_unregister",
)
def _unregister_by_client(unregister: Callable[..., Any]) -> Callable[..., Any]:
    def broken(command: Any, ctx: Any) -> Any:
        entry = ctx.table("clients").get(command.channel.client_id)
        if entry is not None and entry.claim is None:
            command = msgspec.structs.replace(command, channel=entry.owner)
        return unregister(command, ctx)

    return broken


@_wrapping(
    "nobody-cleans",
    "no leader cleans up after a life that has ended",
    service.LcrService,
    "_wake_cleaner",
)
def _nobody_cleans(wake: Callable[..., None]) -> Callable[..., None]:
    return lambda self: None


# The session flow ---------------------------------------------------------------------------------


@_wrapping(
    "begin-unregisters",
    "a channel loses its row as soon as somebody begins to take it over",
    Handover,
    "begin",
)
def _begin_unregisters(
    begin: Callable[..., Awaitable[Reply]],
) -> Callable[..., Awaitable[Reply]]:
    async def broken(handover: Handover, request: Any) -> Reply:
        reply = await begin(handover, request)
        if reply.status == "ok":
            handover._manager.api.reaper.delete(request.channel)
        return reply

    return broken


@_wrapping(
    "freeze-for-ever",
    "a frozen channel that nobody ends does not go on",
    Handover,
    "_thaw",
)
def _freeze_for_ever(thaw: Callable[..., None]) -> Callable[..., None]:
    def broken(handover: Handover, key: Any) -> None:
        freeze = handover._frozen.pop(key)
        handover._drop_parcel(freeze.number)

    return broken


@_wrapping(
    "first-page-only",
    "the content of a session that takes several pages is not fetched, and taken for empty",
    takeover.Takeovers,
    "_content",
)
def _first_page_only(
    content: Callable[..., Awaitable[bytes | None]],
) -> Callable[..., Awaitable[bytes | None]]:
    async def broken(
        takeovers: takeover.Takeovers,
        channel: Channel,
        reply: Reply,
        until: float,
        *,
        refusable: bool = False,
    ) -> bytes | None:
        whole = await content(takeovers, channel, reply, until, refusable=refusable)
        if whole is None or len(reply.page) >= reply.size:
            return whole
        nothing = pack(())
        if refusable:
            # The answer to a begin: the session, and nothing around it.
            return nothing
        handed = unpack(whole, Handed)
        return pack(Handed(None if handed.content is None else nothing, handed.pendings))

    return broken


@_wrapping(
    "refused-peers-awaited",
    "a node that refuses connections is asked again until the time of the begin is over",
    takeover,
    "is_refused",
)
def _refused_peers_awaited(is_refused: Callable[..., bool]) -> Callable[..., bool]:
    return lambda error: False


@_wrapping(
    "end-not-repeated",
    "an end whose answer is lost is given up, and taken for one that gave nothing more",
    takeover.Takeovers,
    "end",
)
def _end_not_repeated(
    end: Callable[..., Awaitable[Handed]],
) -> Callable[..., Awaitable[Handed]]:
    async def broken(takeovers: takeover.Takeovers, *given: Any) -> Handed:
        try:
            return await end(takeovers, *given)
        except ChannelGone:
            return Handed(None, ())

    return broken


@_wrapping(
    "losers-live-on",
    "a channel that lost its row, and whose successor does not come, is left alone",
    Handover,
    "lose",
)
def _losers_live_on(lose: Callable[..., None]) -> Callable[..., None]:
    return lambda self, row, newer: None


@_wrapping(
    "returned-as-before",
    "a node that was declared dead goes on with its channels as if nothing had been",
    mixed.Adoption,
    "_lacks",
)
def _returned_as_before(lacks: Callable[..., bool]) -> Callable[..., bool]:
    def broken(adoption: mixed.Adoption, row: Channel, mode: Any) -> bool:
        if row.incarnation != adoption._host.incarnation:
            return False
        return lacks(adoption, row, mode)

    return broken


@_wrapping(
    "doubts-forgotten",
    "a registration whose outcome nobody saw is left to its fate",
    reaper.Reaper,
    "doubt",
)
def _doubts_forgotten(doubt: Callable[..., None]) -> Callable[..., None]:
    def broken(self: reaper.Reaper, doubtful: Any) -> None:
        if doubtful.task is not None:
            doubtful.task.add_done_callback(reaper._read)

    return broken


@_wrapping(
    "losses-not-told",
    "a connection whose predecessor's session could not be had is told that there was none",
    linear_flow.LinearFlow,
    "_finish",
)
def _losses_not_told(finish: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def broken(
        flow: linear_flow.LinearFlow, attempt: Any, course: Any, registered: Registered
    ) -> Any:
        course.failure = None
        return await finish(flow, attempt, course, registered)

    return broken


@_wrapping(
    "older-asked-once",
    "whether the client of the predecessor is connected is asked at the first attempt only",
    linear_flow.LinearFlow,
    "_kept",
)
def _older_asked_once(kept: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def broken(flow: linear_flow.LinearFlow, attempt: Any, course: Any) -> Any:
        return None if attempt.attempts else await kept(flow, attempt, course)

    return broken


# Modes --------------------------------------------------------------------------------------------


@_wrapping(
    "nothing-adopted",
    "after a switch a node announces the epoch, and leaves its channels where they are",
    mixed.Adoption,
    "_enter",
)
def _nothing_adopted(enter: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
    async def broken(adoption: mixed.Adoption, row: Channel, mode: Any) -> None:
        return

    return broken

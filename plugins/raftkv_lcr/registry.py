"""The decision of the Linear Channel Registry, evaluated where it counts: at apply.

Rules of this file: pure. It sees its tables, the members and the log's clock, and everything it
answers is the same on every node. Waiting, talking to channels and retrying happen elsewhere.

**The decision.** A connection that registers states the predecessor that it has taken over, as its
own node's copy showed it (the seed's *LocalMax*). At apply the table is the truth (*RealMax*), and
nothing can change between the look and the write. `Register` and `Open` share it; an `Open` is
answered *mode changed* before anything else if it began under another mode (`modes.py`). In this
order:

1. The owner is this very connection: the first answer again. A repeated call changes nothing.
2. The owner is newer, or a claimant is: *outdated late*. This comes before the predecessor is
   looked at: an old connection that has seen the newer one must not win by naming it.
3. The predecessor is the owner (or both are none): *registered*; the owner's row is replaced. So is
   it by a clean start, whomever that names: it continues nothing, so nothing can be stale about it.
4. The owner is newer than the predecessor: *restart* with the real one.
5. What was taken over is gone: *ahead*, the seed's unlikely case. Nothing is written. On one log it
   is no inconsistency, it only means that the predecessor left between the local read and this
   entry.

**Adopting** is for a channel that lives already and has no row: nothing was taken over for it, so
it may take nobody's place. Of the decision it has the first rule, and the third where there is no
owner; any live owner, newer or older, is an *outdated* to it. It was opened before the mode was
switched, so it gets the serial of the switch for a ticket: whoever has a ticket of this mode is
newer. Its row alone is not written by the
session of the node that it names when that node cannot do it itself (an old one); the named life
must go on, or nobody would clean up after the row.

**Two generations.** The seed keeps a bag and hopes that two rows suffice. Here they are a law: one
owner, and one *claimant*, who was told `restart` and is on the way back. A newer claimant displaces
an older one, and an older connection cannot register past a newer claim, so the newest gets in at
its next attempt, however many contend; every other one gets a definite "outdated". A claim counts
while its node lives and for `claim_ms`; it stands beside an owner only and goes when the owner
goes, so that no claim is left behind. (While connections of one client arrive faster than a round
trip through the log, claims keep displacing each other, and the owner stays who it is. That is
wanted: the alternative is a session that moves a thousand times a second.)

**Fencing.** A row counts only while its node lives in the incarnation that wrote it. The entry that
ends a life therefore ends all its rows at once, however many. They are deleted later, in bounded
batches, by commands that compare (node, incarnation): rows of the returned node are never hit.

**Unregistering never overruns.** It names the exact row, ticket included, and nobody can know the
ticket before the row was written. So a late or doubled delete finds nothing, and one that precedes
its registration cannot exist. A caller whose registration ended in a time-out has no row to name:
its node settles the outcome by session and sequence number first (`reaper.py`) and then deletes
what was written, if anything was. If the node dies meanwhile, so does its session (the register can
no longer be applied) and the row (fenced). There is nothing to keep tombstones for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from raftkv.plugin import Context, Member, MemberChange, Table, View

from . import modes, order, past
from .commands import (
    FORMAT_TIMES,
    Adopt,
    Ahead,
    AheadAt,
    Announce,
    BadTicket,
    Channel,
    Claim,
    Cleaned,
    Cleanup,
    Drawn,
    DrawTicket,
    Entry,
    InProgress,
    ModeChanged,
    NoOrigin,
    NotAMember,
    Open,
    OutdatedLate,
    Register,
    Registered,
    Restart,
    SelfTakeover,
    SwitchMode,
    TakeTicket,
    Ticket,
    TrimPast,
    Unregister,
    Unregistered,
    same_channel,
)
from .order import is_newer

__all__ = ["apply", "is_live", "live_claimant", "live_owner", "mark_ended"]

RegisterResult = Registered | OutdatedLate | Restart | Ahead | InProgress


def is_live(channel: Channel, members: Mapping[str, Member]) -> bool:
    """Whether the life of the node that holds the channel still goes on."""
    member = members.get(channel.node)
    return member is not None and member.up and member.incarnation == channel.incarnation


def live_owner(entry: Entry | None, members: Mapping[str, Member]) -> Channel | None:
    """The client's channel as everybody should see it: rows of ended lives do not exist."""
    if entry is not None and is_live(entry.owner, members):
        return entry.owner
    return None


def live_claimant(entry: Entry, view: View | Context, now_ms: int) -> Channel | None:
    """The client's claimant, as long as its claim counts at `now_ms` of the log's clock."""
    claim = entry.claim
    if claim is None or now_ms - claim.since_ms >= view.settings["claim_ms"]:
        return None
    return claim.channel if is_live(claim.channel, view.members) else None


def apply(command: Any, ctx: Context) -> Any:
    """Apply one command of this plugin. Raises the refusals of `commands.py`."""
    match command:
        case Register():
            return _register(command, ctx)
        case Open():
            return _open(command, ctx)
        case Unregister():
            return _unregister(command, ctx)
        case TakeTicket():
            if ctx.version >= FORMAT_TIMES:
                order.begin(ctx)
            return Ticket(ctx.serial, ctx.index)
        case DrawTicket():
            order.begin(ctx)
            return Drawn(ctx.serial, ctx.index, ctx.now)
        case Cleanup():
            return _cleanup(command, ctx)
        case Adopt():
            return _adopt(command, ctx)
        case Announce():
            return modes.announce(command, ctx)
        case SwitchMode():
            if ctx.version >= FORMAT_TIMES:
                order.begin(ctx)  # channels that are entered for the mode get its serial
            return modes.switch(command, ctx)
        case TrimPast():
            return past.trim(command, ctx)
    raise AssertionError(f"not a command of lcr: {type(command).__name__}")


def mark_ended(change: MemberChange, ctx: Context) -> None:
    """Pure hook: remember that a life ended, so that some leader cleans up after it."""
    if change.ended is not None and change.old is not None:
        ctx.table("ended").put((change.old.name, change.ended), ctx.now)
        # What it announced ends with it: the next life has to adopt, and announce, anew.
        ctx.table("nodes").delete(change.old.name)


def _open(command: Open, ctx: Context) -> RegisterResult | ModeChanged:
    mode = modes.mode_of(ctx)
    if command.epoch != mode.epoch:
        return ModeChanged(mode.mode, mode.epoch, ctx.index)
    modes.note(ctx)
    return _register(command, ctx)


def _register(command: Register | Open, ctx: Context) -> RegisterResult:
    me = _connection(command, ctx)
    clients: Table[str, Entry] = ctx.table("clients")
    entry = clients.get(command.client_id)
    owner = live_owner(entry, ctx.members)
    if entry is None or owner is None:
        return _decide(command, me, None, None, clients, ctx)
    if same_channel(owner, me):
        return Registered(owner, None, entry.session_present, True, ctx.index)
    first = order.first_ticket(ctx)
    if is_newer(owner, me, first):
        return OutdatedLate(owner, ctx.index)
    rival = _rival(entry, me, ctx)
    if rival is not None and ctx.settings["policy"] == "refuse":
        return InProgress(rival, ctx.index)
    if rival is not None and is_newer(rival, me, first):
        return OutdatedLate(rival, ctx.index)
    if owner.ticket == me.ticket:
        raise BadTicket(f"ticket {me.ticket} is already in use by channel {owner.channel!r}")
    return _decide(command, me, entry, owner, clients, ctx)


def _decide(
    command: Register | Open,
    me: Channel,
    entry: Entry | None,
    owner: Channel | None,
    clients: Table[str, Entry],
    ctx: Context,
) -> RegisterResult:
    """LocalMax against RealMax, for a connection that is not outdated."""
    predecessor = command.predecessor
    if isinstance(command, Open) and (command.clean or not command.resume):
        resumed = False
    else:
        resumed = owner is not None
    if predecessor == owner or (isinstance(command, Open) and command.clean):
        return _write(me, owner, resumed, ctx)
    if (
        entry is not None
        and owner is not None
        and (predecessor is None or is_newer(owner, predecessor, order.first_ticket(ctx)))
    ):
        claim = Claim(me, ctx.now)
        clients.put(me.client_id, msgspec.structs.replace(entry, claim=claim))
        return Restart(owner, me, ctx.index)
    if ctx.version >= FORMAT_TIMES:
        return AheadAt(owner, me.ticket, ctx.index, me.version)
    return Ahead(owner, me.ticket, ctx.index)


def _write(me: Channel, took_over: Channel | None, resumed: bool, ctx: Context) -> Registered:
    ctx.table("clients").put(me.client_id, Entry(me, resumed))
    past.back(me.client_id, ctx)
    return Registered(me, took_over, resumed, False, ctx.index)


def _adopt(command: Adopt, ctx: Context) -> Registered | OutdatedLate:
    me = _adopted(command.channel, ctx)
    entry: Entry | None = ctx.table("clients").get(me.client_id)
    owner = live_owner(entry, ctx.members)
    if entry is None or owner is None:
        return _write(me, None, command.session_present, ctx)
    if same_channel(owner, me):
        return Registered(owner, None, entry.session_present, True, ctx.index)
    return OutdatedLate(owner, ctx.index)


def _adopted(channel: Channel, ctx: Context) -> Channel:
    """The living channel, as a row."""
    if ctx.origin is None:
        raise NoOrigin(f"client {channel.client_id!r} cannot be registered without a node")
    if not is_live(channel, ctx.members):
        raise NotAMember(
            f"incarnation {channel.incarnation} of {channel.node} has ended, and with it channel "
            f"{channel.channel!r}: it must connect anew"
        )
    _check_ticket(channel.ticket, ctx)
    # What a node enters of its own was opened before the mode was switched.
    own = channel.node == ctx.origin.name
    if own:
        modes.note(ctx)
    ticket = channel.ticket or (own and modes.mode_of(ctx).serial) or ctx.serial
    if ctx.version >= FORMAT_TIMES:
        return order.adopted(channel, ticket, own, ctx)
    version = channel.version if channel.supplied else ticket
    return msgspec.structs.replace(channel, ticket=ticket, version=version)


def _check_ticket(ticket: int, ctx: Context) -> None:
    if ticket >= ctx.serial:
        raise BadTicket(f"ticket {ticket} has not been issued; the log is at {ctx.serial}")


def _connection(command: Register | Open, ctx: Context) -> Channel:
    """The connection that registers, as a row: identity from the session, place from the log."""
    origin = ctx.origin
    if origin is None:
        raise NoOrigin(f"client {command.client_id!r} cannot be registered without a node")
    _check_ticket(command.ticket, ctx)
    version, ticket, supplied = command.version, command.ticket, command.version is not None
    if ctx.version >= FORMAT_TIMES:
        version, ticket = order.place(version, ticket, ctx)
        supplied = True
    ticket = ticket or ctx.serial
    me = Channel(
        client_id=command.client_id,
        channel=command.channel,
        node=origin.name,
        incarnation=origin.incarnation,
        version=ticket if version is None else version,
        ticket=ticket,
        supplied=supplied,
    )
    if command.predecessor is not None and same_channel(command.predecessor, me):
        raise SelfTakeover(f"channel {command.channel!r} names itself as its predecessor")
    return me


def _rival(entry: Entry, me: Channel, ctx: Context) -> Channel | None:
    """Another connection's claim that still counts."""
    claimant = live_claimant(entry, ctx, ctx.now)
    return None if claimant is None or same_channel(claimant, me) else claimant


def _unregister(command: Unregister, ctx: Context) -> Unregistered:
    clients: Table[str, Entry] = ctx.table("clients")
    row = command.channel
    entry = clients.get(row.client_id)
    if entry is not None and entry.owner == row:
        # A claimant loses only its claim: its next attempt meets "ahead", then an empty place.
        clients.delete(row.client_id)
        past.left(row, ctx.now, ctx)
        return Unregistered(True, ctx.index)
    if entry is not None and entry.claim is not None and entry.claim.channel == row:
        clients.put(row.client_id, msgspec.structs.replace(entry, claim=None))
        return Unregistered(True, ctx.index)
    return Unregistered(False, ctx.index)


def _cleanup(command: Cleanup, ctx: Context) -> Cleaned:
    clients: Table[str, Entry] = ctx.table("clients")
    # An ended life's channels left when it ended, however late they are cleaned.
    ended_ms = ctx.table("ended").get((command.node, command.incarnation), ctx.now)
    rows = 0
    for client_id in command.client_ids:
        entry = clients.get(client_id)
        if entry is None:
            continue
        if _was_held(entry.owner, command, ctx):
            clients.delete(client_id)
            past.left(entry.owner, ended_ms, ctx)
            rows += 1
        elif entry.claim is not None and _was_held(entry.claim.channel, command, ctx):
            clients.put(client_id, msgspec.structs.replace(entry, claim=None))
            rows += 1
    if command.done:
        ctx.table("ended").delete((command.node, command.incarnation))
    return Cleaned(rows, ctx.index)


def _was_held(channel: Channel, command: Cleanup, ctx: Context) -> bool:
    """By that life, and that life is over: a mistaken command cannot delete a living row."""
    return (
        channel.node == command.node
        and channel.incarnation == command.incarnation
        and not is_live(channel, ctx.members)
    )

"""What the Linear Channel Registry says through the log, and what it keeps.

Everything here is data: the commands with their results, the rows of the tables, the refusals and
the replicated settings. The decisions are in `registry.py`.

A *channel* is one connection of one client, held by one life (incarnation) of one node. Its
*version* says how new it is. By default the version is the channel's *ticket*: the serial number
of the command with which the connection first reached the log. Tickets are unique and totally
ordered without any clock, so connections of the same millisecond are decided like all others. A
caller may supply a version of its own (the transport's or the client's timestamp); it then decides
first, and the ticket breaks ties.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from raftkv.errors import Refused
from raftkv.plugin import Setting, TableSpec

__all__ = [
    "CHANNEL_CHARS_MAX",
    "CLIENT_ID_CHARS_MAX",
    "REFUSALS",
    "SETTINGS",
    "TABLES",
    "VERSION_MAX",
    "Ahead",
    "BadTicket",
    "Channel",
    "Claim",
    "Cleaned",
    "Cleanup",
    "Entry",
    "InProgress",
    "NoOrigin",
    "OutdatedEarly",
    "OutdatedLate",
    "Register",
    "Registered",
    "Restart",
    "SelfTakeover",
    "TakeTicket",
    "Ticket",
    "Unregister",
    "Unregistered",
    "is_newer",
    "same_channel",
]

# A table key has at most 64 KiB, and a character takes up to 4 bytes in UTF-8.
CLIENT_ID_CHARS_MAX = 16_383
# A channel id names a connection inside its node: a counter, a UUID or a socket's name.
CHANNEL_CHARS_MAX = 256
# Versions are 63-bit, so that every language and msgpack agree on them.
VERSION_MAX = 2**63 - 1
# Rows of one Cleanup command, see `cleanup_rows_max` below.
CLEANUP_ROWS_LIMIT = 1_000

ClientId = Annotated[str, msgspec.Meta(min_length=1, max_length=CLIENT_ID_CHARS_MAX)]
ChannelId = Annotated[str, msgspec.Meta(min_length=1, max_length=CHANNEL_CHARS_MAX)]
Version = Annotated[int, msgspec.Meta(ge=0, le=VERSION_MAX)]


class Channel(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One registered (or claiming) connection. Immutable: any change is another row.

    `incarnation` is the life of `node` in which the channel exists: when that life ends the
    channel is gone, whatever the tables still hold. `version` is the caller's if it `supplied` one,
    else the ticket. Equality of all fields is what "the exact row" means.
    """

    client_id: ClientId
    channel: ChannelId
    node: str
    incarnation: int
    version: Version
    ticket: Version
    supplied: bool = False


class Claim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A connection that was told `restart` and is expected back, since `since_ms` (log clock)."""

    channel: Channel
    since_ms: int


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All that the registry holds of one client: an owner and at most one claimant."""

    owner: Channel
    # What the owner was told about its session, so that a repeated question gets this answer.
    session_present: bool
    claim: Claim | None = None


def same_channel(one: Channel, other: Channel) -> bool:
    """Whether both rows stand for the same connection, however they were versioned."""
    return (
        one.channel == other.channel
        and one.node == other.node
        and one.incarnation == other.incarnation
        and one.client_id == other.client_id
    )


def is_newer(one: Channel, other: Channel) -> bool:
    """Whether `one` is the newer connection.

    Where both callers supplied a version, versions decide and tickets break ties. Otherwise only
    tickets are comparable: a timestamp and a position of the log have nothing in common, and the
    order in which the log saw the two is the truth that is left.
    """
    if one.supplied and other.supplied and one.version != other.version:
        return one.version > other.version
    return one.ticket > other.ticket


# --- results of Register: one Struct per outcome of the seed's decision ---------------------------


class Registered(msgspec.Struct, frozen=True, array_like=True, tag="registered"):
    """Written. `took_over` is the predecessor whose session this channel continues, if any."""

    outcome: ClassVar[str] = "ok"
    channel: Channel
    took_over: Channel | None
    session_present: bool
    # The same connection was the owner already: nothing was written, the first answer holds.
    repeated: bool
    index: int


class OutdatedLate(msgspec.Struct, frozen=True, array_like=True, tag="outdated"):
    """Refused at apply: `newer`, an owner or a claimant, is a newer connection of this client."""

    outcome: ClassVar[str] = "outdated_late"
    newer: Channel
    index: int


class Restart(msgspec.Struct, frozen=True, array_like=True, tag="restart"):
    """The local read had missed `predecessor`. Take over that one and register again.

    `claim` is this connection as the log knows it now; its ticket belongs into the next attempt.
    """

    outcome: ClassVar[str] = "restart"
    predecessor: Channel
    claim: Channel
    index: int


class Ahead(msgspec.Struct, frozen=True, array_like=True, tag="ahead"):
    """The predecessor that was taken over is registered no longer. Nothing was written.

    `predecessor` is who is registered now, if anybody. The next attempt carries `ticket`.
    """

    outcome: ClassVar[str] = "ahead"
    predecessor: Channel | None
    ticket: int
    index: int


class InProgress(msgspec.Struct, frozen=True, array_like=True, tag="in_progress"):
    """Policy "refuse": another connection is just taking this client over. Nothing was written."""

    outcome: ClassVar[str] = "in_progress"
    claimant: Channel
    index: int


class OutdatedEarly(msgspec.Struct, frozen=True):
    """Decided by this node's own copy, without the log: `newer` is a newer connection."""

    outcome: ClassVar[str] = "outdated_early"
    newer: Channel


# --- the other results ----------------------------------------------------------------------------


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """A place in the total order of connections."""

    ticket: int
    index: int


class Unregistered(msgspec.Struct, frozen=True, array_like=True):
    """`removed` says whether that exact row was there; False is no error."""

    removed: bool
    index: int


class Cleaned(msgspec.Struct, frozen=True, array_like=True):
    """How many rows a Cleanup deleted."""

    rows: int
    index: int


# --- commands -------------------------------------------------------------------------------------


class TakeTicket(msgspec.Struct, frozen=True, array_like=True, tag="ticket"):
    """Draw a ticket at connect, for a broker that works long before it registers."""

    Result: ClassVar[Any] = Ticket


class Register(msgspec.Struct, frozen=True, array_like=True, tag="register"):
    """Compare and write. Node and incarnation are those of the session that sends it."""

    Result: ClassVar[Any] = Registered | OutdatedLate | Restart | Ahead | InProgress
    client_id: ClientId
    channel: ChannelId
    # The owner whose session was taken over, None if there was none to be seen.
    predecessor: Channel | None
    version: Version | None = None
    # 0: this command is the first contact with the log, and its serial becomes the ticket.
    ticket: Version = 0


class Unregister(msgspec.Struct, frozen=True, array_like=True, tag="unregister"):
    """Delete exactly this row, owner or claim; never anything that was written later."""

    Result: ClassVar[Any] = Unregistered
    channel: Channel


class Cleanup(msgspec.Struct, frozen=True, array_like=True, tag="cleanup"):
    """Delete what the ended life (node, incarnation) holds of these clients.

    `done` says that no row of that life is left besides these: its mark is deleted too.
    """

    Result: ClassVar[Any] = Cleaned
    node: str
    incarnation: int
    client_ids: Annotated[tuple[str, ...], msgspec.Meta(max_length=CLEANUP_ROWS_LIMIT)]
    done: bool


# --- refusals -------------------------------------------------------------------------------------


class NoOrigin(Refused):
    """A channel belongs to a node, and this command was sent by none. Register through a node."""

    code = "lcr_no_origin"


class BadTicket(Refused):
    """The ticket was not issued to this connection: it lies ahead of the log, or is in use."""

    code = "lcr_bad_ticket"


class SelfTakeover(Refused):
    """A channel cannot be its own predecessor."""

    code = "lcr_self_takeover"


REFUSALS: tuple[type[Refused], ...] = (NoOrigin, BadTicket, SelfTakeover)


# --- tables and settings --------------------------------------------------------------------------

TABLES = (
    # client id -> Entry
    TableSpec("clients", str, Entry),
    # (node, incarnation) of a life that ended and may still hold rows -> when it ended, log clock
    TableSpec("ended", tuple[str, int], int),
)


def _check_policy(value: Any) -> str | None:
    return None if value in ("displace", "refuse") else 'must be "displace" or "refuse"'


def _check_claim_ms(value: Any) -> str | None:
    return None if 100 <= value <= 600_000 else "must be 100 to 600000 milliseconds"


def _check_cleanup_rows_max(value: Any) -> str | None:
    if 1 <= value <= CLEANUP_ROWS_LIMIT:
        return None
    return f"must be 1 to {CLEANUP_ROWS_LIMIT} rows"


SETTINGS = (
    Setting(
        "policy",
        str,
        "displace",
        _check_policy,
        "What a third connection meets while a second takes over: the newest displaces, or is "
        "refused.",
    ),
    # Longer than any takeover should last, as long as the lock that the seed wants to get rid of.
    Setting(
        "claim_ms",
        int,
        30_000,
        _check_claim_ms,
        "Milliseconds of the log's clock after which a claimant that did not return is ignored.",
    ),
    # Some 2 ms of apply: the batch must not hold up a heartbeat.
    Setting(
        "cleanup_rows_max",
        int,
        200,
        _check_cleanup_rows_max,
        "Rows of a dead node that one log entry deletes.",
    ),
)

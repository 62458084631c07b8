"""What the Linear Channel Registry says through the log, and what it keeps.

Everything here is data: the commands with their results, the rows of the tables and the refusals.
The decisions are in `registry.py`, `modes.py` and `past.py`, the replicated settings in
`settings.py`.

A *channel* is one connection of one client, held by one life (incarnation) of one node. Its
version orders connections: the time at which the connection was made, and its *ticket*, the serial
number of the command with which it first reached the log. Tickets are unique, so connections of the
same millisecond are decided like all others (`order.py`).

Format 1, older than every release, has `Register`, `Unregister`, `TakeTicket` and `Cleanup`. Format
2, that of 0.1.0, adds sessions and modes. Format 3 adds times: `DrawTicket`, and `AheadAt` for
`Ahead`. A format adds commands and results and never fields: a member that does not know it cannot
decode them, and no other member may do what it cannot (`plugin.py`).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from raftkv.errors import Refused
from raftkv.plugin import TableSpec

__all__ = [
    "CHANNEL_CHARS_MAX",
    "CLEANUP_ROWS_LIMIT",
    "CLIENT_ID_CHARS_MAX",
    "FORMAT_1",
    "FORMAT_SESSIONS",
    "FORMAT_TIMES",
    "MODES",
    "PROTOCOL",
    "REFUSALS",
    "TABLES",
    "VERSION_MAX",
    "Adopt",
    "Ahead",
    "AheadAt",
    "Announce",
    "Announced",
    "BadEpoch",
    "BadTicket",
    "Channel",
    "Claim",
    "Cleaned",
    "Cleanup",
    "DrawTicket",
    "Drawn",
    "Entry",
    "Gone",
    "InProgress",
    "Mode",
    "ModeChanged",
    "ModeMoved",
    "ModeRow",
    "ModeSwitched",
    "NoOrigin",
    "NodeRow",
    "NotAMember",
    "NotAdopted",
    "OldNodes",
    "Open",
    "OutdatedEarly",
    "OutdatedLate",
    "Register",
    "Registered",
    "Restart",
    "SelfTakeover",
    "SwitchMode",
    "TakeTicket",
    "Ticket",
    "TrimPast",
    "Trimmed",
    "Unregister",
    "Unregistered",
    "WrongStep",
    "same_channel",
]

# A table key has at most 64 KiB, and a character takes up to 4 bytes in UTF-8.
CLIENT_ID_CHARS_MAX = 16_383
# A channel id names a connection inside its node: a counter, a UUID or a socket's name.
CHANNEL_CHARS_MAX = 256
# Versions are 63-bit, so that every language and msgpack agree on them.
VERSION_MAX = 2**63 - 1
# Rows of one Cleanup or TrimPast, see `cleanup_rows_max` in settings.py.
CLEANUP_ROWS_LIMIT = 1_000
# The calls between nodes that this code speaks ("session.begin" and so on). The old registry's
# calls, without versions and tokens, are protocol 1; a node that announces nothing speaks that one.
PROTOCOL = 2
PROTOCOL_MAX = 2**31 - 1

ClientId = Annotated[str, msgspec.Meta(min_length=1, max_length=CLIENT_ID_CHARS_MAX)]
ChannelId = Annotated[str, msgspec.Meta(min_length=1, max_length=CHANNEL_CHARS_MAX)]
Version = Annotated[int, msgspec.Meta(ge=0, le=VERSION_MAX)]
# Which registries are read and written, see modes.py.
Mode = Literal["disabled", "dual", "migration", "enabled"]
MODES: tuple[Mode, ...] = ("disabled", "dual", "migration", "enabled")


class Channel(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One registered (or claiming) connection. Immutable: any change is another row.

    `incarnation` is the life of `node` in which the channel exists: when that life ends the
    channel is gone, whatever the tables still hold. `version` is its time in milliseconds of the
    log's clock if it has one (`supplied`). In rows of format 1 and 2 it is what the
    caller supplied, else the ticket. Equality of all fields is what "the exact row" means.
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


class ModeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What all nodes do from one index of the log on. `epoch` is that index; 0: never switched.

    `serial` is that of the switch: older than every ticket drawn under this mode.
    """

    mode: Mode
    epoch: int
    serial: int = 0


class NodeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A life of a node that speaks the session protocol `protocol`.

    `epoch` is the latest one for which it says that all of its channels stand where the mode of
    that epoch wants them.
    """

    incarnation: int
    protocol: int
    epoch: int


class Gone(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """History: the last channel of a client, which left at `at_ms` (log clock)."""

    channel: Channel
    at_ms: int


def same_channel(one: Channel, other: Channel) -> bool:
    """Whether both rows stand for the same connection, however they were versioned."""
    return (
        one.channel == other.channel
        and one.node == other.node
        and one.incarnation == other.incarnation
        and one.client_id == other.client_id
    )


# --- results of Register and Open: one Struct per outcome of the seed's decision ------------------


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

    `claim` is this connection as the log knows it now; its ticket, and from format 3 on its
    version, belong into the next attempt.
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


class AheadAt(Ahead, frozen=True, array_like=True, tag="ahead_at"):
    """Ahead, from format 3 on. `at_ms` is the time of this connection, for the next attempt."""

    at_ms: int


class InProgress(msgspec.Struct, frozen=True, array_like=True, tag="in_progress"):
    """Policy "refuse": another connection is just taking this client over. Nothing was written."""

    outcome: ClassVar[str] = "in_progress"
    claimant: Channel
    index: int


class ModeChanged(msgspec.Struct, frozen=True, array_like=True, tag="mode_changed"):
    """The mode was switched since this node looked. Nothing was written: start again under it."""

    outcome: ClassVar[str] = "mode_changed"
    mode: Mode
    epoch: int
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


class Drawn(Ticket, frozen=True, array_like=True):
    """A ticket and the stamp of its entry, in milliseconds of the log's clock.

    None before format 3, where tickets are compared without a time.
    """

    at_ms: int | None = None


class Unregistered(msgspec.Struct, frozen=True, array_like=True):
    """`removed` says whether that exact row was there; False is no error."""

    removed: bool
    index: int


class Cleaned(msgspec.Struct, frozen=True, array_like=True):
    """How many rows a Cleanup deleted."""

    rows: int
    index: int


class Announced(msgspec.Struct, frozen=True, array_like=True):
    """The node is known. `mode` and `epoch` are the present ones: are they those it announced?"""

    mode: Mode
    epoch: int
    index: int


class ModeSwitched(msgspec.Struct, frozen=True, array_like=True):
    """The mode that stands now, and since which index of the log: this one, if it changed."""

    mode: Mode
    epoch: int
    index: int


class Trimmed(msgspec.Struct, frozen=True, array_like=True):
    """How many rows of history a TrimPast deleted, and whether more are due."""

    rows: int
    more: bool
    index: int


# --- commands -------------------------------------------------------------------------------------


class TakeTicket(msgspec.Struct, frozen=True, array_like=True, tag="ticket"):
    """Draw a ticket at connect, for a broker that works long before it registers."""

    Result: ClassVar[Any] = Ticket


class Register(msgspec.Struct, frozen=True, array_like=True, tag="register"):
    """Compare and write. Node and incarnation are those of the session that sends it."""

    Result: ClassVar[Any] = Registered | OutdatedLate | Restart | Ahead | AheadAt | InProgress
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


# --- commands of format 2 -------------------------------------------------------------------------


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """As Register, for a connection whose session flow began under the mode of `epoch`.

    `resume` says whether the predecessor's session is continued. Without it the channel takes the
    predecessor's place and nothing else: its content could not be had. `clean` says that nothing is
    to be continued, whoever the predecessor is: the log finds it, the connection need name none.
    """

    Result: ClassVar[Any] = (
        Registered | OutdatedLate | Restart | Ahead | AheadAt | InProgress | ModeChanged
    )
    client_id: ClientId
    channel: ChannelId
    predecessor: Channel | None
    version: Version | None
    ticket: Version
    resume: bool
    epoch: Version
    clean: bool = False


class Adopt(msgspec.Struct, frozen=True, array_like=True, tag="adopt"):
    """Enter a channel that lives already, but has no row. It displaces nobody.

    A node does that for its own channels after a switch of the mode or in a new life, and for those
    of an old node, which `channel` then names. A channel without a ticket (0) gets the serial of
    the switch if it is the sender's own, else this command's. `adopted` of order.py
    gives its version; before format 3 it is the ticket, if none was supplied.
    """

    Result: ClassVar[Any] = Registered | OutdatedLate
    channel: Channel
    session_present: bool


class Announce(msgspec.Struct, frozen=True, array_like=True, tag="announce"):
    """The sending node speaks `protocol`, and has adopted all of its channels for `epoch`.

    `incarnation` is the life in which it has; 0: the present one. What has not left a node before
    its life ended is sent again in the next, whose channels are not adopted yet.
    """

    Result: ClassVar[Any] = Announced
    protocol: Annotated[int, msgspec.Meta(ge=1, le=PROTOCOL_MAX)]
    epoch: Version
    incarnation: Version = 0


class SwitchMode(msgspec.Struct, frozen=True, array_like=True, tag="switch_mode"):
    """Let all nodes work in another mode from this entry on. One step; see modes.py.

    `epoch` is that of the mode which it was asked to end; None: whichever. A switch may be on its
    way for long, and one that comes late must not undo what was switched since.
    """

    Result: ClassVar[Any] = ModeSwitched
    mode: Mode
    epoch: Version | None = None


class TrimPast(msgspec.Struct, frozen=True, array_like=True, tag="trim_past"):
    """Delete at most `rows` rows of the history that are due, oldest first."""

    Result: ClassVar[Any] = Trimmed
    rows: Annotated[int, msgspec.Meta(ge=1, le=CLEANUP_ROWS_LIMIT)]


# --- commands of format 3 -------------------------------------------------------------------------


class DrawTicket(msgspec.Struct, frozen=True, array_like=True, tag="draw_ticket"):
    """As TakeTicket, and the time of it."""

    Result: ClassVar[Any] = Drawn


# The format that has the five of format 2, modes, adoption and history. That of 0.1.0.
FORMAT_SESSIONS = 2
# The format in which versions are times (order.py).
FORMAT_TIMES = 3
# The commands of format 1, which no release had for its newest.
FORMAT_1: tuple[type[msgspec.Struct], ...] = (Register, Unregister, TakeTicket, Cleanup)


# --- refusals -------------------------------------------------------------------------------------


class NoOrigin(Refused):
    """A channel belongs to a node, and this command was sent by none. Register through a node."""

    code = "lcr_no_origin"
    has_text = True


class BadTicket(Refused):
    """The ticket was not issued to this connection: it lies ahead of the log, or is in use."""

    code = "lcr_bad_ticket"
    has_text = True


class SelfTakeover(Refused):
    """A channel cannot be its own predecessor."""

    code = "lcr_self_takeover"
    has_text = True


class NotAMember(Refused):
    """The life of the node that is said to hold a channel, or to announce itself, is over."""

    code = "lcr_not_a_member"
    has_text = True


class OldNodes(Refused):
    """Nodes that know the old registry only are members: upgrade them, or stop them, first."""

    code = "lcr_old_nodes"
    has_text = True


class NotAdopted(Refused):
    """Nodes have not entered all of their channels for the present mode yet: wait, try again."""

    code = "lcr_not_adopted"
    has_text = True


class WrongStep(Refused):
    """No step leads from the present mode to the wanted one. The message names one that does."""

    code = "lcr_wrong_step"
    has_text = True


class ModeMoved(Refused):
    """The mode was switched since this switch was asked for: look at it, and ask again."""

    code = "lcr_mode_moved"
    has_text = True


class BadEpoch(Refused):
    """An epoch that has not begun was announced: only what the log said can be adopted."""

    code = "lcr_bad_epoch"
    has_text = True


REFUSALS: tuple[type[Refused], ...] = (
    NoOrigin,
    BadTicket,
    SelfTakeover,
    NotAMember,
    OldNodes,
    NotAdopted,
    WrongStep,
    ModeMoved,
    BadEpoch,
)


# --- tables ---------------------------------------------------------------------------------------

TABLES = (
    # client id -> Entry
    TableSpec("clients", str, Entry),
    # (node, incarnation) of a life that ended and may still hold rows -> when it ended, log clock
    TableSpec("ended", tuple[str, int], int),
    # "mode" -> the mode; no row: disabled, epoch 0
    TableSpec("mode", str, ModeRow),
    # node -> what it announced in its present life; no row: an old node
    TableSpec("nodes", str, NodeRow),
    # client id -> the last channel of a client that has none
    TableSpec("past", str, Gone),
    # (Gone.at_ms, client id), oldest first
    TableSpec("past_due", tuple[int, str], None),
    # "first" -> the first ticket of format 3; no row: none was issued yet
    TableSpec("order", str, int),
)

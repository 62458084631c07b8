"""Session protocol 2: the calls between nodes about channels, with versions and tokens.

A *freeze* is named by a number of the node that froze; content travels as *parcels*, of which the
answer brings the first page and `session.fetch` the others. Every call may be repeated: `begin`
joins the freeze, `end` gives its winner the same parcel again, the others find nothing left to do.

An answer whose `status` is "busy" came early on purpose: the call is still at work there, ask
again. So a lost reply costs one short wait and not the whole time-out.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .commands import Channel
from .legacy_wire import pack, unpack
from .owner import Failure, Message

__all__ = [
    "ABORT",
    "ACK",
    "ALIVE",
    "BEGIN",
    "CONNECTED",
    "DISCARD",
    "END",
    "FETCH",
    "KICK",
    "AliveReply",
    "AliveRequest",
    "BeginRequest",
    "CloseRequest",
    "Contender",
    "EndRequest",
    "FetchRequest",
    "Handed",
    "LeaveRequest",
    "Reply",
    "pack",
    "unpack",
]

BEGIN = "session.begin"
FETCH = "session.fetch"
END = "session.end"
ACK = "session.ack"
ABORT = "session.abort"
DISCARD = "session.discard"
KICK = "session.kick"
ALIVE = "session.alive"
# Asked only while `older_connection` is "keep", which all members know (core format 2). Request and
# reply are those of ALIVE.
CONNECTED = "session.connected"


class Contender(msgspec.Struct, frozen=True, array_like=True):
    """A connection that wants to take over. It may not have a row yet."""

    node: str
    incarnation: int
    channel: str


class BeginRequest(msgspec.Struct, frozen=True, array_like=True):
    """Freeze `channel` for `contender` and give its content. Answer within `wait_ms`."""

    channel: Channel
    contender: Contender
    wait_ms: int


class EndRequest(msgspec.Struct, frozen=True, array_like=True):
    """`winner` was registered over `channel` at `index`; it has the content of `freeze`, if any."""

    channel: Channel
    winner: Channel
    index: int
    freeze: int
    wait_ms: int


class FetchRequest(msgspec.Struct, frozen=True, array_like=True):
    """The page of a parcel that begins at `offset`."""

    parcel: int
    offset: int


class LeaveRequest(msgspec.Struct, frozen=True, array_like=True):
    """`contender` will not end `channel` (abort), or has got what it wanted (ack)."""

    channel: Channel
    contender: Contender


class CloseRequest(msgspec.Struct, frozen=True, array_like=True):
    """End `channel` without a successor. `reason` goes to the client of a kick."""

    channel: Channel
    reason: str
    wait_ms: int


class AliveRequest(msgspec.Struct, frozen=True, array_like=True):
    """Which of these channels live on the node that is asked?"""

    channels: tuple[Channel, ...]


class AliveReply(msgspec.Struct, frozen=True, array_like=True):
    """One answer per channel, in their order."""

    alive: tuple[bool, ...]


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The answer to all other calls.

    "ok": done; with a parcel where content was asked for. "gone": it failed, see `kind`. "busy":
    still at work. "opening": the channel is itself still being opened. "not_successor": the log
    says that the caller did not take this channel over, or another one has ended it.
    """

    status: Literal["ok", "gone", "busy", "opening", "not_successor"]
    parcel: int = 0
    # Of the whole parcel, in bytes. `page` is its beginning, or what was fetched.
    size: int = 0
    page: bytes = b""
    kind: Failure | None = None
    reason: str = ""


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """What `end` gives, as a parcel. `content` is None if the winner has it from its freeze."""

    content: bytes | None
    pendings: tuple[Message, ...]

"""What a connection is told, by either registry."""

from __future__ import annotations

from typing import Literal

import msgspec

from .commands import Channel
from .owner import Failure, Message

__all__ = ["ConnectResult", "OpenedSession"]


class ConnectResult(msgspec.Struct, frozen=True):
    """The answer to one connect.

    `outcome` is "ok" or the reason for a no: "outdated_early", "outdated_late", "in_progress",
    "ahead", "retries_exhausted", "occupied"; "timeout" for the old registry's lock. `owner` is the
    registered channel as far as this connect learnt it: its own after "ok", else the one in its
    way.
    `predecessor` is the channel whose session it continues. `index` is the log index of the
    verdict; None where the log was not asked.
    """

    outcome: str
    session_present: bool
    owner: Channel | None
    predecessor: Channel | None
    index: int | None
    attempts: int


class OpenedSession(msgspec.Struct, frozen=True):
    """The answer to one `open_session`: whether the connection is the client's, and its session.

    `outcome` is "ok" or the reason for a no, as in `ConnectResult`; "timeout": the old registry's
    lock was not had, or the time was up before anything was written.

    `handover` says what became of a predecessor's session. "none": there was none to be had, or the
    connection starts clean. "complete": `session` and `pendings` are all of it. "lost": it could
    not be had, and `failure` says why. `present` then tells two cases apart: False, nothing of it
    is continued; True, the log had already given the session to this channel when the
    predecessor failed, so `session` is what was copied at `begin`, and what came later is lost.
    """

    outcome: str
    # CONNACK's Session Present.
    present: bool = False
    # The content at begin, as the predecessor's broker gave it.
    session: bytes | None = None
    # What arrived between begin and end, in order.
    pendings: tuple[Message, ...] = ()
    # The own row after "ok", else the channel in the way.
    channel: Channel | None = None
    predecessor: Channel | None = None
    attempts: int = 0
    handover: Literal["none", "complete", "lost"] = "none"
    failure: Failure | None = None
